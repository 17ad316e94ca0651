"""Job, its states, and the table of moves a job may make."""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import Any, Literal, TypeAlias

from msgspec import Raw, Struct

from relevo.errors import DefinitionError


class State(StrEnum):
    """Where a job is."""

    SCHEDULED = "scheduled"  # due later
    READY = "ready"  # due now, nobody has it
    RUNNING = "running"  # under a lease
    WAITING = "waiting"  # a flow's parent, until its children end
    PARKED = "parked"  # its breaker is open, or no code here knows it
    HELD = "held"  # its effect is uncertain: a person decides
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


AGING = frozenset({State.READY, State.PARKED, State.HELD})
"""States in which a job waits for us: its queue is as old as the first of them was ordered."""

LIVE = frozenset(
    {
        State.SCHEDULED,
        State.READY,
        State.RUNNING,
        State.WAITING,
        State.PARKED,
        State.HELD,
    }
)
MOVING = LIVE - {State.WAITING, State.PARKED, State.HELD}
"""What a worker has to do, now or in time; the others wait for something else."""

ENDED = frozenset({State.DONE, State.DEAD, State.CANCELLED})

MOVES: dict[State, frozenset[State]] = {
    State.SCHEDULED: frozenset({State.READY, State.RUNNING, State.CANCELLED}),
    State.READY: frozenset({State.SCHEDULED, State.RUNNING, State.CANCELLED}),
    State.RUNNING: frozenset(
        {
            State.DONE,
            State.SCHEDULED,
            State.READY,
            State.DEAD,
            State.CANCELLED,
            State.PARKED,
            State.HELD,
        }
    ),
    State.WAITING: frozenset({State.READY, State.SCHEDULED, State.DEAD, State.CANCELLED}),
    State.PARKED: frozenset({State.READY, State.SCHEDULED, State.CANCELLED}),
    State.HELD: frozenset({State.READY, State.SCHEDULED, State.DONE, State.CANCELLED}),
    State.DEAD: frozenset({State.READY, State.SCHEDULED, State.WAITING, State.CANCELLED}),
    State.DONE: frozenset(),
    State.CANCELLED: frozenset({State.READY, State.SCHEDULED, State.WAITING}),
}
"""Every legal move. Stores keep it; whatever else is asked of them changes nothing."""


class Verdict(StrEnum):
    """What became of an insert."""

    NEW = "new"
    IN_PROGRESS = "in_progress"  # a live job has the key, or the id; the id given is that job's
    DONE = "done"  # unique forever, and done once already; or the id was asked for and has ended
    REOPENED = "reopened"  # unique forever, was dead or cancelled, is ready again
    CLOSED = "closed"  # the queue is draining; nothing was stored
    LATE = "late"  # what it was to be a member of takes no more of them; nothing was stored
    ORDERED = "ordered"  # of a webhook's function: what becomes of it, its delivery's commit tells


class Suspicion(IntEnum):
    """How strongly a job is suspected of having killed the worker process that ran it."""

    NONE = 0
    LOST = 1  # its lease has lapsed: its worker may have died, or only been cut off
    WATCHED = 2  # it was running when its process died: for a while nothing else begins beside it
    ALONE = 3  # it was so again: it runs with nothing beside it


def suspected(before: int, loss: int) -> int:
    """The suspicion of a job after a loss: one more, and at least what the loss says; NONE leaves
    it."""
    return min(Suspicion.ALONE, max(before + 1, loss)) if loss else before


Unique: TypeAlias = Literal["unfinished", "forever", "latest"]
"""What a key is for: one unfinished job at a time; one effect, whatever comes later; or the newest
payload, which replaces those that have never started."""

UNIQUES: tuple[Unique, ...] = ("unfinished", "forever", "latest")
Policy: TypeAlias = Literal["fail", "continue", "tally"]
"""What a child's bad end means for the parent that waits for it: it fails too, goes on and reads
the reason, or is only told how many of its children ended how."""

JOINS = 20
"""The most lines of `Job.joins`."""

QUEUE_NAME_MAX = 128
_QUEUE = re.compile(r"[a-z][a-z0-9_-]*:[a-z0-9][a-z0-9_-]*:[a-z0-9][a-z0-9_-]*", re.ASCII)


def queue_name(name: str) -> str:
    """The name itself, if it may be a queue's; DefinitionError naming the rule if not."""
    if isinstance(name, str) and len(name) <= QUEUE_NAME_MAX and _QUEUE.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        return name
    raise DefinitionError(
        f"{name!r:.60} is not a queue name: write 'app:module:action' in lower case, each part of "
        f"letters, digits, '-' and '_', {QUEUE_NAME_MAX} characters at most, "
        "such as 'shop:mail:receipt'"
    )


def slug(name: str) -> str:
    """A function's name as a part of a queue's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "main"


class After(Struct, frozen=True, array_like=True):
    """One edge of a flow: this job waits for `child`."""

    child: str
    policy: Policy = "fail"


class Before(Struct, frozen=True, array_like=True):
    """A job that waits already, and is to wait for this one too."""

    parent: str
    queue: str  # the parent's
    policy: Policy = "fail"


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A job on its way into a store. Times are milliseconds; the store adds its own now."""

    id: str
    queue: str
    kind: str
    payload: bytes
    delay: int = 0
    run_at: int | None = None  # an absolute moment; wins over delay
    priority: int = 1  # 0 high, 1 normal, 2 low
    attempts: int = 3
    key: str | None = None  # within its queue
    unique: Unique = "unfinished"
    digest: bytes | None = None  # of the payload as it was asked for, where there is a key
    remember: int = 0  # how long its id still answers once its row is gone, or had none
    lane: str | None = None  # jobs of one lane share a limit or an order
    thread: str | None = None  # None: it starts its own
    cause: str | None = None  # the job or delivery that asked for it
    meta: bytes | None = None  # JSON: traceparent and the like
    keep: int = 604_800_000  # how long to keep it once done; 0: not at all
    bundle: str | None = None  # jobs of one bundle are stored all or none
    flow: str | None = None
    node: str | None = None  # its name in the flow
    after: tuple[After, ...] = ()  # its own id, "tally": it is a group's, and waits for its members
    before: tuple[Before, ...] = ()

    @property
    def is_group(self) -> bool:
        """Whether it waits until its group is closed and every member of it has ended."""
        return bool(self.after) and self.after[0].child == self.id


class Receipt(Struct, frozen=True, array_like=True, gc=False):
    """The job that stands for what was asked, and whether it is new."""

    id: str
    verdict: Verdict
    differs: bool = False  # it joined a job whose payload is another; its own is not used

    @property
    def is_new(self) -> bool:
        return self.verdict in (Verdict.NEW, Verdict.REOPENED)


class Lease(Struct, eq=False, gc=False):
    """One worker's right to run one job for a while. Only its store reads `ref` and `token`."""

    id: str
    queue: str
    kind: str
    payload: bytes | Raw
    attempt: int  # this one; the first is 1
    attempts: int
    token: int | str
    ref: Any = None
    key: str | None = None
    lane: str | None = None
    thread: str | None = None
    cause: str | None = None
    meta: bytes | None = None
    flow: str | None = None
    node: str | None = None
    keep: int = 0
    inserted_at: int = 0
    claimed_at: int = 0
    turn: int = 0  # how often an earlier run of this job has ended by plan
    suspicion: int = 0  # a Suspicion
    crashes: int = 0  # how often its process died while it ran alone, since a run last ended
    expires: float = 0.0  # when it lapses unless extended, on the clock of its worker's event loop
    sealed_by: str | None = None  # the name of the key that its payload was sealed with


class Failure(Struct, frozen=True, kw_only=True):
    """Why an attempt did not end well; at most 8 KiB in all, and never a payload."""

    type: str
    message: str
    trace: str = ""
    fingerprint: str = ""  # equal for errors that are the same mistake


class Ending(Struct, frozen=True, gc=False):
    """How a run ended, as a store needs to know it. `settle` is the only way a run ends."""

    lease: Lease
    state: State  # DONE, SCHEDULED (again, after delay), DEAD, CANCELLED, PARKED or HELD
    delay: int = 0
    spend: bool = True  # False: this attempt does not count; with a result, none so far does
    failure: Failure | None = None
    result: bytes | None = None  # JSON, for a flow's parent and for people
    park: str | None = None  # what it is parked behind
    planned: bool = False  # SCHEDULED because that was the plan: the job's turn rises by one;
    # nothing else raises it, and nothing sets it back
    released: bool = False  # SCHEDULED because it never began: no line in its history
    suspicion: int = 0  # what the job is left with where it has not ended
    crashes: int = 0


class Attempt(Struct, frozen=True, kw_only=True):
    """One line of a job's history."""

    number: int
    outcome: str  # done, retry, snooze, dead, held, parked, rescued, cancelled
    began_at: int
    ended_at: int
    worker: str = ""
    failure: Failure | None = None


class Joined(Struct, frozen=True, kw_only=True):
    """A command that joined a job by its key, and whose own, different payload is not used."""

    id: str  # which the command would have had as a job of its own
    cause: str | None  # the job or delivery that asked for it
    at: int


class Job(Struct, kw_only=True):
    """A job as a person sees it. Moments are the store's milliseconds."""

    id: str
    queue: str
    kind: str
    state: State
    payload: bytes
    priority: int
    attempt: int  # spent so far, the running one included; a run lost with its worker spends none
    attempts: int
    inserted_at: int
    run_at: int
    ended_at: int | None = None
    lease_until: int | None = None
    worker: str | None = None
    key: str | None = None
    unique: Unique = "unfinished"
    lane: str | None = None
    park: str | None = None
    thread: str = ""
    cause: str | None = None
    meta: bytes | None = None
    flow: str | None = None
    node: str | None = None
    result: bytes | None = None
    failure: Failure | None = None  # the last one; None where the last run ended well: see history
    note: str = ""  # what a person wrote when discarding or deciding
    history: tuple[Attempt, ...] = ()
    turn: int = 0  # how often a run of it has ended by plan
    suspicion: int = 0  # a Suspicion; 0 once it has ended
    crashes: int = 0  # how often its process died while it ran alone, since a run last ended
    remember: int = 0
    keep: int = 0  # milliseconds for which it is kept once done; find() alone tells
    joined: int = 0  # how many commands with another payload joined it; find() alone tells
    joins: tuple[Joined, ...] = ()  # the newest JOINS of these, oldest first; find() alone tells
    after: tuple[After, ...] = ()
    before: tuple[str, ...] = ()  # the jobs that wait for this one
