"""The Spanish of why something was refused, failed or waits, as relevo itself writes it down.

Reasons are stored in English, filled in. What a provider or Python says stays as it is.
"""

from __future__ import annotations

from typing import Final

REASONS: Final[dict[str, str]] = {
    # signatures
    "there is no {name} header": "falta la cabecera {name}",
    "{name} came {n} times": "{name} llegó {n} veces",
    "{name} is longer than {n} bytes": "{name} tiene más de {n} bytes",
    "an item of its header came twice": "un elemento de su cabecera llegó dos veces",
    "what is signed cannot be read: {error}": "no se puede leer lo que va firmado: {error}",
    "{name} is empty": "{name} está vacía",
    "{name} is not ASCII": "{name} no es ASCII",
    "{name} is not a number of seconds in plain digits": (
        "{name} no es un número de segundos en cifras simples"
    ),
    "it was signed {n} s ago, and {all} s are allowed: a replay, or a wrong clock": (
        "se firmó hace {n} s y se admiten {all} s: una repetición, o un reloj mal puesto"
    ),
    "it was signed {n} s in the future: the sender's clock is wrong, or ours": (
        "se firmó {n} s en el futuro: el reloj de quien la envía está mal, o el nuestro"
    ),
    "every configured secret has ended": "todos los secretos configurados han caducado",
    "no configured secret gives this signature": ("ningún secreto configurado produce esta firma"),
    "{name} does not begin with '{prefix}'": "{name} no empieza por '{prefix}'",
    "{name} holds white space or control characters": (
        "{name} lleva espacios o caracteres de control"
    ),
    "{name} has {n} times where one is due": "{name} trae {n} horas donde toca una",
    "{name} has no v1 signature": "{name} no trae firma v1",
    "the message id is not 1 to 256 visible characters without dot": (
        "el id del mensaje no tiene de 1 a 256 caracteres visibles sin punto"
    ),
    "there is no v1 signature, and no other version is known here": (
        "no hay firma v1, y aquí no se conoce otra versión"
    ),
    "the webhook-* and svix-* headers contradict each other": (
        "las cabeceras webhook-* y svix-* se contradicen"
    ),
    "the place of the secret cannot be read: {error}": (
        "no se puede leer el sitio del secreto: {error}"
    ),
    "it is not text": "no es texto",
    "there is no secret where it should be": "no hay secreto donde debería estar",
    "the secret came {n} times": "el secreto llegó {n} veces",
    "the secret is longer than {n} bytes": "el secreto tiene más de {n} bytes",
    "the token is not three parts with dots between": (
        "el token no son tres partes con puntos entre ellas"
    ),
    "the token is not a plain JWT under HS256": "el token no es un JWT simple con HS256",
    "iss is not Upstash": "iss no es Upstash",
    "sub is not the URL that this door was given": "sub no es la URL que se le dio a esta puerta",
    "aud names an audience, and QStash knows none": (
        "aud nombra una audiencia, y QStash no conoce ninguna"
    ),
    "jti is not a text of 1 to 256 characters": "jti no es un texto de 1 a 256 caracteres",
    "{name} is not a number of seconds": "{name} no es un número de segundos",
    "the token ended {n} s ago": "el token caducó hace {n} s",
    "the token begins in {n} s: our clock may be behind": (
        "el token empieza dentro de {n} s: nuestro reloj puede ir atrasado"
    ),
    "the token does not cover the body": "el token no cubre el cuerpo",
    "the token is right, and of another body": "el token es correcto, pero de otro cuerpo",
    "a part of the token is not a JSON object in base64url": (
        "una parte del token no es un objeto JSON en base64url"
    ),
    # what a closer look says of them
    "it was signed with a secret that has ended": "se firmó con un secreto que ya caducó",
    "the right secret with white space around it": "el secreto correcto, con espacios alrededor",
    "the right secret in another case": "el secreto correcto, con otras mayúsculas",
    "wrong secret, one of another endpoint, of another mode (test and live differ) or an older "
    "one; or the body was changed in a way that cannot be guessed": (
        "secreto equivocado: de otro endpoint, de otro modo (pruebas y producción difieren) o "
        "anterior; o el cuerpo se cambió de un modo que no se adivina"
    ),
    "it is right for {what}: the body was changed on the way; hand over the bytes as they came, "
    "before any parser": (
        "es correcta para {what}: el cuerpo se cambió por el camino; entrega los bytes como "
        "llegaron, antes de analizarlos"
    ),
    "a body with a newline at its end": "un cuerpo con salto de línea al final",
    "a body without newline at its end": "un cuerpo sin salto de línea al final",
    "a body without byte order mark": "un cuerpo sin marca de orden de bytes",
    "a body with a byte order mark": "un cuerpo con marca de orden de bytes",
    "a body with LF as line end": "un cuerpo con LF como fin de línea",
    "a body with CRLF as line end": "un cuerpo con CRLF como fin de línea",
    "re-serialised JSON ({how})": "JSON vuelto a escribir ({how})",
    "the delivery is right as {scheme} with the same secret: use that scheme": (
        "la entrega es correcta como {scheme} con el mismo secreto: usa ese esquema"
    ),
    "there is a {name} header, which is for {whom}: another scheme, or another door": (
        "hay una cabecera {name}, que es para {whom}: otro esquema, u otra puerta"
    ),
    "bitbucket(), jira() or intercom()": "bitbucket(), jira() o intercom()",
    "whoever sent it does not sign, or something on the way took the header off": (
        "quien la envió no firma, o algo por el camino quitó la cabecera"
    ),
    "the signature is right, but it came before with a delivery that was not taken": (
        "la firma es correcta, pero ya vino con una entrega que no se aceptó"
    ),
    "a result cannot be kept: {why}. Return what is small and plain (an id, a code, a dict of "
    "what is needed) or nothing, and store the rest yourself": (
        "el resultado no se puede guardar: {why}. Devuelve algo pequeño y simple (un id, un "
        "código, un dict con lo necesario) o nada, y guarda el resto por tu cuenta"
    ),
    # signatures inside a body, of a URL, or of a key pair
    "no certificate is configured for the address that it names": (
        "no hay ningún certificado configurado para la dirección que nombra"
    ),
    "{name} is not {n} hex digits": "{name} no son {n} cifras hexadecimales",
    "the body is no object": "el cuerpo no es un objeto",
    "its Type or SignatureVersion is not one of AWS SNS": (
        "su Type o su SignatureVersion no es de AWS SNS"
    ),
    "its certificate is not at an address of {provider}": (
        "su certificado no está en una dirección de {provider}"
    ),
    "the address of its certificate is no URL": ("la dirección de su certificado no es una URL"),
    "it cannot be read: {error}": "no se puede leer: {error}",
    "a signed field is no text": "un campo firmado no es texto",
    "the certificate does not fit this signature": "el certificado no corresponde a esta firma",
    "the public key does not fit this signature": ("la clave pública no corresponde a esta firma"),
    "it is of a topic that is not configured: topics=": (
        "es de un tema que no está configurado: topics="
    ),
    "{name} is not SHA256withRSA": "{name} no es SHA256withRSA",
    "{name} is not base64": "{name} no es base64",
    "the body cannot be read: {error}": "no se puede leer el cuerpo: {error}",
    "{name} has no {seal} signature": "{name} no tiene ninguna firma {seal}",
    "Authorization is not Basic": "Authorization no es Basic",
    "an item is no NotificationRequestItem": "un elemento no es un NotificationRequestItem",
    "the place of the signature cannot be read: {error}": (
        "no se puede leer el lugar de la firma: {error}"
    ),
    "the body has no {names}": "el cuerpo no tiene {names}",
    "{name} has no ts and v1": "{name} no tiene ts y v1",
    "data.id came more than once": "data.id llegó más de una vez",
    "{name} of the body is not a time in milliseconds": (
        "{name} del cuerpo no es un momento en milisegundos"
    ),
    "its query cannot be read: {error}": "no se puede leer su consulta: {error}",
    "its form cannot be read: {error}": "no se puede leer su formulario: {error}",
    "{name} names a key that is not configured: shared_keys=": (
        "{name} nombra una clave que no está configurada: shared_keys="
    ),
    "{name} names an algorithm that is not known here": (
        "{name} nombra un algoritmo que aquí no se conoce"
    ),
    "it is signed as {version}, which is not allowed here": (
        "está firmada como {version}, que aquí no se admite"
    ),
    "{name} is not a number of milliseconds in plain digits": (
        "{name} no es un número de milisegundos en cifras simples"
    ),
    "bodySHA256 is not the hash of this body": "bodySHA256 no es el resumen de este cuerpo",
    "a body that is no form needs bodySHA256 in the query": (
        "un cuerpo que no es un formulario necesita bodySHA256 en la consulta"
    ),
    "the body is no JSON array of objects": "el cuerpo no es una lista JSON de objetos",
    # deliveries that cannot be read
    "its key came before with another body, in delivery {id}": (
        "su clave llegó antes con otro cuerpo, en la entrega {id}"
    ),
    "the same as delivery {id}": "la misma que la entrega {id}",
    "{kind} is not in types=": "{kind} no está en types=",
    "refused by its function: {why}": "rechazada por su función: {why}",
    "{path} has no key for this: {error}": "{path} no tiene clave para esto: {error}",
    "its function failed: {error}": "su función falló: {error}",
    "refused after it was answered from the spool: {why}": (
        "rechazada después de responderse desde el depósito: {why}"
    ),
    "more than {n} fields": "más de {n} campos",
    "a field came {n} times": "un campo llegó {n} veces",
    "a field holds a NUL character": "un campo lleva un carácter NUL",
    "a key stands twice in one object": "una clave está dos veces en un objeto",
    "an integer of more than 64 bit": "un entero de más de 64 bits",
    "a number out of range": "un número fuera de rango",
    "NaN or infinity, which JSON does not have": "NaN o infinito, que JSON no tiene",
    "the body is empty": "el cuerpo está vacío",
    "JSON is UTF-8 without a byte order mark": "JSON es UTF-8 sin marca de orden de bytes",
    "the body is not UTF-8": "el cuerpo no es UTF-8",
    "the body is not JSON: {error}": "el cuerpo no es JSON: {error}",
    "NUL, or half of a surrogate pair, is not text": ("NUL, o medio par sustituto, no es texto"),
    "the body is JSON, but no object": "el cuerpo es JSON, pero no un objeto",
    "more than {n} jobs of one delivery": "más de {n} trabajos de una entrega",
    "no key in it: {error}": "sin clave: {error}",
    'no field "{name}" in the body': 'no hay ningún campo "{name}" en el cuerpo',
    "the key function of {path} returned {given}: return {parts}, of 1 to {n} characters": (
        "la función de clave de {path} devolvió {given}: tiene que devolver {parts}, "
        "de 1 a {n} caracteres"
    ),
    # jobs
    "it crashed its worker {times}, with nothing running beside it": (
        "tumbó a su worker {times}, sin nada más en marcha a su lado"
    ),
    "it blocked its worker's event loop {times}, with nothing running beside it": (
        "bloqueó el bucle de eventos de su worker {times}, sin nada más en marcha a su lado"
    ),
    "it blocked its worker's event loop for {n} s": (
        "bloqueó el bucle de eventos de su worker durante {n} s"
    ),
    "another job blocked its worker's event loop, and the process was ended": (
        "otro trabajo bloqueó el bucle de eventos de su worker, y el proceso se terminó"
    ),
    "its worker process {worker} died while it ran": (
        "su proceso worker {worker} murió mientras corría"
    ),
    "its worker process {worker} died while it ran, one of {n}": (
        "su proceso worker {worker} murió mientras corría, uno de {n}"
    ),
    "its worker process {worker} died while nothing ran beside it": (
        "su proceso worker {worker} murió sin nada más en marcha a su lado"
    ),
    "its worker process {worker} died, as others of its host did, or was stopped": (
        "su proceso worker {worker} murió, como otros de su máquina, o fue parado"
    ),
    "its worker process {worker} died just before this run began, or after it had ended": (
        "su proceso worker {worker} murió justo antes de empezar esta ejecución, o tras acabarla"
    ),
    "the worker {worker} went silent; whether it had begun this run is not known": (
        "el worker {worker} calló; no se sabe si había empezado esta ejecución"
    ),
    "once": "una vez",
    "1 time": "una vez",
    "1 times": "una vez",
    "{n} times": "{n} veces",
    "its worker {worker} went silent": "su worker {worker} calló",
    "its worker stopped; handed back": "su worker se paró; devuelto",
    "its child {id} in {queue} died": "su hijo {id} de {queue} murió",
    "its child {id} of {queue} died": "su hijo {id} de {queue} murió",
    "its child {id} in {queue} was cancelled": "su hijo {id} de {queue} fue cancelado",
    "its child {id} of {queue} was cancelled": "su hijo {id} de {queue} fue cancelado",
    "its child {id} in {queue} ended badly": "su hijo {id} de {queue} acabó mal",
    "waited for {id} of {queue}, which ended dead": "esperaba a {id} de {queue}, que acabó muerto",
    "waited for {id} of {queue}, which ended cancelled": (
        "esperaba a {id} de {queue}, que acabó cancelado"
    ),
    "no worker here carries out {kind} of {queue}": (
        "ningún worker de aquí ejecuta {kind} de {queue}"
    ),
    "the code here cannot read its payload: {error}": (
        "el código de aquí no puede leer su contenido: {error}"
    ),
    "{name}: is missing": "{name}: falta",
    "{name}: upgrade() raised {error}": "{name}: upgrade() lanzó {error}",
    "the worker ran past its time limit of {n} s": "el worker pasó de su límite de {n} s",
    "no attempt is left": "no queda ningún intento",
    "its row was changed by hand: no job has the state {state}": (
        "su fila se cambió a mano: ningún trabajo tiene el estado {state}"
    ),
    "the stored failure was changed by hand": "el fallo guardado se cambió a mano",
    # providers, as the systems' gateways tell of them
    "{who} says: {said}": "{who} dice: {said}",
    "{who} answered {status}": "{who} respondió {status}",
    "{who} answered {status} with {why}": "{who} respondió {status} con {why}",
    "{who} answered with the fault {name}": "{who} respondió con el fallo {name}",
    "{who} answered with error {name}": "{who} respondió con el error {name}",
    "{who} cannot be reached: {name}": "no se llega a {who}: {name}",
    "{who} did not answer: {name}": "{who} no respondió: {name}",
    "{who} refused: {said}": "{who} se negó: {said}",
    "{who} refuses our login ({said})": "{who} rechaza nuestra entrada ({said})",
    "{who} has the booking as '{name}'": "{who} tiene la reserva como '{name}'",
    # effects outside
    "'{name}' is under way elsewhere": "'{name}' está en marcha en otro sitio",
    "'{name}' is not there and may still arrive": "'{name}' no está, y aún puede llegar",
    "'{name}' may have happened in an earlier run, and there is no way to look it up; decide with "
    "`relevo effects confirm JOB NAME --result JSON` or `relevo effects deny JOB NAME`": (
        "'{name}' puede haber ocurrido en un intento anterior, y no hay modo de consultarlo; "
        "decide con `relevo effects confirm JOB NAME --result JSON` o `relevo effects deny JOB "
        "NAME`"
    ),
    "'{name}' may have happened in an earlier run ({error}), and there is no way to look it up; "
    "decide with `relevo effects confirm JOB NAME --result JSON` or `relevo effects deny JOB "
    "NAME`": (
        "'{name}' puede haber ocurrido en un intento anterior ({error}), y no hay modo de "
        "consultarlo; decide con `relevo effects confirm JOB NAME --result JSON` o `relevo "
        "effects deny JOB NAME`"
    ),
    "'{name}' may have happened, and cannot be looked up: {error}": (
        "'{name}' puede haber ocurrido, y no se puede consultar: {error}"
    ),
    "'{name}' may have happened: {error}": "'{name}' puede haber ocurrido: {error}",
    "'{name}' did not happen: {error}": "'{name}' no ocurrió: {error}",
    "'{name}' has to wait: {error}": "'{name}' tiene que esperar: {error}",
    "'{name}' was refused: {error}": "'{name}' fue rechazado: {error}",
    "'{name}': our key was not accepted: {error}": (
        "'{name}': no se aceptó nuestra clave: {error}"
    ),
    "'{name}' happened, but its result could not be kept ({error}): name what is needed of it "
    "with keep=, as in keep=lambda result: result.id": (
        "'{name}' ocurrió, pero su resultado no se pudo guardar ({error}): di con keep= lo que "
        "hace falta de él, como keep=lambda result: result.id"
    ),
    "broken off before its answer": "interrumpido antes de su respuesta",
    "stopped before the call": "parado antes de la llamada",
    # breakers and workers
    "job {id} probes": "el trabajo {id} prueba",
    "the probe failed: {error}": "la prueba falló: {error}",
    "{n} failures in a row: {error}": "{n} fallos seguidos: {error}",
    "the probe {id} worked": "la prueba {id} funcionó",
    "event loop blocked": "bucle de eventos bloqueado",
    "stopping: waits for {jobs}": "parando: espera a {jobs}",
}
