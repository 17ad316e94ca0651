"""The pages of subscriptions in Spanish."""

REFUSALS = {
    "there is no such job": "no existe ese trabajo",
}
"""Why the panel did not do what it was asked."""

SPANISH = {
    **REFUSALS,
    "Subscriptions": "Suscripciones",
    "Subscriber": "Suscriptor",
    "Plan": "Plan",
    "Amount": "Monto",
    "E-mail": "Correo",
    "List": "Lista",
    "Spreadsheet": "Hoja de cálculo",
    "done": "hecho",
    "left out": "omitido",
    "open": "pendiente",
    "Retry": "Reintentar",
    "Ordered again.": "Ordenado de nuevo.",
    "No subscription yet": "Ninguna suscripción aún",
    "A signed checkout.session.completed from Stripe makes the first.": (
        "Un checkout.session.completed firmado por Stripe crea la primera."
    ),
    "Failed for good": "Fallos definitivos",
    "Stream": "Stream",
    "Job": "Trabajo",
    "Error": "Error",
    "Tries": "Intentos",
}
