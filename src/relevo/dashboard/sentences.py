"""Sentences that are put together: how many of something, and what the desk says by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from relevo.dashboard.reasons import REASONS
from relevo.web.translate import Words

COUNTED: Final = {
    "job": ("one job", "{n:,} jobs"),
    "effect": ("one effect outside", "{n:,} effects outside"),
    "delivery": ("one delivery", "{n:,} deliveries"),
    "worker": ("one worker", "{n:,} workers"),
    "queue": ("one queue", "{n:,} queues"),
    "dead letter": ("one dead letter", "{n:,} dead letters"),
}
"""Things that are counted: one, and many."""


def counted(words: Words, n: int, what: str) -> str:
    """So many of something, as a person says it."""
    one, many = COUNTED[what]
    return words(one) if n == 1 else words(many, n=n)


RETOLD: Final = (
    "runs on {worker}, attempt {n} of {all}",
    "its queue is paused",
    "no worker serves its queue",
    "waits for a free worker",
    "attempt {n} of {all} failed ({failure}); due",
    "due",
    "the breaker '{name}' is open",
    "no worker here knows the command",
    "its effect may have happened",
    "was cancelled",
    "it died",
    "waits for {n} of the {all} it needs",
    "ended because of what it needs",
    "mend the cause, then {verb}",
    "start {verb}",
    "deploy the code that knows it",
    "nothing: those that waited for it have gone on without it",
    "{verb}, then confirm or deny",
    "canary {id} is {state} again: {why}",
    "canary {id} is {state} again",
    "{n} of {all} canaries have not ended in time; the first is {id}, {state}",
    "every commit reaches the disk before it is answered",
    "only its owner may read the database",
    "others may read the jobs: {advice}",
    "{n} MiB are free",
    "{n} MiB are free: free some before jobs are refused",
    "this process agrees with the file's clock",
    "durable and not full",
    "the server takes writes",
    "the oldest open transaction is {n} s old",
    "{n} of {all} connections are taken",
    "the jobs table has {n} live and {dead} dead rows in {size} MB",
    "what jobs and deliveries carry is sealed; keys, errors and names are not",
    *REASONS,
)
"""What the desk and the stores say in words of their own, which reach a page filled in."""

ALONE: Final = (
    *("retry", "cancel", "discard", "edit", "pause", "resume", "drain", "replay", "forget"),
    *("conclude", "run", "breaker open", "breaker close", "breaker probe"),
    *("add person", "remove person", "add token", "remove token"),
    *("ok", "warning", "error"),
    *("durability", "file modes", "disk space", "write-ahead log", "file system", "clock"),
    *("version", "read-only", "oldest transaction", "connections", "bloat", "seal"),
    *("settled", "retry", "snooze", "dead", "held", "cancelled", "parked", "rescued", "trouble"),
    *("lease lost", "delivery taken", "delivery repeated", "delivery forged"),
    *("delivery unreadable", "delivery failed", "delivery busy"),
)
"""Words of theirs that stand alone: in the audit, and on the page of usage."""


def _shape(phrase: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(phrase)), re.DOTALL)


QUOTED: Final = frozenset({"error", "failure", "how", "note", "times", "what", "whom", "why"})
"""What a sentence may quote; the rest are names, which nobody translates."""
DEPTH: Final = 4
"""So many sentences one inside the other; strangers may have written what is quoted."""

_SHAPES: Final = [(phrase, _shape(phrase)) for phrase in RETOLD]


def retold(words: Words, text: str, depth: int = DEPTH) -> str:
    """A sentence of ours in the reader's language, as far as it is one that is known.

    What it quotes may be another: an error after its type, a second reason after a semicolon.
    """
    if words.language == "en" or not depth:
        return text
    for phrase, shape in _SHAPES:
        if found := shape.fullmatch(text):
            return words(phrase, **quoted(words, found.groupdict(), depth - 1))
    kind, colon, said = text.partition(": ")
    if colon and kind.isidentifier():
        return f"{kind}: {retold(words, said, depth - 1)}"
    first, semicolon, more = text.partition("; ")
    if semicolon and (known := retold(words, first, depth - 1)) != first:
        return f"{known}; {retold(words, more, depth - 1)}"
    return text


def quoted(words: Words, values: Mapping[str, Any], depth: int = DEPTH) -> dict[str, Any]:
    """What a sentence is filled in with, in the reader's language."""
    return {
        name: retold(words, value, depth) if name in QUOTED else value
        for name, value in values.items()
    }
