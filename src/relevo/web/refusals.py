"""The Spanish of why a page did not do what it was asked, as the engine itself words it.

Errors are raised in English, filled in, for every program and terminal; pages say them again. What
a database or Python says stays as it is.
"""

from __future__ import annotations

from typing import Final

REFUSALS: Final[dict[str, str]] = {
    # who asks, and how
    "this is not the host you asked for: RELEVO_ALLOWED_HOSTS lists its names": (
        "este no es el servidor que pediste: RELEVO_ALLOWED_HOSTS enumera sus nombres"
    ),
    "too many requests from there: wait a minute": (
        "demasiadas peticiones desde ahí: espera un minuto"
    ),
    "the query has more than {n} bytes": "la consulta tiene más de {n} bytes",
    "the query has more than {n} parameters": "la consulta tiene más de {n} parámetros",
    "the token is not one of ours, or not any more": "el token no es de los nuestros, o ya no vale",
    "Your session has ended, and nothing was done: log in and try again.": (
        "Tu sesión ha terminado y no se hizo nada: entra e inténtalo otra vez."
    ),
    "send a form: {type}": "envía un formulario: {type}",
    "the form has more than {n} fields": "el formulario tiene más de {n} campos",
    "this was sent by a page of someone else": "esto lo envió una página ajena",
    "This form is too old, or came from elsewhere: load the page again.": (
        "Este formulario es demasiado antiguo o viene de otro sitio: vuelve a cargar la página."
    ),
    "the body was cut off": "el cuerpo llegó cortado",
    "the body has more than {n} bytes": "el cuerpo tiene más de {n} bytes",
    "There is no such page.": "Esa página no existe.",
    "This page does not take that.": "Esta página no acepta eso.",
    "The mistake was written to the log.": "El error ha quedado en el registro.",
    "{name} is {role}; this is for {needed}": "{name} es {role}; esto es para {needed}",
    "{name} is {role}; '{action}' needs the role {needed}": (
        "{name} es {role}; '{action}' necesita el papel de {needed}"
    ),
    "this is for {needed}": "esto es para {needed}",
    # what is not there
    "no job has the id {id}: it may be past its keeping time, or in another store": (
        "ningún trabajo tiene el id {id}: puede que ya no se guarde, o que esté en otro almacén"
    ),
    "{id} is not {what}, which has 32 hexadecimal digits; {how}": (
        "{id} no es {what}, que tiene 32 cifras hexadecimales; {how}"
    ),
    "a job id": "el id de un trabajo",
    "`relevo trace` finds jobs by anything else": (
        "`relevo trace` encuentra trabajos por cualquier otra cosa"
    ),
    "a delivery's id": "el id de una entrega",
    "see `relevo deliveries ls`": "mira `relevo deliveries ls`",
    "no delivery has the id {id}: it may be past its keeping time": (
        "ninguna entrega tiene el id {id}: puede que ya no se guarde"
    ),
    "no queue is called {name}": "ninguna cola se llama {name}",
    "no flow is called {name}: give its id, the id of one of its jobs, or its key": (
        "ningún flujo se llama {name}: da su id, el de uno de sus trabajos, o su clave"
    ),
    "no group is called {name}: give its name, or the id of the job that waits for its members": (
        "ningún grupo se llama {name}: da su nombre, o el id del trabajo que espera a sus miembros"
    ),
    "the group {name} waits no more: its job is {state}, see `relevo jobs show {id}`": (
        "el grupo {name} ya no espera: su trabajo está {state}, mira `relevo jobs show {id}`"
    ),
    "job {id} is {state}: it has not ended, and runs by itself": (
        "el trabajo {id} está {state}: no ha terminado, y se ejecuta solo"
    ),
    "job {id} {why}: it cannot be run again by itself": (
        "el trabajo {id} {why}: no se puede volver a ejecutar por sí solo"
    ),
    "belongs to a flow": "es de un flujo",
    "is sealed, and no key opens it": "está sellado, y ninguna clave lo abre",
    "job {id} has made {names}, which a new job would make a second time: ask for that "
    "explicitly (repeat_effects), or retry the job, which repeats no effect": (
        "el trabajo {id} ha hecho {names}, y un trabajo nuevo lo haría otra vez: pídelo "
        "expresamente (repeat_effects), o reintenta el trabajo, que no repite ningún efecto"
    ),
    "{names} seems to be alive: stop every worker first, or their runs do not see the mark. If "
    "they are none of this store's, and the copy is that young: --force": (
        "{names} parece estar vivo: detén antes todos los workers, o sus ejecuciones no verán la "
        "marca. Si no son de este almacén, y la copia es así de reciente: --force"
    ),
    "a restore is over for all apps at once: ask a person who may see them all": (
        "una restauración termina para todas las apps a la vez: pídelo a quien pueda verlas todas"
    ),
    "the store is not marked as restored": "el almacén no está marcado como restaurado",
    "the store is not marked as restored: if it is a copy, stop every process, and `relevo "
    "database mark-restored`": (
        "el almacén no está marcado como restaurado: si es una copia, detén todos los procesos y "
        "`relevo database mark-restored`"
    ),
    "job {id} is in no flow": "el trabajo {id} no está en ningún flujo",
    "the flow {id} has no node {name}": "el flujo {id} no tiene ningún nodo {name}",
    "{n} flows have the key {key}; say which: {names}": (
        "{n} flujos tienen la clave {key}; di cuál: {names}"
    ),
    "job {id} has no effect called {name}; it has none at all": (
        "el trabajo {id} no tiene ningún efecto {name}; no tiene ninguno"
    ),
    "job {id} has no effect called {name}; it has {names}": (
        "el trabajo {id} no tiene ningún efecto {name}; tiene {names}"
    ),
    "no breaker {name} was ever troubled; those that were: `relevo breakers ls`": (
        "ningún disyuntor {name} ha tenido fallos; los que sí: `relevo breakers ls`"
    ),
    "no breaker {name} was ever troubled": "ningún disyuntor {name} ha tenido fallos",
    "no breaker {name} has ever been troubled": "ningún disyuntor {name} ha tenido fallos",
    "no {what} is called {name}; those that are known: `relevo {verbs} ls`": (
        "ningún {what} se llama {name}; los conocidos: `relevo {verbs} ls`"
    ),
    "poller": "sondeo",
    "schedule": "horario",
    "name a job or a queue of yours to see what people did to it": (
        "nombra un trabajo o una cola tuya para ver qué le hicieron las personas"
    ),
    "nothing is known of {text}: nothing is called so, and none of the newest jobs, deliveries and "
    "effects, which were looked through, contains it": (
        "no se sabe nada de {text}: nada se llama así, y no lo contiene ninguno de los trabajos, "
        "entregas y efectos más recientes, que son los que se revisaron"
    ),
    "nothing is known of {text}: no job, delivery, thread, key or effect is called so, and no "
    "payload or result contains it": (
        "no se sabe nada de {text}: ningún trabajo, entrega, historia, clave o efecto se llama "
        "así, y ningún contenido ni resultado lo contiene"
    ),
    # what is written wrongly
    "{field} has {least} to {most} characters, not {n}": (
        "{field} tiene de {least} a {most} caracteres, no {n}"
    ),
    "the target": "el objetivo",
    "the text to search for": "el texto que buscar",
    "give 3 to {n} characters to look for": "da de 3 a {n} caracteres que buscar",
    "that cursor is not one this question was answered with": (
        "esa página siguiente no es de esta pregunta: empieza por la primera"
    ),
    "that is no cursor of this store: start from the first page": (
        "esa página siguiente no es de este almacén: empieza por la primera"
    ),
    "say why in a note: whoever finds these jobs later will ask": (
        "di por qué en una nota: quien encuentre después estos trabajos lo preguntará"
    ),
    "say who is meant by one of key, thread and text": (
        "di a quién te refieres con una clave, una historia o un texto"
    ),
    "say why in a note: it is all that stays of what was erased": (
        "di por qué en una nota: es lo único que queda de lo borrado"
    ),
    "the note stays in the audit for good: say why without naming them": (
        "la nota queda para siempre en la auditoría: di por qué sin nombrar a nadie"
    ),
    "nothing to change: give {names}": "nada que cambiar: da {names}",
    "priority is 'high', 'normal' or 'low'": "la prioridad es 'high', 'normal' o 'low'",
    "a canary is 1 to {most} jobs, not {n}": "un canario son de 1 a {most} trabajos, no {n}",
    "only dead, held, parked and cancelled jobs are taken in bulk": (
        "en bloque solo se toman trabajos muertos, retenidos, aparcados y cancelados"
    ),
    "{text} is not a duration: write one like '500ms', '15s', '2m', '1h30m' or '7d'": (
        "{text} no es una duración: escribe una como '500ms', '15s', '2m', '1h30m' o '7d'"
    ),
    "a duration lies between 0 and 100 years, not {text}": (
        "una duración va de 0 a 100 años, no {text}"
    ),
    "a moment needs a time zone: use datetime.now(UTC), or .astimezone()": (
        "un momento necesita su zona horaria, como en 2026-03-01T10:00:00Z"
    ),
    "{text} is not a rate: write one like '10/s' or '60/m'": (
        "{text} no es un ritmo: escribe uno como '10/s' o '60/m'"
    ),
    "{name} is not a queue name: write 'app:module:action' in lower case, each part of letters, "
    "digits, '-' and '_', {n} characters at most, such as 'shop:mail:receipt'": (
        "{name} no es el nombre de una cola: escribe 'app:module:action' en minúsculas, cada parte "
        "con letras, cifras, '-' y '_', y {n} caracteres a lo sumo, como "
        "'shop:mail:receipt'"
    ),
    "{owner}: attempts is a whole number from 1 to {most}, not {n}": (
        "{owner}: los intentos son un número entero de 1 a {most}, no {n}"
    ),
    "a breaker's name has 1 to 512 characters": (
        "el nombre de un disyuntor tiene de 1 a 512 caracteres"
    ),
    # what cannot be done now
    "job {id} is {state}; only a job that waits can be edited": (
        "el trabajo {id} está {state}; solo se edita un trabajo que espera"
    ),
    "job {id} is {state}; an effect is decided while its job is held": (
        "el trabajo {id} está {state}; un efecto se decide mientras su trabajo está retenido"
    ),
    "'{name}' is confirmed already, with another result": (
        "'{name}' ya está confirmado, con otro resultado"
    ),
    "'{name}' is {state}; only an uncertain effect can be denied": (
        "'{name}' está {state}; solo se niega un efecto incierto"
    ),
    "'{name}' was decided by someone else just now": "otra persona acaba de decidir sobre '{name}'",
    "delivery {id} was turned away ({why}), and its signature is not kept: ask the provider to "
    "send it again": (
        "la entrega {id} fue rechazada ({why}) y su firma no se guarda: pide al proveedor que la "
        "envíe otra vez"
    ),
    "or is pruned": "o está podada",
    "no app here has the webhook {name}; load it with --app": (
        "ninguna aplicación de aquí tiene el webhook {name}; cárgala con --app"
    ),
    "today's code orders a job of {queues} with another payload than before, so what is confirmed "
    "would be made twice: {effects}. Ask to repeat effects if that is meant": (
        "el código de hoy encarga un trabajo de {queues} con otros datos que antes, así que se "
        "haría dos veces lo que está confirmado: {effects}. Pide repetir los efectos si es lo que "
        "quieres"
    ),
    "delivery {id} was let in again by someone else just now": (
        "otra persona acaba de dejar entrar otra vez la entrega {id}"
    ),
    "delivery {id} was handled by another person or job just now": (
        "otra persona u otro trabajo acaba de procesar la entrega {id}"
    ),
    "its key was accepted since": "su clave se aceptó después",
    "more than {n} deliveries match: name an endpoint, or since and until": (
        "coinciden más de {n} entregas: indica un endpoint, o desde y hasta cuándo"
    ),
    "its function fails on delivery {id}, and nothing was kept: {error}": (
        "su función falla con la entrega {id}, y no se guardó nada: {error}"
    ),
    "{name} is paused: `relevo {verbs} resume` first": (
        "{name} está en pausa: primero `relevo {verbs} resume`"
    ),
    "{queue} is draining and takes no new jobs; resume it first": (
        "{queue} se está vaciando y no admite trabajos nuevos; reanúdala primero"
    ),
    "a queue that the delivery orders from is draining": (
        "una cola a la que la entrega encarga trabajo se está vaciando"
    ),
    "the breaker '{name}' is changed by too many at once; try again": (
        "demasiados cambian a la vez el disyuntor '{name}'; inténtalo otra vez"
    ),
    "no worker of the last day has the id {id}": "ningún worker del último día tiene el id {id}",
    "{id} is no event: `relevo jobs show` has the job": (
        "{id} no es un evento: `relevo jobs show` tiene el trabajo"
    ),
    "{name} does not subscribe to {event}; those that do: `relevo events subscribers`": (
        "{name} no está suscrito a {event}; los que sí: `relevo events subscribers`"
    ),
    "a running worker serves {queue} and would register {name} again: deploy it without this "
    "listener first": (
        "un worker en marcha atiende {queue} y volvería a registrar {name}: despliega antes sin "
        "este oyente"
    ),
    "{id} is alive: stop its process, and it leaves by itself": (
        "{id} está vivo: para su proceso y se irá solo"
    ),
    "{id} serves queues of apps that {name} does not see": (
        "{id} sirve colas de apps que {name} no ve"
    ),
    # the store
    "the store is closed": "el almacén está cerrado",
    "the store {name} is not open": "el almacén {name} no está abierto",
    "PostgreSQL did not answer within {n} s": "PostgreSQL no respondió en {n} s",
    "PostgreSQL does not answer: {error}": "PostgreSQL no responde: {error}",
    "PostgreSQL said no: {error}": "PostgreSQL se negó: {error}",
    "PostgreSQL reports damage: {error}": "PostgreSQL informa de daños: {error}",
    "the role lacks a right: {error}": "al rol le falta un permiso: {error}",
    "the Redis at {where} did not answer within {n} s": (
        "el Redis de {where} no respondió en {n} s"
    ),
    "the Redis at {where} does not answer: {error}": "el Redis de {where} no responde: {error}",
    "the Redis at {where} cannot take it now: {error}": (
        "el Redis de {where} no lo admite ahora: {error}"
    ),
    "the Redis at {where} refused a command: {error}": (
        "el Redis de {where} rechazó un comando: {error}"
    ),
    "the Redis at {where} refuses the user or password: {error}": (
        "el Redis de {where} rechaza el usuario o la contraseña: {error}"
    ),
    "the question waited too long and was given up": "la consulta esperó demasiado y se abandonó",
    "{path} took too long to answer: ask for less": "{path} tardó demasiado: pide menos",
    "{path} did not answer in time: check its disk": "{path} no respondió a tiempo: mira su disco",
    "{path} was deleted or moved away while it was in use: put the very file back, or stop every "
    "process and restore it from a backup; nothing is written until then": (
        "{path} fue borrado o movido mientras se usaba: devuelve ese mismo archivo a su sitio, o "
        "para todos los procesos y restáuralo de una copia; hasta entonces no se escribe nada"
    ),
    "{path} was replaced while it was in use: stop every process before a restore, then start them "
    "again; nothing is written until then": (
        "{path} fue reemplazado mientras se usaba: para todos los procesos antes de restaurar y "
        "arráncalos después; hasta entonces no se escribe nada"
    ),
    "{path} was made read-only: chmod u+w lets the jobs go on": (
        "{path} quedó en solo lectura: con chmod u+w siguen los trabajos"
    ),
    "{n} writes are waiting for the store already; try again in a moment": (
        "ya hay {n} escrituras esperando al almacén; inténtalo dentro de un momento"
    ),
    "it is sealed {how} and cannot be opened here: add that key to RELEVO_SEAL_KEYS, or to "
    "Relevo(…, seal=…), unless what is stored has been changed": (
        "está sellado {how} y aquí no se puede abrir: añade esa clave a RELEVO_SEAL_KEYS o a "
        "Relevo(…, seal=…), salvo que lo guardado se haya alterado"
    ),
    "with the key called {name}": "con la clave llamada {name}",
    "by a seal that is not ours": "con un sello que no es nuestro",
    # payloads
    "is not JSON: {error} (line {line}, column {column})": (
        "no es JSON: {error} (línea {line}, columna {column})"
    ),
    "is not JSON": "no es JSON",
    "is not UTF-8": "no es UTF-8",
    "is missing": "falta",
    "expects {type}, got {other}": "espera {type} y recibió {other}",
    "expects {type}": "espera {type}",
    "is not one of the values it may have": "no es uno de los valores que puede tener",
    "refused by its own class ({type})": "rechazado por su propia clase ({type})",
    "holds a key that {type} does not declare": "lleva una clave que {type} no declara",
    "more than {n} bytes of JSON: store it and send its id, or a signed storage URL": (
        "más de {n} bytes de JSON: guárdalo y envía su id, o una URL firmada de almacenamiento"
    ),
    "nested more than {n} deep, or containing itself: send it flat, or by id": (
        "anidado más de {n} niveles, o contenido en sí mismo: envíalo plano, o por su id"
    ),
    "a key stands twice in one object, and readers differ on which one counts": (
        "una clave está dos veces en un objeto, y no todos los lectores cuentan la misma"
    ),
    "an integer of more than 64 bit; send it as str": (
        "un entero de más de 64 bits; envíalo como texto"
    ),
    "a number out of range; send it as str": "un número fuera de rango; envíalo como texto",
    "NaN or infinity, which JSON does not have; send null": (
        "NaN o infinito, que JSON no tiene; envía null"
    ),
    "a NUL character, which no store keeps; take it out": (
        "un carácter NUL, que ningún almacén guarda; quítalo"
    ),
    "half of a surrogate pair, which is not text; take it out": (
        "medio par sustituto, que no es texto; quítalo"
    ),
    "a secret by its name": "un secreto por su nombre",
    "a card number": "un número de tarjeta",
    "binary as text": "datos binarios como texto",
    "a data: URL": "una URL data:",
    "a private key": "una clave privada",
    "a signed token (JWT)": "un token firmado (JWT)",
    "a provider's key": "la clave de un proveedor",
    "an Authorization header": "una cabecera Authorization",
    "a URL with a password": "una URL con contraseña",
    "send an id and look it up when the job runs": (
        "envía un id y búscalo cuando corra el trabajo"
    ),
    "send the payment provider's token for it": "envía en su lugar el token del proveedor de pagos",
    "send a signed storage URL": "envía una URL firmada de almacenamiento",
    "keep it in the settings of the worker": "guárdala en los ajustes del worker",
    "send the URL without it": "envía la URL sin ella",
}
