"""The Spanish of the page that documents the API."""

from __future__ import annotations

from typing import Final

SPANISH: Final = {
    "HTTP API": "API HTTP",
    "Everything here needs a session or a token.": "Todo aquí necesita una sesión o un token.",
    "OpenAPI document": "Documento OpenAPI",
    "field": "campo",
    "in": "en",
    "type": "tipo",
    "default": "por defecto",
    "meaning": "significado",
    "required": "obligatorio",
    "Nothing is asked.": "No se pide nada.",
    # events
    "Published events, newest first, each with the jobs of its subscribers.": (
        "Eventos publicados, primero los más nuevos, con los trabajos de sus suscriptores."
    ),
    "One event, by its id or that of the job of a subscriber.": (
        "Un evento, por su id o por el del trabajo de un suscriptor."
    ),
    "Who subscribes to which event, what waits for each, and whether a worker serves it.": (
        "Quién está suscrito a qué evento, qué le espera, y si un worker lo atiende."
    ),
    "Take a subscriber off the list: it gets no later events. Its waiting jobs stay.": (
        "Quita a un suscriptor de la lista: no recibe eventos posteriores. Sus trabajos en espera "
        "se quedan."
    ),
    "Only events of this name.": "Solo los eventos con este nombre.",
    "Only those of this event.": "Solo los de este evento.",
    # queues
    "Every queue that has, or had, jobs: its mode, its counts, the age of its oldest.": (
        "Cada cola que tiene, o tuvo, trabajos: su modo, sus cuentas, la edad del más antiguo."
    ),
    "One queue.": "Una cola.",
    "Give nothing out until it is resumed.": "No entrega nada hasta que se reanude.",
    "Open again.": "Abierta de nuevo.",
    "Take nothing in until it is resumed.": "No admite nada hasta que se reanude.",
    # jobs
    "Jobs, newest first, without their history.": (
        "Trabajos, primero los más nuevos, sin su historial."
    ),
    "How many jobs there are of a kind.": "Cuántos trabajos hay de una clase.",
    "A new job of one that has ended; if that has made effects, only with `repeat_effects`.": (
        "Un trabajo nuevo de uno que ha terminado; si hizo efectos, solo con `repeat_effects`."
    ),
    "Retry up to 1,000 jobs by their ids.": "Reintenta hasta 1.000 trabajos por su id.",
    "Cancel up to 1,000 jobs by their ids.": "Cancela hasta 1.000 trabajos por su id.",
    "Put up to 1,000 dead or held jobs aside by their ids; the note says why.": (
        "Aparta hasta 1.000 trabajos muertos o retenidos por su id; la nota dice por qué."
    ),
    "One job with its history; payload and result masked for viewers.": (
        "Un trabajo con su historial; contenido y resultado enmascarados para observadores."
    ),
    "Change payload, priority, run_at or attempts of a job that is neither running nor done.": (
        "Cambia contenido, prioridad, run_at o intentos de un trabajo ni en curso ni hecho."
    ),
    "Begin to change all jobs that a filter means; ask for it by its id, and stop it so.": (
        "Empieza a cambiar todos los trabajos de un filtro; con su id se consulta y se para."
    ),
    "The changes of many that are under way in this process, newest first.": (
        "Los cambios masivos en marcha en este proceso, primero los más nuevos."
    ),
    "How far a change of many has come.": "Hasta dónde ha llegado un cambio masivo.",
    "Stop a change of many; what was changed stays changed.": (
        "Para un cambio masivo; lo ya cambiado se conserva."
    ),
    "Found literally in the last error.": "Tal cual en el último error.",
    "Ended then or later; enqueued, if it has not ended.": (
        "Terminado entonces o después; si no ha terminado, encolado."
    ),
    "Ended before, or enqueued before.": "Terminado antes, o encolado antes.",
    "So many at most.": "Tantos a lo sumo.",
    "retry, cancel or discard.": "retry, cancel o discard.",
    "One person.": "Una persona.",
    "As the audit has it, such as retry many.": "Como aparece en la auditoría, p. ej. retry many.",
    "Done then or later.": "Hecho entonces o después.",
    "Take the last edit of a job back, for a day.": (
        "Deshace el último cambio de un trabajo, durante un día."
    ),
    "Fields to change; they are merged into the payload.": (
        "Los campos que cambian; el resto del contenido se conserva."
    ),
    "The payload is given as a whole.": "Se da el contenido entero.",
    "Do not hold the payload against its command.": (
        "No comprobar que el contenido encaje con su comando."
    ),
    "Ready again with fresh attempts: a dead, held, parked, cancelled or scheduled job.": (
        "Listo otra vez con intentos nuevos: muerto, retenido, aparcado, cancelado o programado."
    ),
    "End a job that has not ended; a running one loses its lease.": (
        "Termina un trabajo que no ha terminado; si está en curso pierde su concesión."
    ),
    "Put a dead or held job aside for good; the note says why.": (
        "Aparta para siempre un trabajo muerto o retenido; la nota dice por qué."
    ),
    # dead letters
    "Dead letters by mistake, most first.": "Cartas muertas por fallo, primero las que más hay.",
    "Retry many dead letters, canaries first if wanted; answers when all have been let go.": (
        "Reintenta muchas cartas muertas, con canarios si se quiere; responde al soltarlas todas."
    ),
    "Put many dead letters aside; the note says why.": (
        "Aparta muchas cartas muertas; la nota dice por qué."
    ),
    # deliveries and the outbox
    "What was delivered, newest first, without bodies.": (
        "Lo entregado, primero lo más nuevo, sin cuerpos."
    ),
    "Calls of the last week at an endpoint, or nearly, that were not taken, the last first.": (
        "Las llamadas de la última semana a un endpoint, o casi, que no se aceptaron; primero las "
        "últimas."
    ),
    "One delivery: what came, what was answered, the jobs that came of it; masked for viewers.": (
        "Una entrega: qué llegó, qué se respondió y sus trabajos; enmascarada para observadores."
    ),
    "Run today's code on a delivery's raw bytes, as the next generation of its key.": (
        "Ejecuta el código de hoy sobre los bytes de una entrega, como otra generación de su clave."
    ),
    "Deliveries that failed, or of other states, by endpoint and error; most first.": (
        "Entregas fallidas, o de otros estados, por endpoint y error; primero las más numerosas."
    ),
    "Handle many deliveries by today's code, oldest first; the cursor goes on where this ended.": (
        "Procesa muchas entregas con el código de hoy, primero las más antiguas; el cursor sigue "
        "donde acabó esta llamada."
    ),
    "Letters that wait for a store which lives elsewhere; none where the store is a database.": (
        "Cartas que esperan a un almacén que vive aparte; ninguna si este es una base de datos."
    ),
    # flows
    "Recent flows, newest first; a page without flows but with a cursor: there are older jobs.": (
        "Flujos recientes, primero los más nuevos; sin flujos pero con cursor: hay trabajos antes."
    ),
    "What each node that has not ended well waits for, why, and what to do.": (
        "Qué espera cada nodo que no ha acabado bien, por qué, y qué hacer."
    ),
    "End every live node.": "Termina todos los nodos vivos.",
    "Retry what ended badly and is still needed; with a node, only that one and what it needs.": (
        "Reintenta lo que acabó mal y aún hace falta; con un nodo, solo ese y lo que necesita."
    ),
    "A flow by its id, its key, or the id of one of its jobs.": (
        "Un flujo por su id, su clave, o el id de uno de sus trabajos."
    ),
    # groups of jobs
    "The groups that were opened last, newest first.": (
        "Los últimos grupos que se abrieron, primero los más nuevos."
    ),
    "A group by its name, or the id of the job that waits for its members.": (
        "Un grupo por su nombre, o por el id del trabajo que espera a sus miembros."
    ),
    "End every member that has not ended, and the job that waits for them.": (
        "Termina cada miembro que no ha terminado, y el trabajo que los espera."
    ),
    # breakers, pollers, schedules
    "Every breaker that was ever troubled, open ones first.": (
        "Cada disyuntor que tuvo problemas, primero los abiertos."
    ),
    "Stop calling: jobs are parked until it closes.": (
        "Deja de llamar: los trabajos se aparcan hasta que cierre."
    ),
    "Call again, and let the parked jobs go, spread over time.": (
        "Llama otra vez y suelta los trabajos aparcados, repartidos en el tiempo."
    ),
    "Let one job try now.": "Deja que un trabajo pruebe ahora.",
    "One breaker with its history.": "Un disyuntor con su historial.",
    "Every one of them, by queue and name.": "Todos, por cola y nombre.",
    "Switch one off until it is resumed.": "Apaga uno hasta que se reanude.",
    "Switch one on again.": "Enciende uno de nuevo.",
    "Take a turn now; unchanged when one is being taken.": (
        "Da una vuelta ahora; sin cambio si ya se está dando una."
    ),
    "One, by its name or its job's id.": "Uno, por su nombre o el id de su trabajo.",
    # the rest
    "The workers of the last day: who is alive, blocked, silent or gone, and what each runs.": (
        "Los workers del último día: quién está vivo, bloqueado, callado o muerto, y qué ejecuta."
    ),
    "Take a worker that is silent or gone off the list.": (
        "Quita de la lista un worker callado o muerto."
    ),
    "The effect ledger, newest first; results masked for viewers.": (
        "El libro de efectos, primero los más nuevos; resultados enmascarados para observadores."
    ),
    "It did happen, and this came of it: the job goes on with the result.": (
        "Sí ocurrió, y dio esto: el trabajo sigue con el resultado."
    ),
    "It did not happen: the job goes on and asks for it again with the same key.": (
        "No ocurrió: el trabajo sigue y lo pide otra vez con la misma clave."
    ),
    "One effect of a job.": "Un efecto de un trabajo.",
    "What people did, newest first.": "Lo que hizo la gente, primero lo más nuevo.",
    "The stories that are called so or carry it, and apart from them those that contain it.": (
        "Las historias que se llaman así o lo llevan y, aparte, las que lo contienen."
    ),
    "The whole story of an id, a key, a provider's code, or any text that occurs in it.": (
        "La historia entera de un id, una clave, un código del proveedor o cualquier texto suyo."
    ),
    "Erase what has ended of one person, found by one of key, thread and text; say why.": (
        "Borra lo que ha acabado de una persona, hallada por clave, hilo o texto; di por qué."
    ),
    "What was under way in the copy that the store was restored from; 404 if it never was.": (
        "Lo que estaba en curso en la copia desde la que se restauró el almacén; 404 si nunca se "
        "restauró."
    ),
    "Say that what a restore has lost has come again: new effects are made without a look-up.": (
        "Di que lo perdido en una restauración ha vuelto: los efectos nuevos ya no se comprueban."
    ),
    "Who you are, and what you may do.": "Quién eres, y qué puedes hacer.",
    # fields
    "Why; it is written down with the act.": "Por qué; queda escrito con el acto.",
    "Found literally in payload, key or error.": "Tal cual en contenido, clave o error.",
    "Where the page before this one ended.": "Donde acabó la página anterior.",
    "How many at most.": "Cuántos como mucho.",
    "Jobs' ids.": "Ids de trabajos.",
    "Where all slots are taken while jobs wait, and how long commands and effects take.": (
        "Dónde están ocupadas todas las plazas mientras esperan trabajos, y cuánto tardan órdenes "
        "y efectos."
    ),
    "What people have changed of queues, lanes and breakers, and until when.": (
        "Lo que se ha cambiado de colas, carriles y disyuntores, y hasta cuándo."
    ),
    "Change the limit, rate, priority or slots of a queue while workers run.": (
        "Cambiar el límite, el ritmo, la prioridad o las plazas de una cola en marcha."
    ),
    "Take back what was changed of a queue.": "Retirar lo que se cambió de una cola.",
    "Let no more jobs of a lane run at once; with a limit of 0, pause it.": (
        "Que no corran más trabajos de un carril a la vez; con límite 0, pausarlo."
    ),
    "Take a pause or a limit of a lane back.": "Retirar la pausa o el límite de un carril.",
    "End every job of a lane that has not ended.": (
        "Terminar todos los trabajos de un carril que no han terminado."
    ),
    "Change when a breaker opens, and for how long, while workers run.": (
        "Cambiar cuándo se abre un disyuntor, y por cuánto tiempo, en marcha."
    ),
    "Take back what was changed of a breaker.": "Retirar lo que se cambió de un disyuntor.",
    "For how long, such as 2h.": "Por cuánto tiempo, como 2h.",
    "0: no job of it begins.": "0: no empieza ninguno.",
    "A call that takes longer is a failure.": "Una llamada que tarda más es un fallo.",
    "So many first.": "Tantos primero.",
    "No faster than that, such as 50/s.": "No más rápido que eso, como 50/s.",
    "How long canaries may take.": "Cuánto pueden tardar los canarios.",
    "One door only, as app:/path.": "Una sola puerta, como app:/ruta.",
    "The provider's own id.": "El id del propio proveedor.",
    "Found literally in key, body or reason.": "Tal cual en clave, cuerpo o motivo.",
    "One webhook only, as app:/path.": "Un solo webhook, como app:/ruta.",
    "Received then or later.": "Recibidas desde entonces.",
    "Received before.": "Recibidas antes.",
    "failed unless told.": "failed si no se dice otra cosa.",
    "failed, differs, refused or accepted.": "failed, differs, refused o accepted.",
    "Found literally in the reason.": "Tal cual en el motivo.",
    "A group's fingerprint.": "La huella de un grupo.",
    "How many in this call.": "Cuántas en esta llamada.",
    "Where the call before this one ended; ask the same of it.": (
        "Donde acabó la llamada anterior; repite la misma pregunta."
    ),
    "Only tell which would be handled.": "Solo decir cuáles se procesarían.",
    "Make effects that are confirmed once more, too.": ("Repetir también los efectos confirmados."),
    "The key of a delivery or job.": "La clave de una entrega o de un trabajo.",
    "A thread, or the id of something in it.": "Un hilo, o el id de algo que esté en él.",
    "Found literally in what came or was ordered.": "Tal cual en lo que llegó o se ordenó.",
    "Only tell what would be erased.": "Solo decir qué se borraría.",
    "Only tell what would be enqueued.": "Solo decir qué se encolaría.",
}
