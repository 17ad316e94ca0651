"""razworks' pages in Spanish."""

REFUSALS = {
    "there is no such recording": "no existe esa grabación",
}
"""Why the panel did not do what it was asked."""

SPANISH = {
    **REFUSALS,
    "Razworks": "Razworks",
    "People": "Personas",
    "Name": "Nombre",
    "Points": "Puntos",
    "Coins": "Monedas",
    "Welcome letter": "Carta de bienvenida",
    "sent": "enviada",
    "on its way": "en camino",
    "Recordings": "Grabaciones",
    "Recording": "Grabación",
    "Intent": "Intención",
    "Summary": "Resumen",
    "Transcript": "Transcripción",
    "Mentions": "Menciones",
    "understood": "comprendida",
    "in progress": "en curso",
    "failed": "fallida",
    "State": "Estado",
    "Nobody has registered yet": "Nadie se ha registrado aún",
    "Whoever registers with POST /razworks/api/users appears here.": (
        "Quien se registre con POST /razworks/api/users aparecerá aquí."
    ),
    "No recording yet": "Ninguna grabación aún",
    "POST /razworks/api/recordings starts the cortex on one.": (
        "POST /razworks/api/recordings inicia el flujo cortex con una."
    ),
    "The flow of this recording": "El flujo de esta grabación",
    "The whole flow": "El flujo completo",
}
