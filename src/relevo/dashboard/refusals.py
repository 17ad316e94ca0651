"""The Spanish of why the dashboard itself did not do what it was asked."""

from __future__ import annotations

from typing import Final

REFUSALS: Final[dict[str, str]] = {
    "a job's {name} is not for people to write": "{name} de un trabajo no es para que se escriba",
    "{most} jobs at most at a time, not {n}": "{most} trabajos a lo sumo cada vez, no {n}",
    "a canary is 1 to {most} jobs": "un canario son de 1 a {most} trabajos",
    "give either a code or a result in JSON": "da un código o un resultado en JSON, uno de los dos",
    "jobs are retried, cancelled or discarded": (
        "los trabajos se reintentan, se cancelan o se descartan"
    ),
    "the result is not JSON; a plain text is a code": (
        "el resultado no es JSON; un texto simple es un código"
    ),
    "{field} is a whole number": "{field} es un número entero",
    "{field} is a moment such as {example}": "{field} es un momento, como {example}",
    "no job has the state {name}: {names}": "ningún trabajo tiene el estado {name}: {names}",
    "a delivery is accepted, ignored, failed, differs or refused, not {name}": (
        "una entrega está aceptada (accepted), ignorada (ignored), fallida (failed), "
        "distinta (differs) o rechazada (refused), no {name}"
    ),
    "the payload no longer fits the job's key: it would be {key}, and the job keeps {other}. A new "
    "command may be meant: cancel this one, and send it": (
        "el contenido ya no encaja con la clave del trabajo: sería {key}, y el trabajo conserva "
        "{other}. Quizá se quiera otro comando: cancela este y envía el nuevo"
    ),
    "{kind} is not known here, and the payload cannot be checked: name its app with --app or "
    "RELEVO_APPS, or write it unchecked (--unchecked)": (
        "aquí no se conoce {kind}, y el contenido no se puede comprobar: indica su app con --app o "
        "RELEVO_APPS, o escríbelo sin comprobar (--unchecked)"
    ),
    "the payload of job {id} was changed meanwhile: nothing was written; look at it as it is now": (
        "el contenido del trabajo {id} se ha cambiado entretanto: no se ha escrito nada; míralo "
        "como está ahora"
    ),
    "job {id} is being edited at this moment: try again": (
        "el trabajo {id} se está editando en este momento: vuelve a intentarlo"
    ),
    "{kind} has no field {name}: {near} may be meant": (
        "{kind} no tiene el campo {name}: quizá sea {near}"
    ),
    "{kind} has no field {name}, only {known}": "{kind} no tiene el campo {name}, solo {known}",
    "job {id} has no edit to take back: they are kept for a day": (
        "el trabajo {id} no tiene cambios que deshacer: se guardan un día"
    ),
    "job {id} is not as its last edit left it any more: nothing was changed": (
        "el trabajo {id} ya no está como lo dejó su último cambio: no se cambió nada"
    ),
    "what the job carries cannot be read here, so nothing can be merged into it: give the payload "
    "as a whole (--whole)": (
        "lo que lleva el trabajo no se puede leer aquí, así que no se le puede añadir nada: da el "
        "contenido entero (--whole)"
    ),
    'name the fields to change as a JSON object, such as {"email": "ana@hotel.example"}': (
        'indica los campos que cambian como un objeto JSON, como {"email": "ana@hotel.example"}'
    ),
    "many jobs are retried, cancelled or discarded": (
        "muchos trabajos se reintentan, se cancelan o se descartan"
    ),
    "to {verb} many at once takes jobs that are {states}": (
        "{verb} de muchos a la vez admite trabajos en estos estados: {states}"
    ),
    "a breaker belongs to no app: who sees every app changes it": (
        "un disyuntor no es de ninguna app: lo cambia quien ve todas"
    ),
    "a breaker's name has {least} to {most} characters": (
        "el nombre de un disyuntor tiene de {least} a {most} caracteres"
    ),
    "a lane's name has {least} to {most} characters": (
        "el nombre de un carril tiene de {least} a {most} caracteres"
    ),
    "say until when or for how long, not both": "di hasta cuándo o por cuánto tiempo, no ambas",
    "nothing to change: give {names}": "nada que cambiar: da {names}",
    "the change would end before it begins: give a later moment": (
        "el cambio acabaría antes de empezar: da un momento posterior"
    ),
    "a limit is {least} to {most}, not {n}": "un límite es de {least} a {most}, no {n}",
    "the slots of a queue are {least} to {most}, not {n}": (
        "las plazas de una cola son de {least} a {most}, no {n}"
    ),
    "a limit is one or more, not {n}": "un límite es uno o más, no {n}",
    "a canary is {least} to {most} jobs, not {n}": (
        "un canario son de {least} a {most} trabajos, no {n}"
    ),
    "canary {id} failed again: {why}": "el canario {id} volvió a fallar: {why}",
    "stopped by hand": "parado a mano",
    "the result of '{name}' cannot be that: {why}": (
        "el resultado de '{name}' no puede ser eso: {why}"
    ),
    "no effect is {name}: {names}": "ningún efecto está {name}: {names}",
    "{n} changes of many jobs are under way; wait for one to end": (
        "hay {n} cambios de muchos trabajos en marcha; espera a que acabe uno"
    ),
    "that change is not known here: it is old, or of another process": (
        "ese cambio no se conoce aquí: es antiguo, o de otro proceso"
    ),
}
