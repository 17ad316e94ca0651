"""The pages of subscriptions in Spanish."""

REFUSALS = {
    "there is no such job": "no existe ese trabajo",
    "nothing has failed of job {job}": "nada ha fallido del trabajo {job}",
    "no integration {integration}: there are {known}": (
        "no hay ninguna integración {integration}; existen {known}"
    ),
    "the call may have been made: look at the provider, then confirm or deny the "
    "effect '{effect}' of {job}": (
        "puede que la llamada se haya hecho: consulta al proveedor y después confirma o niega "
        "el efecto '{effect}' de {job}"
    ),
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
    "Integration": "Integración",
    "State": "Estado",
    "When": "Cuándo",
    "failed": "fallido",
    "held": "retenido",
    "email": "correo",
    "list": "lista",
    "spreadsheet": "hoja de cálculo",
    "publish": "publicación",
    "Decide": "Decidir",
    "Retry all that failed": "Reintentar todos los fallidos",
    "What is held may have been done: look at the provider, then decide.": (
        "Lo retenido puede haberse hecho: consulta al proveedor y después decide."
    ),
    "Ordered again: {retried}. Held for a decision: {held}.": (
        "Ordenados de nuevo: {retried}. Retenidos hasta que se decida: {held}."
    ),
    "Job": "Trabajo",
    "Error": "Error",
    "Tries": "Intentos",
}
