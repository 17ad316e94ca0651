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
    "many jobs are retried or discarded": "muchos trabajos se reintentan o se descartan",
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
