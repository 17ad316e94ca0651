"""The Spanish of the dashboard; the English text is the key."""

from __future__ import annotations

from typing import Final

from relevo.dashboard.reasons import REASONS
from relevo.dashboard.refusals import REFUSALS

SPANISH: Final[dict[str, str]] = {
    **REASONS,
    **REFUSALS,
    # menu and frame
    "Overview": "Resumen",
    "Work": "Trabajo",
    "Outside": "Fuera",
    "Operation": "Operación",
    "Deliveries": "Entregas",
    "Queues": "Colas",
    "Jobs": "Trabajos",
    "Dead letters": "Cartas muertas",
    "Flows": "Flujos",
    "Groups": "Grupos",
    "Effects": "Efectos",
    "Effects outside": "Efectos fuera",
    "Breakers": "Disyuntores",
    "Pollers and schedules": "Sondeos y horarios",
    "Workers": "Workers",
    "Usage": "Consumo",
    "Audit": "Auditoría",
    "live": "en vivo",
    "frozen": "congelado",
    "no answer": "sin respuesta",
    "Freeze or follow (f)": "Congelar o seguir (f)",
    # common words
    "Address": "Dirección",
    "Age": "Edad",
    "All on this page": "Todos los de esta página",
    "Answer": "Respuesta",
    "Attempt": "Intento",
    "Attempts": "Intentos",
    "Crashes, running alone": "Caídas, corriendo solo",
    "Back": "Volver",
    "Begun": "Empezó",
    "begun": "empezó",
    "Body": "Cuerpo",
    "Breaker": "Disyuntor",
    "Busy": "Ocupado",
    "Call": "Llamada",
    "Came again": "Llegó otra vez",
    "Cancel": "Cancelar",
    "Cause": "Causa",
    "Clear": "Limpiar",
    "effect": "efecto",
    "More filters": "Más filtros",
    "Copy": "Copiar",
    "Delivery": "Entrega",
    "Did": "Hizo",
    "Discard": "Descartar",
    "Discard…": "Descartar…",
    "Due": "Toca",
    "Edit": "Editar",
    "Effect": "Efecto",
    "Effect outside": "Efecto fuera",
    "Ended": "Terminó",
    "ended": "terminados",
    "Enqueued": "Encolado",
    "Every": "Cada",
    "Failures": "Fallos",
    "First": "Primera",
    "Flow": "Flujo",
    "Function": "Función",
    "Headers": "Cabeceras",
    "Intended": "Intentado",
    "Job": "Trabajo",
    "Key": "Clave",
    "Lane": "Carril",
    "Last": "Última",
    "Last error": "Último error",
    "Look": "Mirar",
    "Message": "Mensaje",
    "Mistake": "Fallo",
    "Mode": "Modo",
    "Needed by": "Lo necesita",
    "Node": "Nodo",
    "Nodes": "Nodos",
    "Nodes that joined other jobs": "Nodos que se unieron a otros trabajos",
    "None.": "Ninguno.",
    "Note": "Nota",
    "Oldest": "Más antiguo",
    "Late": "Retraso",
    "Open": "Abrir",
    "Pause": "Pausar",
    "Payload": "Contenido",
    "Priority": "Prioridad",
    "Probe": "Probar",
    "Queue": "Cola",
    "Reason": "Motivo",
    "Received": "Recibida",
    "Replay": "Repetición",
    "Result": "Resultado",
    "Resume": "Reanudar",
    "The store has been away since {at}": "El almacén no responde desde {at}",
    "This page is as it was at {at}. Deliveries that come in meanwhile wait in the spool.": (
        "Esta página es de las {at}. Las entregas que llegan mientras tanto esperan en el spool."
    ),
    "Retry": "Reintentar",
    "Retry…": "Reintentar…",
    "Run now": "Ejecutar ya",
    "Run {n}": "Intento {n}",
    "Running now": "En curso ahora",
    "Sample": "Ejemplo",
    "Save": "Guardar",
    "Schedule": "Horario",
    "Schedules": "Horarios",
    "Show": "Mostrar",
    "Since": "Desde",
    "Started": "Arrancó",
    "State": "Estado",
    "Stop": "Parar",
    "Store": "Almacén",
    "Stories": "Historias",
    "Story": "Historia",
    "Timetable": "Calendario",
    "To what": "A qué",
    "Trace": "Traza",
    "Under way": "En marcha",
    "Webhook": "Webhook",
    "What happened": "Qué pasó",
    "Forget this story": "Olvidar esta historia",
    "For who asks to be forgotten: nothing of it comes back. What must not happen twice stays "
    "known.": (
        "Para quien pide ser olvidado: nada de ella vuelve. Lo que no debe ocurrir dos veces se "
        "sigue sabiendo."
    ),
    "Forget {jobs} and {deliveries}": "Olvidar {jobs} y {deliveries}",
    "Forgotten: {jobs} and {deliveries}.": "Olvidado: {jobs} y {deliveries}.",
    "Nothing was found to be forgotten.": "No se encontró nada que olvidar.",
    "Nothing was erased: something in it has not ended.": (
        "No se borró nada: algo en ella no ha terminado."
    ),
    "What people did": "Qué hicieron las personas",
    "What to do": "Qué hacer",
    "When": "Cuándo",
    "Who": "Quién",
    "Why": "Por qué",
    "Worker": "Worker",
    "all": "todos",
    "all queues": "todas las colas",
    "and {n:,} more": "y {n:,} más",
    "any": "cualquiera",
    "as it is": "como está",
    "high": "alta",
    "normal": "normal",
    "low": "baja",
    "in {took}": "en {took}",
    "may fail": "puede fallar",
    "new": "nuevos",
    "note (optional)": "nota (opcional)",
    "of": "de",
    "over": "terminado",
    "stopped": "parado",
    "under way": "en marcha",
    "unfinished": "sin terminar",
    "why? it goes into the audit": "¿por qué? queda en la auditoría",
    "workers": "workers",
    "queue": "cola",
    "kind": "mensaje",
    "key": "clave",
    "lane": "carril",
    "park": "aparcado tras",
    "thread": "historia",
    "flow": "flujo",
    "fingerprint": "huella",
    "text": "texto",
    "one job": "un trabajo",
    "{n:,} jobs": "{n:,} trabajos",
    "one effect outside": "un efecto fuera",
    "{n:,} effects outside": "{n:,} efectos fuera",
    "one delivery": "una entrega",
    "{n:,} deliveries": "{n:,} entregas",
    "one worker": "un worker",
    "{n:,} workers": "{n:,} workers",
    "one queue": "una cola",
    "{n:,} queues": "{n:,} colas",
    "one dead letter": "una carta muerta",
    "{n:,} dead letters": "{n:,} cartas muertas",
    "Changed: {n:,} of {all:,}.": "Cambiados: {n:,} de {all:,}.",
    "personal data is masked": "los datos personales van ocultos",
    "It was so already.": "Ya estaba así.",
    # overview
    "All is well": "Todo va bien",
    "Nothing waits longer than it should: {workers}, {queues}.": (
        "Nada espera más de lo debido: {workers}, {queues}."
    ),
    "Nothing has happened yet": "Aún no ha pasado nada",
    "When the first job is enqueued, its queue, its age and its rate appear here. To see all of it "
    "at work:": (
        "Cuando se encole el primer trabajo aparecerán aquí su cola, su edad y su ritmo. Para "
        "verlo todo en marcha:"
    ),
    "{n:,} things need a look": "{n:,} cosas piden una mirada",
    "One thing needs a look": "Una cosa pide una mirada",
    "Jobs a second": "Trabajos por segundo",
    "Waiting and running": "En espera y en curso",
    "Oldest job of each queue": "El trabajo más antiguo de cada cola",
    "No job waits: everything due has been taken.": (
        "Ningún trabajo espera: todo lo pendiente está en manos de alguien."
    ),
    "{n:,} ready": "listos: {n:,}",
    "{busy:,} of {slots:,} places busy": "{busy:,} de {slots:,} puestos ocupados",
    # what is wrong
    "{n:,} jobs are held: nobody knows what they did outside, and a person decides": (
        "{n:,} trabajos retenidos: nadie sabe qué hicieron fuera, y decide una persona"
    ),
    "One job is held: nobody knows what it did outside, and a person decides": (
        "Un trabajo retenido: nadie sabe qué hizo fuera, y decide una persona"
    ),
    "{n:,} dead letters wait until their cause is mended": (
        "{n:,} cartas muertas esperan a que se arregle su causa"
    ),
    "One dead letter waits until its cause is mended": (
        "Una carta muerta espera a que se arregle su causa"
    ),
    "The breaker {name} is open, and {n:,} jobs wait behind it": (
        "El disyuntor {name} está abierto, y {n:,} trabajos esperan detrás"
    ),
    "The store has less than was seen in it {ago} ago: it was restored from a copy, or a "
    "server without the last writes took over. Outside calls made since may be repeated": (
        "Al almacén le falta algo que hace {ago} estaba en él: se restauró desde una copia, o lo "
        "sustituyó un servidor sin las últimas escrituras. Las llamadas externas hechas desde "
        "entonces pueden repetirse"
    ),
    "The store was restored {ago} ago from a copy that ended {age} before: outside calls that it "
    "does not know of are looked up, or put on hold": (
        "El almacén se restauró hace {ago} desde una copia que terminaba {age} antes: las llamadas "
        "externas que no le constan se comprueban primero, o quedan retenidas"
    ),
    "A job of {queue} waits for {age} without spending an attempt: {why}": (
        "Un trabajo de {queue} espera desde hace {age} sin gastar ningún intento: {why}"
    ),
    "{n:,} jobs of {queue} wait for a key that the provider accepts: {why}": (
        "{n:,} trabajos de {queue} esperan una clave que el proveedor acepte: {why}"
    ),
    "One job of {queue} waits for a key that the provider accepts: {why}": (
        "Un trabajo de {queue} espera una clave que el proveedor acepte: {why}"
    ),
    "The breaker {name} is open; no job waits behind it": (
        "El disyuntor {name} está abierto; ningún trabajo espera detrás"
    ),
    "The breaker {name} is open, and one job waits behind it": (
        "El disyuntor {name} está abierto, y un trabajo espera detrás"
    ),
    "{queue} is paused, with {n:,} jobs in it": "{queue} está en pausa, con {n:,} trabajos dentro",
    "{queue} is paused, with one job in it": "{queue} está en pausa, con un trabajo dentro",
    "{n:,} jobs wait while all {slots:,} slots are taken": (
        "{n:,} trabajos esperan con las {slots:,} plazas ocupadas"
    ),
    "{n:,} jobs wait while all {slots:,} slots are taken: {busy:,} by {queue}": (
        "{n:,} trabajos esperan con las {slots:,} plazas ocupadas: {busy:,} por {queue}"
    ),
    "{n:,} jobs wait while all {slots:,} slots are taken: {busy:,} by {queue}, where {command} "
    "takes {took}": (
        "{n:,} trabajos esperan con las {slots:,} plazas ocupadas: {busy:,} por {queue}, donde "
        "{command} tarda {took}"
    ),
    "{n:,} jobs wait while all {slots:,} slots are taken: {busy:,} by {queue}, where {command} "
    "takes {took} (its effect {effect} {waited})": (
        "{n:,} trabajos esperan con las {slots:,} plazas ocupadas: {busy:,} por {queue}, donde "
        "{command} tarda {took} (su efecto {effect}, {waited})"
    ),
    "{queue} has {n:,} jobs to do, and no worker serves it": (
        "{queue} tiene {n:,} trabajos por hacer y ningún worker la atiende"
    ),
    "{queue} has one job to do, and no worker serves it": (
        "{queue} tiene un trabajo por hacer y ningún worker la atiende"
    ),
    "{queue} is {age} late": "{queue} lleva {age} de retraso",
    "{queue} is draining: it takes no new jobs": (
        "{queue} se está vaciando: no admite trabajos nuevos"
    ),
    "The worker {name} is alive, but says: {note}": "El worker {name} está vivo, pero dice: {note}",
    "{n:,} workers fell silent with jobs in hand; those are taken back": (
        "{n:,} workers callaron con trabajos en las manos; esos trabajos se recuperan"
    ),
    "A worker fell silent with jobs in hand; those are taken back": (
        "Un worker calló con trabajos en las manos; esos trabajos se recuperan"
    ),
    "{name} has failed {n:,} times in a row: {error}": (
        "{name} ha fallado {n:,} veces seguidas: {error}"
    ),
    "{name} has failed: {error}": "{name} ha fallado: {error}",
    "{name} has been silent since its last turn": "{name} calla desde su último turno",
    "{name} should have had its turn {age} ago": "A {name} le tocaba su turno hace {age}",
    # search and stories
    "Anything you remember of it": "Cualquier cosa que recuerdes",
    "A job's id, a key, a provider's event id, a confirmation code, a flow's key, or any text of 3 "
    "letters or more that is in a payload, a result or an error. It leads to the whole story.": (
        "El id de un trabajo, una clave, el id de evento de un proveedor, un código de "
        "confirmación, la clave de un flujo, o cualquier texto de 3 letras o más que esté en un "
        "contenido, un resultado o un error. Lleva a la historia entera."
    ),
    "stored in English:": "guardado en inglés:",
    "Began with": "Empezó con",
    "There is more than is shown: search for something rarer.": (
        "Hay más de lo que se muestra: busca algo menos común."
    ),
    "Nothing is known of it": "No se sabe nada de eso",
    "No job, thread, key, effect or delivery is called so, and no payload or result of the "
    "newest jobs contains it. What ended long ago may have been pruned.": (
        "Ningún trabajo, historia, clave, efecto o entrega se llama así, y ningún contenido ni "
        "resultado de los trabajos más nuevos lo contiene. Lo que terminó hace mucho "
        "puede estar podado."
    ),
    "still going": "en marcha",
    "{jobs} and {effects} in {took}": "{jobs} y {effects} en {took}",
    "begun by {deliveries}": "empezó con {deliveries}",
    "There is more than a story holds: this is the first part.": (
        "Hay más de lo que cabe en una historia: esta es la primera parte."
    ),
    "{method} {path}, answered {status}": "{method} {path}, respondida {status}",
    "Delivered again": "Entregada otra vez",
    "{n:,} times; the same answer, no new jobs": (
        "{n:,} veces; la misma respuesta, ningún trabajo nuevo"
    ),
    "once more; the same answer, no new jobs": (
        "una vez más; la misma respuesta, ningún trabajo nuevo"
    ),
    "with another body": "con otro cuerpo",
    "Jobs, each below its cause": "Trabajos, cada uno bajo su causa",
    # deliveries
    "ignored": "ignorada",
    "differs": "difiere",
    "Failed, the same mistakes together": "Fallidas, agrupadas por error",
    "Another body under a known key": "Otro cuerpo con una clave conocida",
    "Retry all after the fix…": "Reintentar todas tras corregirlo…",
    "Handle all of them…": "Procesarlas todas…",
    "Handle many deliveries": "Procesar muchas entregas",
    "Handling deliveries": "Procesando entregas",
    "Handle {deliveries}": "Procesar {deliveries}",
    "would be handled by today's code": "se procesarían con el código de hoy",
    "The oldest goes first. What fails again stays as it is, and stops none of the others.": (
        "Primero la más antigua. La que vuelva a fallar se queda como está y no detiene a las "
        "demás."
    ),
    "The oldest of them": "Las más antiguas",
    "The oldest key": "La clave más antigua",
    "Of the oldest {deliveries}; the effects of the others are not counted.": (
        "De las más antiguas ({deliveries}); los efectos de las demás no se cuentan."
    ),
    "They were handled since.": "Ya se procesaron.",
    "{n:,} failed again": "{n:,} volvieron a fallar",
    "{n:,} were skipped": "{n:,} se omitieron",
    "A job runs its function:": "Un trabajo ejecuta su función:",
    "attempt {n} of {all}": "intento {n} de {all}",
    "Its key came before with another body:": "Su clave ya llegó antes con otro cuerpo:",
    "It joined a job that had ended already:": "Se unió a un trabajo que ya había terminado:",
    "It joined a job that was in progress:": "Se unió a un trabajo que estaba en curso:",
    "Other bodies of its key": "Otros cuerpos con su clave",
    "{n:,} failed deliveries of {path}: {error}": "{n:,} entregas fallidas de {path}: {error}",
    "One failed delivery of {path}: {error}": "Una entrega fallida de {path}: {error}",
    "{n:,} deliveries of {path} came under a known key with another body": (
        "{n:,} entregas de {path} llegaron con una clave conocida y otro cuerpo"
    ),
    "One delivery of {path} came under a known key with another body": (
        "Una entrega de {path} llegó con una clave conocida y otro cuerpo"
    ),
    "Text in key, body or reason": "Texto en clave, cuerpo o motivo",
    "replay {n}": "repetición {n}",
    "No delivery is like that": "Ninguna entrega es así",
    "Calls that were not taken": "Llamadas no aceptadas",
    "Calls of the last week that reached a webhook, or nearly: {n:,}. Their caller is not "
    "verified, so no body, query or header value is kept.": (
        "Llamadas de la última semana que llegaron a un webhook, o casi: {n:,}. No se verificó "
        "quién llamaba, así que no se guarda cuerpo, query ni valor de cabecera."
    ),
    "Calls": "Llamadas",
    "Last call": "Última llamada",
    "further addresses": "otras direcciones",
    "{n:,} bytes": "{n:,} bytes",
    "the endpoint takes {expects}: choose that content type at the provider (some send a form "
    "unless told otherwise, as GitHub does), or list the one it sends in content_types=": (
        "el endpoint acepta {expects}: elige ese tipo de contenido en el proveedor (algunos envían "
        "un formulario si no se les dice otra cosa, como GitHub) o añade el que envía a "
        "content_types="
    ),
    "the body was compressed in a way that the endpoint does not take: accept_gzip=True takes "
    "gzip": (
        "el cuerpo venía comprimido de un modo que el endpoint no acepta: accept_gzip=True acepta "
        "gzip"
    ),
    "the endpoint takes {expects}: a person's browser or a scanner, unless the provider delivers "
    "otherwise; then say so in methods=": (
        "el endpoint acepta {expects}: es un navegador o un escáner, salvo que el proveedor "
        "entregue de otro modo; entonces indícalo en methods="
    ),
    "the endpoint takes bodies of up to {expects}: raise limit=, or let the provider send less": (
        "el endpoint acepta cuerpos de hasta {expects}: aumenta limit= o haz que el proveedor "
        "envíe menos"
    ),
    "neither Content-Length nor chunks: a proxy or the caller sends bodies without a length": (
        "sin Content-Length y sin chunks: un proxy o quien llama envía cuerpos sin longitud"
    ),
    "a GET with a body: the caller or a proxy changes the method": (
        "un GET con cuerpo: quien llama o un proxy cambia el método"
    ),
    "no HTTP as it should be: the caller or a proxy sends what can be read two ways": (
        "HTTP incorrecto: quien llama o un proxy envía algo que puede leerse de dos maneras"
    ),
    "the body is not the gzip that its head says: a proxy may have unpacked it": (
        "el cuerpo no es el gzip que anuncia: quizá un proxy lo descomprimió"
    ),
    "more fields in the query than an endpoint reads": (
        "más campos en la query de los que lee un endpoint"
    ),
    "the call did not arrive in time: a slow network, or a proxy that holds it back": (
        "la llamada no llegó a tiempo: una red lenta o un proxy que la retiene"
    ),
    "the URL is longer than 8,192 bytes": "la URL tiene más de 8.192 bytes",
    "the head has more than 65,536 bytes or 100 lines: a proxy may add some": (
        "la cabecera tiene más de 65.536 bytes o 100 líneas: quizá un proxy añade algunas"
    ),
    "the caller hung up before its body had come": "quien llamaba colgó antes de enviar el cuerpo",
    "the endpoint's challenge refused it: give the provider the token that your settings have": (
        "el challenge del endpoint la rechazó: da al proveedor el token de tu configuración"
    ),
    "the endpoint is {expects}: correct the URL at the provider, or the proxy that changes the "
    "path": ("el endpoint es {expects}: corrige la URL en el proveedor, o el proxy que la cambia"),
    "Every call of a provider is kept as it came, with what was answered and the jobs it caused; "
    "those refused are kept too, with the reason.": (
        "Cada llamada de un proveedor se guarda como llegó, con la respuesta y los trabajos que "
        "causó; las rechazadas también, con su motivo."
    ),
    "It came again under the same key, but with another body. The first one counts.": (
        "Llegó otra vez con la misma clave, pero con otro cuerpo. Cuenta la primera."
    ),
    "It joined a job that was there already, and its own, different payload was not used:": (
        "Se unió a un trabajo que ya existía y su contenido, distinto, no se usó:"
    ),
    "One newer command joined this job; its payload was not used.": (
        "Una orden posterior se unió a este trabajo; su contenido no se usó."
    ),
    "{n:,} newer commands joined this job; their payloads were not used.": (
        "{n:,} órdenes posteriores se unieron a este trabajo; su contenido no se usó."
    ),
    "It ran so long ago that what it enqueued then may not be known any more: a retry may enqueue "
    "it once again.": (
        "Se ejecutó hace tanto que quizá ya no se recuerde lo que encoló entonces: un reintento "
        "podría encolarlo otra vez."
    ),
    "{n:,} ran so long ago that what they enqueued then may not be known any more, and may be "
    "enqueued once again": (
        "{n:,} se ejecutaron hace tanto que quizá ya no se recuerde lo que encolaron entonces, y "
        "podrían encolarlo otra vez"
    ),
    "Joined by its key": "Unidas por su clave",
    "payload not used": "contenido sin usar",
    "joined job": "se unió al trabajo",
    "replaced by {id}": "sustituido por {id}",
    "Nothing is stored yet. Taken again by today's code, it would be answered {status} and enqueue "
    "{jobs}:": (
        "Aún no se guarda nada. Tomada otra vez por el código de hoy, se respondería {status} y se "
        "encolaría lo siguiente, {jobs}:"
    ),
    "A job whose unique key is known already is not made again.": (
        "Un trabajo cuya clave única ya se conoce no se crea de nuevo."
    ),
    "Replay it": "Repetirla",
    "Leave it": "Dejarla",
    "Run again…": "Ejecutar otra vez…",
    "Run it again": "Ejecutarlo otra vez",
    "run again": "ejecutar otra vez",
    "This job runs its command again.": "Este trabajo ejecuta su orden otra vez.",
    "A new job with the same payload, without the key, makes every effect of its own. To go on "
    "where this job failed, retry it.": (
        "Un trabajo nuevo con el mismo contenido, sin la clave, repite todos los efectos. Para "
        "continuar donde este trabajo falló, reinténtelo."
    ),
    "This job has made these effects, which would happen a second time:": (
        "Este trabajo ya produjo estos efectos, que ocurrirían por segunda vez:"
    ),
    "See what a replay would do…": "Ver qué haría una repetición…",
    "It would be taken again as if it had just come; the preview stores nothing.": (
        "Se tomaría otra vez como recién llegada; la vista previa no guarda nada."
    ),
    "Make these {effects} once more, too": "Repetir también: {effects}",
    "Today's code orders a job with another payload than before, which does not find these "
    "effects. A replay is refused unless you ask for it.": (
        "El código de hoy encarga un trabajo con otros datos que antes, que no encuentra estos "
        "efectos. Sin pedirlo, no se deja entrar otra vez."
    ),
    "Confirmed already, and not made again unless you ask for it; then each happens twice:": (
        "Ya confirmados, y no se repiten si no lo pides; entonces cada uno ocurre dos veces:"
    ),
    "Confirmed": "Confirmado",
    "Handle many…": "Tratar muchas…",
    "Received from (UTC)": "Recibidas desde (UTC)",
    "Received before (UTC)": "Recibidas antes de (UTC)",
    "Text in the error": "Texto en el error",
    "At most, such as 5/s": "Como mucho, por ejemplo 5/s",
    "It was let in again, and {jobs} came of it.": "Se dejó entrar otra vez, y salió: {jobs}.",
    "none were kept": "no se guardó ninguna",
    "cannot be read: its row was damaged": "no se puede leer: su fila está dañada",
    "(empty)": "(vacía)",
    "Jobs that came of it": "Trabajos que salieron de ella",
    # queues
    "No queue has had a job yet": "Ninguna cola ha tenido trabajos aún",
    "A queue appears with its first job: its counts, the age of its oldest job, and whether "
    "anybody serves it.": (
        "Una cola aparece con su primer trabajo: sus cuentas, la edad del más antiguo y si alguien "
        "la atiende."
    ),
    "served by {workers}": "atendida por {workers}",
    "no worker serves it: start one with": "ningún worker la atiende: arranca uno con",
    "its oldest job was ordered {age} ago": "su trabajo más antiguo se encargó hace {age}",
    "the first job that is due is {age} late": "el primero que toca lleva {age} de retraso",
    "Drain": "Vaciar",
    "A draining queue refuses new jobs. Go on?": (
        "Una cola que se vacía rechaza trabajos nuevos. ¿Seguir?"
    ),
    "Paused: takes jobs in, gives none out. Draining: gives out, takes none in.": (
        "En pausa: admite trabajos y no entrega. Vaciándose: entrega y no admite."
    ),
    "Who takes from it": "Quién toma de ella",
    "At once": "A la vez",
    "Newest jobs": "Trabajos más nuevos",
    "All jobs of this queue": "Todos los trabajos de esta cola",
    "It has no jobs": "No tiene trabajos",
    "What is enqueued here appears at once.": "Lo que se encole aquí aparece al momento.",
    "{queue} is paused: it takes jobs in and gives none out.": (
        "{queue} está en pausa: admite trabajos y no entrega ninguno."
    ),
    "{queue} is draining: it takes no new jobs.": (
        "{queue} se está vaciando: no admite trabajos nuevos."
    ),
    "{queue} is open.": "{queue} está abierta.",
    # jobs
    "Text in payload, key or error": "Texto en contenido, clave o error",
    "{jobs} on this page": "{jobs} en esta página",
    "more than {jobs}": "más de {jobs}",
    "Retry all of them…": "Reintentar todos…",
    "Discard all of them…": "Descartar todos…",
    "With those ticked:": "Con los marcados:",
    "None among the jobs looked through so far": "Ninguno entre los trabajos mirados hasta ahora",
    "There are no more": "No hay más",
    "No job is like that": "Ningún trabajo es así",
    "Jobs that match appear here, newest first; done ones are kept for a week unless their class "
    "says otherwise.": (
        "Los trabajos que coinciden aparecen aquí, el más nuevo primero; los hechos se guardan una "
        "semana si su clase no dice otra cosa."
    ),
    "End this job for good?": "¿Terminar este trabajo para siempre?",
    "It is held: what it did outside may have happened.": (
        "Está retenido: lo que hizo fuera puede haber ocurrido."
    ),
    "Decide about {name}": "Decidir sobre {name}",
    "It waits behind a breaker:": "Espera tras un disyuntor:",
    "No worker here knows this command: deploy the code that does.": (
        "Ningún worker conoce este mensaje: despliega el código que lo conoce."
    ),
    "Lease until": "Prestado hasta",
    "All dead letters of this mistake": "Todas las cartas muertas de este fallo",
    "Waits for a free worker": "Espera a un worker libre",
    "In its flow": "En su flujo",
    "It waits for": "Espera a",
    "Wait for it": "Lo esperan",
    "then retry it": "y reintentarlo después",
    "The job is ready again.": "El trabajo vuelve a estar listo.",
    "The job is cancelled.": "El trabajo está cancelado.",
    "The job is put aside.": "El trabajo queda apartado.",
    "Nothing was changed: the job is {state}.": "No se cambió nada: el trabajo está {state}.",
    "The job is changed.": "El trabajo está cambiado.",
    "The job is changed and ready again.": "El trabajo está cambiado y vuelve a estar listo.",
    "The job is changed, but cannot be retried as it is.": (
        "El trabajo está cambiado, pero así no puede reintentarse."
    ),
    "The edit is taken back.": "El cambio se ha deshecho.",
    "Changed by {who}: {fields}": "Cambiado por {who}: {fields}",
    "its command is not known here: write the payload unchecked": (
        "aquí no se conoce su comando: guardar el contenido sin comprobarlo"
    ),
    "About": "Sobre",
    "Others that contain it": "Otras que lo contienen",
    "One other contains it": "Otra lo contiene",
    "{n:,} others contain it": "Otras {n:,} lo contienen",
    "Only the newest jobs, deliveries and effects were looked through.": (
        "Solo se revisaron los trabajos, entregas y efectos más recientes."
    ),
    "Cancel many jobs": "Cancelar muchos trabajos",
    "would be cancelled": "se cancelarían",
    "Cancel all of them": "Cancelarlos todos",
    "Cancel all of them…": "Cancelarlos todos…",
    "Cancel {jobs}": "Cancelar {jobs}",
    "Cancelling": "Cancelando",
    "At most so many": "Tantos a lo sumo",
    "from": "desde",
    "before": "antes de",
    "Ended or enqueued from (UTC)": "Terminados o encolados desde (UTC)",
    "Ended or enqueued before (UTC)": "Terminados o encolados antes de (UTC)",
    "Person": "Persona",
    "Verb": "Acción",
    "From (UTC)": "Desde (UTC)",
    "stop": "paró",
    "set queue": "cambio de una cola",
    "unset queue": "cambio de una cola, retirado",
    "set lane": "cambio de un carril",
    "unset lane": "cambio de un carril, retirado",
    "set breaker": "cambio de un disyuntor",
    "unset breaker": "cambio de un disyuntor, retirado",
    "retry many": "reintento de muchos",
    "cancel many": "cancelación de muchos",
    "discard many": "descarte de muchos",
    "Undo this edit": "Deshacer este cambio",
    "No job was chosen.": "No se eligió ningún trabajo.",
    # dead letters and many jobs
    "{letters}, the same mistakes together": "{letters}, los mismos fallos juntos",
    "No dead letters": "No hay cartas muertas",
    "A job that has used up its attempts, or was refused for good, appears here, grouped by its "
    "mistake. Mend the cause, then retry the group: first a few as canaries, then the rest, as "
    "fast as you like.": (
        "Un trabajo que ha gastado sus intentos, o fue rechazado del todo, aparece aquí agrupado "
        "por su fallo. Arregla la causa y reintenta el grupo: primero unos pocos como canarios, "
        "luego el resto, tan rápido como quieras."
    ),
    "One mistake": "Un fallo",
    "No dead letter has this fingerprint": "Ninguna carta muerta tiene esta huella",
    "They were retried or discarded since.": "Se reintentaron o descartaron desde entonces.",
    "Retry many jobs": "Reintentar muchos trabajos",
    "Discard many jobs": "Descartar muchos trabajos",
    "Canaries: so many go first, and the rest follows only when all of them ended well": (
        "Canarios: tantos van primero, y el resto solo sigue si todos terminan bien"
    ),
    "No faster than": "No más rápido que",
    "would be retried": "se reintentarían",
    "would be discarded": "se descartarían",
    "Retry {jobs}": "Reintentar {jobs}",
    "Discard {jobs}": "Descartar {jobs}",
    "of {jobs}": "de {jobs}",
    "Retry all of them": "Reintentar todos",
    "Discard all of them": "Descartar todos",
    "Look at them first": "Mirarlos antes",
    "The newest of them": "Los más nuevos",
    "Retrying": "Reintentando",
    "Discarding": "Descartando",
    "discard": "descartar",
    "What was changed stays changed.": "Lo cambiado, cambiado queda.",
    "{n:,} were in no state for it, or a younger job has the key": (
        "{n:,} no estaban en estado para ello, o uno más joven tiene la clave"
    ),
    "begun by {who}": "empezado por {who}",
    "canary {id} is {state} again: {why}": "el canario {id} está {state} otra vez: {why}",
    "canary {id} is {state} again": "el canario {id} está {state} otra vez",
    # flows
    "No flow among the newest jobs": "Ningún flujo entre los trabajos más nuevos",
    "A flow is commands that wait for commands. Started, it appears here, and its page draws it "
    "with the reason each node waits.": (
        "Un flujo son órdenes que esperan a otras. Al arrancar aparece aquí, y su página lo dibuja "
        "con el motivo por el que espera cada nodo."
    ),
    "Look among older jobs": "Buscar entre trabajos más viejos",
    "Retry what failed": "Reintentar lo que falló",
    "Cancel the flow": "Cancelar el flujo",
    "End every node that has not ended?": "¿Terminar todo nodo que no haya terminado?",
    "The flow as a graph": "El flujo como grafo",
    "A job with their key was there already: its end and its result are theirs, too.": (
        "Ya había un trabajo con su clave: su final y su resultado valen también para ellos."
    ),
    "A node runs when everything to its left that it is tied to has ended; a dashed line may "
    "fail.": (
        "Un nodo arranca cuando termina todo lo que tiene atado a su izquierda; lo que va con "
        "línea discontinua puede fallar."
    ),
    "{n:,} nodes are not drawn.": "{n:,} nodos no están dibujados.",
    "It has more nodes than are shown here.": "Tiene más nodos de los que se muestran.",
    "What waits, and why": "Qué espera, y por qué",
    "Every node ended well.": "Todos los nodos terminaron bien.",
    # groups of jobs
    "Group": "Grupo",
    "Takes members": "Admite miembros",
    "Members": "Miembros",
    "Not ended": "Sin terminar",
    "How they ended": "Cómo terminaron",
    "Opened": "Abierto",
    "opened": "abierto",
    "closed": "cerrado",
    "from anywhere": "de cualquiera",
    "only from its own members": "solo de sus propios miembros",
    "no more: it is being cancelled": "ninguno más: se está cancelando",
    "{n:,} members": "{n:,} miembros",
    "{n:,} not ended": "{n:,} sin terminar",
    "How much has ended": "Cuánto ha terminado",
    "When all have ended:": "Cuando todos terminen:",
    "No group of jobs yet": "Aún no hay grupos de trabajos",
    "A group runs one more job when it is closed and all of its members have ended.": (
        "Un grupo ejecuta un trabajo más cuando está cerrado y todos sus miembros han terminado."
    ),
    "Cancel the group": "Cancelar el grupo",
    "End every member that has not ended, and the job that waits for them?": (
        "¿Terminar cada miembro que no ha terminado, y el trabajo que los espera?"
    ),
    "{n:,} jobs were cancelled.": "Se cancelaron {n:,} trabajos.",
    # why a node waits, as the desk says it
    "runs on {worker}, attempt {n} of {all}": "corre en {worker}, intento {n} de {all}",
    "its queue is paused": "su cola está en pausa",
    "no worker serves its queue": "ningún worker atiende su cola",
    "waits for a free worker": "espera a un worker libre",
    "attempt {n} of {all} failed ({failure}); due": (
        "falló el intento {n} de {all} ({failure}); le toca"
    ),
    "due": "le toca",
    "the breaker '{name}' is open": "el disyuntor '{name}' está abierto",
    "no worker here knows the command": "ningún worker conoce la orden",
    "the code does not fit its payload": "el código no encaja con su contenido",
    "deploy code that reads it, see {verb}": "despliega código que lo lea, mira {verb}",
    "its effect may have happened": "su efecto puede haber ocurrido",
    "was cancelled": "fue cancelado",
    "it died": "murió",
    "waits for {n} of the {all} it needs": "espera a {n} de los {all} que necesita",
    "ended because of what it needs": "terminó por culpa de lo que necesita",
    "mend the cause, then {verb}": "arregla la causa, y luego {verb}",
    "start {verb}": "arranca {verb}",
    "deploy the code that knows it": "despliega el código que la conoce",
    "nothing: those that waited for it have gone on without it": (
        "nada: quienes lo esperaban siguieron sin él"
    ),
    "{verb}, then confirm or deny": "{verb}, y luego confirma o niega",
    # events
    "Events": "Eventos",
    "Event": "Evento",
    "Subscribers": "Suscriptores",
    "Subscriber": "Suscriptor",
    "Waiting": "En espera",
    "Lag": "Retraso",
    "Dead": "Muertos",
    "no worker": "sin worker",
    "Unsubscribe": "Dar de baja",
    "unsubscribe": "baja de suscriptor",
    "Published": "Publicado",
    "Thread": "Hilo",
    "still gets what was published before": "aún recibe lo publicado antes",
    "No listener is registered": "Ningún oyente está registrado",
    "A worker registers the listeners that it serves when it starts. From then on they get every "
    "event of that name, whichever program publishes it.": (
        "Un worker registra al arrancar los oyentes que atiende. Desde entonces reciben cada "
        "evento de ese nombre, sea cual sea el programa que lo publique."
    ),
    "not given": "sin entregar",
    "not given, or pruned": "sin entregar, o ya borrado",
    "not yet given on": "aún sin repartir",
    "given to its subscribers": "repartido a sus suscriptores",
    "No event is kept.": "No se guarda ningún evento.",
    "{name} gets no {event} any more.": "{name} ya no recibe {event}.",
    # breakers
    "Jobs behind it": "Trabajos detrás",
    "Next try": "Próximo intento",
    "Last turn": "Último giro",
    "Close it": "Cerrarlo",
    "No breaker was ever troubled": "Ningún disyuntor ha tenido problemas",
    "When a provider keeps failing, its breaker opens: its jobs wait here without spending "
    "attempts, one probes now and then, and when it works they go on.": (
        "Cuando un proveedor falla una y otra vez, su disyuntor se abre: sus trabajos esperan sin "
        "gastar intentos, uno prueba de vez en cuando, y cuando funciona todos siguen."
    ),
    "Open: its jobs wait. Probe: one tries now. Close: all go on, spread over time.": (
        "Abierto: sus trabajos esperan. Probar: uno lo intenta ya. Cerrar: siguen todos, "
        "repartidos en el tiempo."
    ),
    "Failures in a row": "Fallos seguidos",
    "Cool-down": "Enfriamiento",
    "Probing job": "Trabajo que prueba",
    "implied": "implícito",
    "Its commands have no breaker=": "Sus comandos no tienen breaker=",
    "Its turns": "Sus giros",
    "The breaker is open: its jobs wait.": "El disyuntor está abierto: sus trabajos esperan.",
    "The breaker is closed, and what it held back goes on.": (
        "El disyuntor está cerrado, y lo que retenía sigue."
    ),
    "One job tries now; the breaker is {state}.": (
        "Un trabajo lo intenta ya; el disyuntor está {state}."
    ),
    # pollers and schedules
    "Pollers": "Sondeos",
    "Next turn": "Próximo turno",
    "Last good turn": "Último turno bueno",
    "Cursor or last error": "Cursor o último error",
    "failing": "falla",
    "{n:,} items put aside are dead letters now": "{n:,} elementos apartados son cartas muertas",
    "No poller yet": "Ningún sondeo aún",
    "A poller asks a provider again and again, with one runner per key in the whole fleet. Its "
    "keys appear when a worker starts.": (
        "Un sondeo pregunta a un proveedor una y otra vez, con un solo ejecutor por clave en toda "
        "la flota. Sus claves aparecen cuando arranca un worker."
    ),
    "Next tick": "Próxima vez",
    "Last looked": "Última mirada",
    "No schedule yet": "Ningún horario aún",
    "A schedule orders commands on a timetable, each tick once however many processes run. It "
    "appears when a worker starts.": (
        "Un horario encarga órdenes a sus horas, y cada hora una sola vez por muchos procesos que "
        "haya. Aparece cuando arranca un worker."
    ),
    "{name} is paused.": "{name} está en pausa.",
    "{name} is on again.": "{name} vuelve a estar en marcha.",
    "{name} takes its turn now.": "{name} toma su turno ya.",
    # changes
    "Changed while running": "Cambiado en marcha",
    "until it is taken back": "hasta que se retire",
    "Take back": "Retirar",
    "Change": "Cambiar",
    "Change the queue": "Cambiar la cola",
    "Limit or pause the lane": "Limitar o pausar el carril",
    "Cancel the lane": "Cancelar el carril",
    "This ends every job of the lane. Go on?": (
        "Esto termina todos los trabajos del carril. ¿Seguir?"
    ),
    "A lane without a number at “At once” is paused. Workers with jobs hear of a change within "
    "five seconds, idle ones within two minutes.": (
        "Un carril sin número en «A la vez» queda en pausa. Los workers con trabajos se enteran de "
        "un cambio en cinco segundos; los desocupados, en dos minutos."
    ),
    "What the code says holds again.": "Vuelve a valer lo que dice el código.",
    "{n:,} jobs are cancelled.": "{n:,} trabajos cancelados.",
    "Slots of each worker": "Plazas de cada worker",
    "For how long": "Por cuánto tiempo",
    "Slow from": "Lento desde",
    "{n:,} slow": "{n:,} lentos",
    "ends": "acaba",
    "How long it takes": "Cuánto tarda",
    "Command or effect": "Orden o efecto",
    "Median": "Mediana",
    "Rate": "Ritmo",
    "Running": "En curso",
    "Longest": "El más largo",
    # workers
    "Last sign": "Última señal",
    "blocked": "bloqueado",
    "gone": "muerto",
    "Threads": "Hilos",
    "Memory": "Memoria",
    "CPU": "CPU",
    "Loop lag": "Demora del bucle",
    "Slowest": "Lo más lento",
    "{n:,} child processes": "{n:,} procesos hijos",
    "{n:,} overdue": "{n:,} con retraso",
    "Processes of {n:,} versions of relevo work here: {versions}": (
        "Aquí trabajan procesos de {n:,} versiones de relevo: {versions}"
    ),
    "Its plain function runs past its time limit: it keeps the job, and what it returns counts.": (
        "Su función sin async pasa de su límite de tiempo: conserva el trabajo, y lo que devuelva "
        "cuenta."
    ),
    "{n:,} plain functions of the worker {name} run past their time limits": (
        "{n:,} funciones sin async del worker {name} pasan de su límite de tiempo"
    ),
    "A plain function of the worker {name} runs past its time limit": (
        "Una función sin async del worker {name} pasa de su límite de tiempo"
    ),
    "Busy: jobs it has taken, those that have not begun included. Overdue: plain functions that "
    "run past their time limits; they keep their jobs. CPU: of one core, since its last sign. "
    "Loop lag: how long its event loop answered nobody, at worst since then. Blocked: alive, but "
    "its event loop does not answer. Silent: no sign of life within its time, or since its jobs "
    "were taken back. Gone: its process is dead, and its jobs were taken back. Those gone "
    "for a day are forgotten.": (
        "Ocupado: los trabajos que ha tomado, también los que no han empezado. Con retraso: "
        "funciones sin async que pasan de su límite de tiempo; conservan sus trabajos. CPU: "
        "de un núcleo, desde su última señal. Demora del bucle: cuánto tardó su bucle de eventos "
        "en responder, como mucho, desde entonces. Bloqueado: vivo, "
        "pero su bucle de eventos no responde. Callado: sin señal de vida a tiempo, o desde que se "
        "recuperaron sus trabajos. Muerto: su proceso ha terminado y sus trabajos se recuperaron. "
        "Los idos hace un día se olvidan."
    ),
    "Forget": "Olvidar",
    "The worker is forgotten.": "El worker se ha olvidado.",
    "No worker was here within the last day": "Ningún worker pasó por aquí en el último día",
    "A worker takes jobs from queues and shows here that it is alive. Without one, jobs are kept "
    "safely and wait.": (
        "Un worker toma trabajos de las colas y muestra aquí que está vivo. Sin ninguno, los "
        "trabajos quedan a salvo y esperan."
    ),
    # effects
    "Key given to the provider": "Clave dada al proveedor",
    "Text in key or result": "Texto en clave o resultado",
    "decided by {who}": "decidido por {who}",
    "Decide": "Decidir",
    "For a person to decide": "Para que decida una persona",
    "These may have happened or not. Look at the provider, then say so: the job goes on from "
    "there.": (
        "Pueden haber ocurrido o no. Míralo en el proveedor y dilo: el trabajo sigue desde ahí."
    ),
    "All others": "Todos los demás",
    "No effect is like that": "Ningún efecto es así",
    "Every call that must happen once is written down before it is made, and how it ended after. "
    "What may have happened waits here for a person.": (
        "Cada llamada que debe ocurrir una sola vez se apunta antes de hacerla, y después cómo "
        "terminó. Lo que puede haber ocurrido espera aquí a una persona."
    ),
    "Last news": "Última noticia",
    "Decided by": "Decidido por",
    "It did happen": "Sí ocurrió",
    "Write down what came of it; the job goes on as if the call had just answered so.": (
        "Apunta qué salió de ello; el trabajo sigue como si la llamada acabara de responder eso."
    ),
    "Code or text": "Código o texto",
    "or the result in JSON": "o el resultado en JSON",
    "how do you know?": "¿cómo lo sabes?",
    "It happened": "Ocurrió",
    "It did not happen": "No ocurrió",
    "even if the call's type or earlier results say otherwise": (
        "aunque el tipo de la llamada o resultados anteriores digan otra cosa"
    ),
    "with another key: the provider repeats its answer to this one": (
        "con otra clave: el proveedor repite su respuesta a esta"
    ),
    "The job goes on and asks for it again with the same key.": (
        "El trabajo sigue y lo pide otra vez con la misma clave."
    ),
    "It will be asked for again. Are you sure that it did not happen?": (
        "Se pedirá otra vez. ¿Seguro que no ocurrió?"
    ),
    "There is nothing to decide: its end is known, or its job is running.": (
        "No hay nada que decidir: se sabe cómo terminó, o su trabajo está en curso."
    ),
    "It is written down, and the job goes on.": "Queda apuntado, y el trabajo sigue.",
    "It is written down, but the job cannot be retried as it is.": (
        "Queda apuntado, pero el trabajo no puede reintentarse así."
    ),
    "It is written down.": "Queda apuntado.",
    # usage and audit
    "Store commands a day": "Comandos al almacén por día",
    "Commands a day": "Comandos por día",
    "idle workers": "workers ociosos",
    "pollers": "sondeos",
    "This process has sent {n:,} commands since it began.": (
        "Este proceso ha enviado {n:,} comandos desde que empezó."
    ),
    "Outbox": "Buzón de salida",
    "{n:,} letters wait to be carried to the store, the oldest for {age}.": (
        "{n:,} cartas esperan a que se las lleve al almacén, la más antigua desde hace {age}."
    ),
    "There may be more than {n:,}.": "Puede haber más de {n:,}.",
    "Every letter has been carried to the store.": "Todas las cartas están ya en el almacén.",
    "What happened in this process": "Qué ha pasado en este proceso",
    "Of {budget:,} commands a day, {left:,} jobs a day are left room for.": (
        "De {budget:,} comandos por día queda sitio para {left:,} trabajos por día."
    ),
    "No budget is set. If your store is billed by the command, set one and workers sleep longer:": (
        "No hay presupuesto. Si tu almacén cobra por comando, pon uno y los workers dormirán más:"
    ),
    "This store does not bill by the command, so nothing is counted. On Redis, the commands of "
    "idle workers and of pollers stand here against RELEVO_BUDGET.": (
        "Este almacén no cobra por comando, así que no se cuenta nada. En Redis, aquí están los "
        "comandos de workers ociosos y sondeos frente a RELEVO_BUDGET."
    ),
    "What the store says of itself": "Lo que el almacén dice de sí",
    "Nothing is wrong.": "No hay nada mal.",
    "A job's id, a queue or a breaker": "El id de un trabajo, una cola o un disyuntor",
    "Name a job or a queue of yours to see what people did to it.": (
        "Nombra un trabajo o una cola tuya para ver qué le hicieron las personas."
    ),
    "Nobody did anything yet": "Nadie ha hecho nada aún",
    "Every retry, cancel, edit, pause and decision is written down in the same step: who, when, to "
    "what, and why.": (
        "Cada reintento, cancelación, edición, pausa y decisión queda apuntada en el mismo paso: "
        "quién, cuándo, a qué y por qué."
    ),
    "about {n}": "unos {n}",
    # what the stores and the audit say
    "cancel": "cancelación",
    "edit": "edición",
    "pause": "pausa",
    "resume": "reanudación",
    "drain": "vaciado",
    "replay": "repetición",
    "replay many": "repetición de muchas",
    "forget": "olvido",
    "mark restored": "marca de restauración",
    "end restore": "fin de la restauración",
    "forget worker": "olvido de worker",
    "confirm": "confirmación",
    "deny": "negación",
    "run": "turno",
    "breaker open": "disyuntor abierto",
    "breaker close": "disyuntor cerrado",
    "breaker probe": "disyuntor probado",
    "add person": "persona añadida",
    "remove person": "persona quitada",
    "change password": "contraseña cambiada",
    "log in": "inicio de sesión",
    "login refused": "inicio de sesión rechazado",
    "login held back": "inicio de sesión frenado",
    "use token": "uso de token",
    "token refused": "token rechazado",
    "add token": "token añadido",
    "remove token": "token quitado",
    "ok": "bien",
    "warning": "aviso",
    "error": "error",
    "durability": "durabilidad",
    "file modes": "permisos del archivo",
    "disk space": "espacio en disco",
    "write-ahead log": "registro de escritura (WAL)",
    "file system": "sistema de archivos",
    "clock": "reloj",
    "version": "versión",
    "read-only": "solo lectura",
    "oldest transaction": "transacción más antigua",
    "connections": "conexiones",
    "bloat": "filas muertas",
    "seal": "sello",
    "settled": "terminados",
    "snooze": "aplazado",
    "rescued": "recuperados",
    "trouble": "apuros",
    "lease lost": "arriendo perdido",
    "delivery taken": "entregas aceptadas",
    "delivery repeated": "entregas repetidas",
    "delivery forged": "entregas falsificadas",
    "delivery wrong time": "entregas firmadas a otra hora",
    "delivery unreadable": "entregas ilegibles",
    "delivery failed": "entregas falladas",
    "delivery busy": "entregas aplazadas",
    "{n} of {all} canaries have not ended in time; the first is {id}, {state}": (
        "{n} de {all} canarios no han terminado a tiempo; el primero es {id}, {state}"
    ),
    "every commit reaches the disk before it is answered": (
        "cada confirmación llega al disco antes de responderse"
    ),
    "only its owner may read the database": "solo su dueño puede leer la base de datos",
    "others may read the jobs: {advice}": "otros pueden leer los trabajos: {advice}",
    "{n} MiB are free": "{n} MiB libres",
    "{n} MiB are free: free some before jobs are refused": (
        "{n} MiB libres: libera espacio antes de que se rechacen trabajos"
    ),
    "this process agrees with the file's clock": ("este proceso coincide con el reloj del archivo"),
    "durable and not full": "duradero y no lleno",
    "the server takes writes": "el servidor acepta escrituras",
    "the oldest open transaction is {n} s old": ("la transacción abierta más antigua tiene {n} s"),
    "{n} of {all} connections are taken": "{n} de {all} conexiones ocupadas",
    "the jobs table has {n} live and {dead} dead rows in {size} MB": (
        "la tabla de trabajos tiene {n} filas vivas y {dead} muertas en {size} MB"
    ),
    "what jobs and deliveries carry is sealed; keys, errors and names are not": (
        "lo que llevan trabajos y entregas está sellado; claves, errores y nombres no"
    ),
    # keys
    "Keys": "Teclas",
    "Freeze or follow": "Congelar o seguir",
    "This list": "Esta lista",
}
