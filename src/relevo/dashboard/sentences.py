"""Sentences that are put together: how many of something, and what the desk says by itself."""

from __future__ import annotations

from typing import Final

from relevo.dashboard.reasons import REASONS
from relevo.dashboard.refusals import REFUSALS
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
    "the code does not fit its payload",
    "deploy code that reads it, see {verb}",
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
    *REFUSALS,
)
"""What the desk and the stores say in words of their own, which reach a page filled in."""

ALONE: Final = (
    *("retry", "cancel", "discard", "edit", "pause", "resume", "drain", "replay", "forget"),
    "forget worker",
    *("mark restored", "end restore"),
    "unsubscribe",
    "run again",
    *("retry many", "cancel many", "discard many", "stop"),
    *("replay many", "confirm", "deny", "run", "breaker open", "breaker close", "breaker probe"),
    *("add person", "remove person", "change password", "add token", "remove token"),
    *("log in", "login refused", "login held back", "use token", "token refused"),
    *("ok", "warning", "error"),
    *("durability", "file modes", "disk space", "write-ahead log", "file system", "clock"),
    *("version", "read-only", "oldest transaction", "connections", "bloat", "seal"),
    *("settled", "retry", "snooze", "dead", "held", "cancelled", "parked", "rescued", "trouble"),
    *("lease lost", "delivery taken", "delivery repeated", "delivery forged"),
    "delivery wrong time",
    *("delivery unreadable", "delivery failed", "delivery busy"),
)
"""Words of theirs that stand alone: in the audit, and on the page of usage."""
