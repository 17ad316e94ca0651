"""The car rental's pages in Spanish."""

from __future__ import annotations

from typing import Final

SPANISH: Final[dict[str, str]] = {
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
    "Give the money back at Stripe, then say so here.": (
        "Devuelve el dinero en Stripe y luego dilo aquí."
    ),
    "It was given back": "Se devolvió",
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
