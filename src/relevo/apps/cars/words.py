"""The car rental's pages in Spanish."""

from __future__ import annotations

from typing import Final

REFUSALS: Final[dict[str, str]] = {
    "a status is one of {names}": "un estado es uno de {names}",
    "there is no such reservation": "no existe esa reserva",
    "there is no reservation {code}": "no existe la reserva {code}",
    "the order of this reservation is gone; confirm or cancel it": (
        "la orden de esta reserva ya no está; confírmala o cancélala"
    ),
    "the supplier may have this booking: look there first, then `relevo cars retry {code} "
    "--not-booked` or `relevo cars confirm {code} --confirmation NUMBER`": (
        "el proveedor puede tener esta reserva: compruébalo allí primero y luego "
        "`relevo cars retry {code} --not-booked` o `relevo cars confirm {code} --confirmation "
        "NÚMERO`"
    ),
    "the supplier may hold the car of {code}: cancel it there too with --at-supplier, or look "
    "there and cancel with --not-booked": (
        "el proveedor puede tener reservado el auto de {code}: elige si se cancela también allí o "
        "si ya comprobaste que no está"
    ),
    "this supplier takes no message that cancels: cancel the car there by hand, then cancel with "
    "--not-booked": (
        "este proveedor no admite cancelaciones por mensaje: cancela el auto allí a mano y luego "
        "cancela la reserva como no reservada"
    ),
    "this supplier cannot be asked by our code: give its number with --confirmation": (
        "a este proveedor no se le puede preguntar por nuestro código: indica su número"
    ),
    "a supplier's number has 1 to 64 letters, digits and . _ : / # -": (
        "el número de un proveedor tiene de 1 a 64 letras, cifras y . _ : / # -"
    ),
    "{code} is {state}, and not stuck": "{code} está {state}, y no atascada",
    "{code} is {state} and its order is {order}: nothing to decide": (
        "{code} está {state} y su orden, {order}: nada que decidir"
    ),
    "{code} is {state}: nothing to decide": "{code} está {state}: nada que decidir",
    "no money of {code} is to be given back": "no hay dinero de {code} que devolver",
}
"""Why the panel did not do what it was asked."""

SPANISH: Final[dict[str, str]] = {
    **REFUSALS,
    "Cars": "Autos",
    "PENDING": "Pendiente",
    "PAID": "Pagada",
    "CONFIRMED": "Confirmada",
    "CANCELLED": "Cancelada",
    "STUCK": "Atascada",
    "PROCESSING": "En proceso",
    "PARKED": "Aparcada",
    "HELD": "Retenida",
    "DONE": "Hecha",
    "DEAD": "Carta muerta",
    "BOOKING_FAILED": "No se pudo reservar",
    "PAYMENT_DECLINED": "Pago rechazado",
    "PAYMENT_WAITS": "Pago en espera",
    "DEAD_LETTER": "Carta muerta",
    "TO_REFUND": "Por devolver",
    "REFUNDED": "Devuelta",
    "The customer has paid for a car that there is not.": (
        "El cliente pagó por un auto que no hay."
    ),
    "Give the money back": "Devolver el dinero",
    "It was given back by hand": "Se devolvió a mano",
    "The money is given back at Stripe.": "El dinero se devuelve en Stripe.",
    "The supplier may hold the car": "El proveedor puede tener el auto reservado",
    "Choose": "Elige",
    "Cancel it there too": "Cancelarlo también allí",
    "I have looked: it is not there": "Lo comprobé: no está allí",
    "REFUND_ORDERED": "Devolución ordenada",
    "SUPPLIER_CANCELLED": "Cancelada en el proveedor",
    "NOT_AT_SUPPLIER": "No estaba en el proveedor",
    "It is written down.": "Queda anotado.",
    "SUPPORT_RETRY": "Reintentada por soporte",
    "book": "reservar",
    "find": "buscar",
    "uncertain": "incierto",
    "unavailable": "no disponible",
    "none": "nada",
    "broken": "roto",
    "All": "Todas",
    "Find": "Buscar",
    "Code, e-mail or supplier's number": "Código, correo o número del proveedor",
    "Status": "Estado",
    "Reservation": "Reserva",
    "Supplier": "Proveedor",
    "Supplier's number": "Número del proveedor",
    "Pick-up": "Recogida",
    "Drop-off": "Devolución",
    "Price": "Precio",
    "Created": "Creada",
    "Driver": "Conductor",
    "Payment": "Pago",
    "Order": "Orden",
    "Attempts": "Intentos",
    "Next attempt": "Próximo intento",
    "No reservation": "Ninguna reserva",
    "A reservation appears here as soon as a customer makes it with POST /reservations.": (
        "Una reserva aparece aquí en cuanto un cliente la hace con POST /reservations."
    ),
    "What happened": "Qué pasó",
    "Calls of the supplier": "Llamadas al proveedor",
    "Call": "Llamada",
    "Attempt": "Intento",
    "Outcome": "Resultado",
    "When": "Cuándo",
    "Detail": "Detalle",
    "The supplier has not been called yet.": "Aún no se ha llamado al proveedor.",
    "A person has to decide": "Debe decidir una persona",
    "The supplier may have this booking: its answer never came. Look it up there first.": (
        "El proveedor puede tener esta reserva: su respuesta no llegó. Compruébalo allí primero."
    ),
    "The supplier was asked and did not book.": "Se le pidió al proveedor y no la hizo.",
    "Note": "Nota",
    "Retry": "Reintentar",
    "Ask the supplier": "Preguntar al proveedor",
    "It is not there: book it": "No está allí: reservar",
    "Confirm": "Confirmar",
    "Cancel it": "Cancelarla",
    "Cancel this reservation? A paid one is marked for a refund.": (
        "¿Cancelar esta reserva? Si está pagada, queda marcada para devolver el dinero."
    ),
    "The supplier is asked again.": "Se le vuelve a pedir al proveedor.",
    "The reservation is confirmed.": "La reserva está confirmada.",
    "The reservation is cancelled.": "La reserva está cancelada.",
    "Everything about this order": "Todo sobre esta orden",
}
