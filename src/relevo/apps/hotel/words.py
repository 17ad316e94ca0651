"""The panel in Spanish."""

REFUSALS = {
    "There is no such hotel.": "No existe ese hotel.",
    "There is no such conversation.": "No existe esa conversación.",
    "There is no such conversation, or no way to answer in it.": (
        "No existe esa conversación, o no hay forma de responder en ella."
    ),
    "There is no such entry any more.": "Esa entrada ya no existe.",
    "An answer has 1 to {n} characters.": "Una respuesta tiene de 1 a {n} caracteres.",
    "A conversation is answered in manual or automatic mode.": (
        "Una conversación se responde en modo manual o automático."
    ),
    "A dead entry is sent back, edited or discarded.": (
        "Una entrada fallida se devuelve a la cola, se edita o se descarta."
    ),
    "A bot is enabled (1) or paused (0).": "Un bot está activo (1) o en pausa (0).",
}
"""Why the panel did not do what it was asked."""

SPANISH = {
    **REFUSALS,
    "Hotel": "Hotel",
    "Overview": "Resumen",
    "Conversations": "Conversaciones",
    "Conversation": "Conversación",
    "Reservations": "Reservas",
    "Events": "Eventos",
    "Messages": "Mensajes",
    "Guests": "Huéspedes",
    "Guest": "Huésped",
    "Bots": "Bots",
    "Bot": "Bot",
    "Heartbeat": "Latido",
    "Waiting": "En cola",
    "Taken": "Tomados",
    "Dead list": "Fallidos",
    "Dead list of {hotel}": "Fallidos de {hotel}",
    "The dead list is empty": "No hay entradas fallidas",
    "{n} entries": "{n} entradas",
    "Retry all": "Reintentar todas",
    "Send all of them back?": "¿Devolverlas todas a la cola?",
    "Edit": "Editar",
    "Edit a dead entry": "Editar una entrada fallida",
    "Entry": "Entrada",
    "Save and retry": "Guardar y reintentar",
    "This entry is no text in UTF-8, or too large to be edited here: use relevo hotel edit.": (
        "Esta entrada no es texto UTF-8 o es demasiado grande para editarla aquí: "
        "usa relevo hotel edit."
    ),
    "What cannot be read is put here as it came.": (
        "Lo que no se puede leer queda aquí tal como vino."
    ),
    "expires in {span}": "caduca en {span}",
    "no sign of life": "sin señales de vida",
    "Pause": "Pausar",
    "Resume": "Reanudar",
    "Latest conversations": "Últimas conversaciones",
    "No conversation yet": "Ninguna conversación aún",
    "The first message of a guest begins one.": "El primer mensaje de un huésped abre una.",
    "Channel": "Canal",
    "Last message": "Último mensaje",
    "Mode": "Modo",
    "manual": "manual",
    "automatic": "automático",
    "us:": "nosotros:",
    "the bot": "el bot",
    "not sent yet": "aún sin enviar",
    "not sent": "sin enviar",
    "the guest": "el huésped",
    "Answer by hand": "Responder a mano",
    "Let the bot answer": "Que responda el bot",
    "Your answer": "Tu respuesta",
    "Send": "Enviar",
    "There is no way to answer here: set CM_SOAP_URL.": (
        "No hay forma de responder aquí: configura CM_SOAP_URL."
    ),
    "Booking": "Reserva",
    "State": "Estado",
    "Arrival": "Llegada",
    "Departure": "Salida",
    "Changed": "Cambio",
    "modified": "modificada",
    "processed": "procesado",
    "pending": "pendiente",
    "confirmed": "confirmada",
    "cancelled": "cancelada",
    "No reservation yet": "Ninguna reserva aún",
    "Beds24's webhook or the channel manager brings the first.": (
        "El webhook de Beds24 o el channel manager trae la primera."
    ),
    "No event yet": "Ningún evento aún",
    "Type": "Tipo",
    "Changes told": "Cambios comunicados",
    "By way of": "Vía",
    "Received": "Recibido",
    "When": "Cuándo",
    "Why": "Por qué",
    "Entry, as it came": "Entrada, tal como vino",
    "Retry": "Reintentar",
    "Discard": "Descartar",
    "Throw it away?": "¿Descartarla?",
    "all hotels": "todos los hoteles",
    "Show": "Mostrar",
    "Saved.": "Guardado.",
    "Done.": "Hecho.",
    "The answer is on its way.": "La respuesta está en camino.",
}
