"""Store, the protocol every storage engine keeps.

Every verb takes a list and answers with a list of the same length and order, in as few round trips
as the engine allows. Every verb answers, or raises StoreUnavailable, within `DEADLINE` seconds.
Time is the store's own, in milliseconds; callers pass lengths, not moments.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from relevo.durations import Timing
from relevo.job import (
    Ending,
    Failure,
    Job,
    Lease,
    NewJob,
    Receipt,
    State,
    Suspicion,
    Verdict,
)

DEADLINE = 5.0
BATCH = 1_000
"""The most a caller hands to one verb at once."""

NO_RESULTS: Mapping[str, bytes] = MappingProxyType({})

KNOWN = 60_000
"""Milliseconds after its end for which a job must be known, if it may be handed in again by its id:
one that has run and left no trace would run again."""

DELIVERY_KEEP = 30 * 86_400_000
"""Milliseconds for which a delivery is kept in full."""

REFUSED_KEEP = 3 * 86_400_000
"""Milliseconds for which a refused delivery is kept; nothing of it stays."""

RATE_MARGIN = 50
"""Milliseconds added to the window of a rate: a claim's answer needs time to arrive, and two of
them not always the same."""


class Want(Struct, frozen=True, kw_only=True):
    """A queue a worker serves, and the limits its jobs live under across the whole fleet."""

    queue: str
    limit: int | None = None  # running at once
    lane_limit: int | None = None  # running at once per lane; 1 and `ordered` for strict order
    # At most so many begin in any window of so many milliseconds, RATE_MARGIN included.
    rate: tuple[int, int] | None = None
    lane_rate: tuple[int, int] | None = None
    burst: int | None = None  # of `rate` or `lane_rate`: so many may begin at once after a rest,
    # and `rate` is the average; None: no window of that length ever has more
    ordered: bool = False  # a lane's jobs one at a time, in the order they were committed
    lanes: dict[str, int] = {}  # of single lanes: no more may be running at once; 0: none begins


class Claim(Struct, frozen=True):
    """What a claim brought, and in how many milliseconds to look again if nothing wakes us."""

    leases: list[Lease]
    next_due: int | None = None


class Rescued(Struct, frozen=True):
    """A job taken back from a worker that went silent; it is READY again."""

    id: str
    queue: str
    worker: str


class Loss(Struct, frozen=True, kw_only=True):
    """What the death of its worker process means for one job that was running in it."""

    id: str
    failure: Failure  # a line of the job's history says so
    suspicion: Suspicion = Suspicion.NONE  # how the job's own rises: see suspected()
    is_excused: bool = False  # the crash that isolate() has counted does not count


class Sweep(list[Rescued]):
    """Jobs taken back, and in how many milliseconds the next lease lapses; None: nothing runs."""

    def __init__(self, rescued: Iterable[Rescued] = (), next_lapse: int | None = None) -> None:
        super().__init__(rescued)
        self.next_lapse = next_lapse


class Note(Struct, frozen=True, kw_only=True):
    """A small thing remembered: a breaker's state, a poller's cursor, a schedule's last tick."""

    kind: str
    name: str
    value: bytes  # JSON
    version: int = 0  # as read; what is written must still have it. 0: must not exist yet
    ttl: int | None = None  # milliseconds; None: for good
    updated_at: int = 0


EDITS = "edit"
"""The kind of the notes that hold what was in a job before a person edited it, and after it."""

SEALED_NOTES = frozenset({EDITS})
"""The kinds of notes that are sealed wherever payloads are."""


class EffectState(StrEnum):
    """How far an effect outside has come."""

    INTENDED = "intended"  # about to be asked for, or died while asking
    CONFIRMED = "confirmed"
    REFUSED = "refused"  # the answer was no; asking again needs another key
    FAILED = "failed"  # known not to have happened; may be asked for again with the same key
    UNKNOWN = "unknown"  # may have happened


UNDECIDED = frozenset({EffectState.INTENDED, EffectState.UNKNOWN})
"""An effect in such a state may have happened."""


class Effect(Struct, frozen=True, kw_only=True):
    """One line of the effect ledger. Its identity is (job, name)."""

    job: str
    queue: str
    name: str
    key: str  # the idempotency key the provider is given
    state: EffectState = EffectState.INTENDED
    result: bytes | None = None  # JSON
    error: str = ""
    attempt: int = 0  # the attempt that wrote it last
    run: str = ""  # the very run that wrote it last; an attempt handed back keeps its number.
    # A person's decision belongs to none
    thread: str = ""
    created_at: int = 0
    updated_at: int = 0
    decided_by: str = ""  # the person, when it was one


class Conclusion(Effect, frozen=True, kw_only=True):
    """An effect as a run writes it that has read what an earlier run wrote."""

    follows: str | None = None  # the `run` that was read; None: this run's own


def follows(effect: Effect) -> str | None:
    """The earlier run that the run of an effect goes on from."""
    return effect.follows if isinstance(effect, Conclusion) else None


def decision(effect: Effect) -> str:
    """What the audit calls it when a person says how an effect ended."""
    return "confirm" if effect.state is EffectState.CONFIRMED else "deny"


class WorkerState(StrEnum):
    """What is known of a worker process."""

    OK = "ok"
    BLOCKED = "blocked"  # alive, but its event loop does not answer
    SILENT = "silent"  # no beat within its time, or since its jobs were taken back
    GONE = "gone"  # its process is dead, and its jobs were taken back


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A process that shows it is alive."""

    id: str
    state: WorkerState = WorkerState.OK  # of itself it says OK or BLOCKED
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    running: int = 0  # jobs it has leases of, not yet begun ones included, as the store counts them
    started_at: int = 0
    beat_at: int = 0
    version: str = ""  # of relevo
    schema: int = 0  # the newest that its code knows; the store writes it
    note: str = ""  # such as "event loop blocked"
    overdue: list[str] = []  # jobs whose plain functions run past their time limits; 100 at most
    threads: int = 0
    children: int = 0  # processes for commands with isolate="process"
    memory: int = 0  # bytes, its child processes included; 0 where the system does not say it
    cpu: float = 0.0  # of one core: 1.0 is all of it, since the last beat
    lag: int = 0  # milliseconds for which its event loop answered nobody, at worst since then
    slots: dict[str, int] = {}  # of the queues that may not take all of them
    busy: dict[str, int] = {}  # jobs of each queue that are running
    timings: list[Timing] = []  # how long its runs and effects have taken in the last minutes

    @property
    def is_alive(self) -> bool:
        return self.state in (WorkerState.OK, WorkerState.BLOCKED)


class Schema(NamedTuple):
    """The version of a store's tables or keys, and the oldest code that may work on them."""

    number: int  # the last step that was taken; 0: there are none
    readable_from: int  # the last step that the oldest code knows that may work on them
    known: int  # the last step that the code here knows


class Holding(NamedTuple):
    """The running jobs of a worker."""

    jobs: int = 0
    until: int = 0  # when the last of their leases lapses


def seen(info: WorkerInfo, now: int, beat_at: int, silent_at: int, held: Holding) -> WorkerInfo:
    """A worker as people see it, from what it said of itself and the jobs that it has."""
    state = info.state
    is_lapsed = beat_at < held.until <= now
    if state is not WorkerState.GONE and (silent_at <= now or is_lapsed):
        state = WorkerState.SILENT
    return replace(info, state=state, running=held.jobs, beat_at=beat_at)


class QueueMode(StrEnum):
    """Whether a queue gives work out and takes it in."""

    OPEN = "open"
    PAUSED = "paused"  # takes in, gives nothing out
    DRAINING = "draining"  # gives out, takes nothing in


class Tally(Struct, frozen=True, kw_only=True):
    """How many jobs a queue has in each state, how old its oldest is, and how late its first."""

    queue: str
    mode: QueueMode = QueueMode.OPEN
    counts: dict[State, int]
    oldest: int | None = (
        None  # milliseconds since the first that is ready, parked or held was ordered
    )
    late: int | None = None  # milliseconds that the first ready one is past its due time
    is_estimate: bool = False  # its done jobs are too many to count: estimated from a sample


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs a person means."""

    queue: str | None = None
    states: frozenset[State] = frozenset()  # empty: any
    kind: str | None = None
    key: str | None = None
    lane: str | None = None
    park: str | None = None
    thread: str | None = None
    flow: str | None = None
    fingerprint: str | None = None
    text: str | None = None  # found literally in payload, key or error
    error: str | None = None  # found literally in "type: message" of its last error
    since: int | None = None  # ended then or later; one that has not ended: enqueued
    until: int | None = None  # ended before, or enqueued before


class Page(Struct, frozen=True):
    """Some jobs, newest first, and where the next page starts."""

    jobs: list[Job]
    cursor: str | None = None


class Group(Struct, frozen=True, kw_only=True):
    """Dead letters that are the same mistake."""

    fingerprint: str
    queue: str
    type: str
    message: str  # of the newest
    count: int
    first_at: int
    last_at: int
    sample: str  # a job's id


class Gate(StrEnum):
    """Whom a group of jobs takes as new members."""

    OPEN = "open"  # all
    CLOSED = "closed"  # what its live members add
    SHUT = "shut"  # none, and its job does not go on: it is being cancelled


class JobGroup(Struct, frozen=True, kw_only=True):
    """How far a group of jobs has come; its identity is the job that waits for all of them."""

    id: str
    queue: str  # of that job
    name: str
    gate: Gate
    members: int
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    opened_at: int
    closed_at: int | None = None

    @property
    def live(self) -> int:
        """How many members have not ended."""
        return self.members - self.done - self.dead - self.cancelled


class Audit(Struct, frozen=True, kw_only=True):
    """One thing a person did."""

    who: str
    verb: str
    target: str  # a job id, a queue, an effect
    note: str = ""
    at: int = 0
    before: str = ""  # hashes: what it was, what it became
    after: str = ""


class By(Struct, frozen=True):
    """Who acts, and why; it is written down in the same step as the act."""

    who: str  # "" for a part of a decision that is written down already, by audit()
    note: str = ""


class Edit(Struct, frozen=True, kw_only=True):
    """What a person may change in a job that is not running."""

    id: str
    payload: bytes | None = None
    priority: int | None = None
    run_at: int | None = None
    attempts: int | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """Something `relevo doctor` has to say."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str  # what is so, and what to do about it


class Letter(Struct, frozen=True):
    """A job in the outbox, and whether it was carried."""

    job: NewJob
    posted_at: int
    is_carried: bool = False
    seq: int = 0  # letters are numbered in the order in which they were posted


class DeliveryState(StrEnum):
    """What became of a delivery. In every state but REFUSED its key is known from then on."""

    ACCEPTED = "accepted"  # its jobs were stored in the same step
    IGNORED = "ignored"  # signed well, and nothing came of it: the endpoint does not want its type
    FAILED = "failed"  # signed well, but our code failed on it; a job runs its function again
    DIFFERS = "differs"  # its key was known with another body; kept, and nothing came of it
    REFUSED = "refused"  # a wrong signature, or beyond a limit


UNSIGNED = 401
"""The status of a refused delivery that is not known to come from its provider."""

NOT_KEPT = b"(not kept: "
"""So begins what stands in place of the body of a call that nobody signed: its size and hash."""

STATE_NUMBERS = {
    DeliveryState.ACCEPTED: 0,
    DeliveryState.REFUSED: 1,
    DeliveryState.IGNORED: 2,
    DeliveryState.FAILED: 3,
    DeliveryState.DIFFERS: 4,
}
"""The states of deliveries as databases hold them."""


class Kept(Struct, frozen=True, kw_only=True, gc=False):
    """A delivery as it is kept: what came, what was answered, and the jobs that came of it.

    Its identity is (endpoint, key, generation). Generations after the first, which is 0, are
    replays by people; a negative one is another body that came under a known key.
    """

    id: str
    endpoint: str  # the webhook, as app:/path
    key: str | None  # what makes it the same delivery again; None: it has none, or is pruned
    generation: int = 0
    state: DeliveryState = DeliveryState.ACCEPTED
    reason: str = ""  # why nothing came of it, or what is missing in its jobs, for our own people
    method: str = "POST"
    path: str = ""
    query: str = ""  # without secrets
    headers: bytes = b"[]"  # JSON pairs, by allow-list
    body: bytes = b""
    answer: bytes = b""  # msgpack of an Answer; the same is given to whoever delivers it again
    status: int = 200  # as answered; UNSIGNED for any that no signature vouches for
    jobs: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()  # of `jobs`, those that have another payload: this delivery's own
    # is not used. Not stored: a desk tells, from `Job.joins`
    thread: str | None = None
    received_at: int = 0  # the store's time, unless it came by way of a spool
    repeats: int = 0  # how often it came again
    repeated_at: int = 0
    differs: bool = False  # it came again with another body


FAILED_OF = "its function failed: "
"""How the reason of a delivery begins whose function raised an error."""

UNHANDLED = frozenset({DeliveryState.FAILED, DeliveryState.DIFFERS})
"""Nothing has come yet of a delivery in such a state."""


def stands_for(job: str, kept: Kept) -> bool:
    """Whether a job is to run the function of a stored delivery; "" is for one without any."""
    return job in kept.jobs or (not job and not kept.jobs and kept.state in UNHANDLED)


class Arrival(Struct, frozen=True, gc=False):
    """A delivery to keep, and the jobs its handler made of it: all or nothing."""

    kept: Kept
    jobs: tuple[NewJob, ...] = ()
    body: bytes | None = None  # what to compare, where it is not the one to keep; never stored

    @property
    def compared(self) -> bytes:
        """What tells whether it came again with another body."""
        return self.kept.body if self.body is None else self.body


class Reception(Struct, frozen=True, gc=False):
    """What receive() did with an arrival; `kept` is the stored one, so its answer is the first."""

    kept: Kept
    verdict: Verdict  # NEW, DONE: it was here before, CLOSED: a queue takes nothing in
    differs: bool = False  # it was here before with another body


class Letterbox(Struct, frozen=True, kw_only=True):
    """Which deliveries a person means."""

    endpoint: str | None = None
    state: DeliveryState | None = None
    key: str | None = None
    thread: str | None = None
    text: str | None = None  # found literally in key, body or reason


class SealedValue(Struct, frozen=True, kw_only=True):
    """Bytes as they are stored, with something sealed in them; only the store reads the place."""

    place: tuple[Any, ...]
    data: bytes


class Store(Protocol):
    """Where jobs live."""

    @property
    def name(self) -> str:
        """sqlite, postgres, redis or cluster."""
        ...

    @property
    def url(self) -> str:
        """The address, without its password."""
        ...

    @property
    def dsn(self) -> str:
        """The address in full; it is where the application's own tables live by default."""
        ...

    # life

    async def open(self) -> None:
        """Connect. SchemaMismatch if the tables are older than this code or for newer code only."""
        ...

    async def close(self) -> None:
        """Let go of everything; safe to call twice."""
        ...

    async def migrate(self) -> list[str]:
        """Bring the tables up to date and name the steps taken; any number of processes at once.

        SchemaMismatch if they are for newer code only, or a worker is alive that could not go on.
        """
        ...

    async def schema(self) -> Schema:
        """The version of the tables, asked without opening the store."""
        ...

    def spawn(self) -> Store:
        """Another handle on the same store, not yet open, for another thread and event loop."""
        ...

    async def now(self) -> int:
        """The store's time."""
        ...

    async def check(self) -> list[Finding]:
        """What is wrong, or could become so, with the store's own settings."""
        ...

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Store jobs durably before answering.

        An id already stored is not stored again: a job may be carried twice. Jobs of one bundle are
        stored all or none. A job with `after` waits; its children may be in the same call or stored
        before.

        The id of a job with `remember` is answered for so many milliseconds after its row is gone
        (pruned, erased, or not kept at all), or after the command joined or reopened another job by
        its key: asked for again it stores and changes nothing, also where its queue is draining,
        and the receipt names the job that stands for it, IN_PROGRESS while that is live and DONE
        otherwise. prune() forgets the ids whose time is over.

        A command that joins a job by its key (unfinished or forever) whose `digest` is another
        leaves a line on that job (`Job.joined`, `Job.joins`), and its receipt says `differs`, as
        long as the job's row is there. Digests whose first byte differs were made under different
        keys and say nothing. A job that is reopened has the digest of the command that reopened it,
        and keeps its turn.

        With unique="latest" each command is stored as a job of its own, NEW. Of the jobs of one
        queue and key that have never started only the one accepted last is given out, when it is
        due, whatever the priority: an older one does not run in its place, even if that is due
        later. The claim that takes it, or meets an older one, ends the older ones CANCELLED,
        "replaced by ID" in their note. While a job of the key has started and not ended (it runs,
        is held, parked or awaits a retry), the others wait behind it; a claim that meets the newest
        makes it SCHEDULED, and it goes on within a second of the other's end. retry() answers
        False for a job if a newer one of its key is live or has ever started.
        """
        ...

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        """The same inside a driver connection's open transaction; workers wake when it commits.

        MisuseError on stores that are no SQL database.
        """
        ...

    def committed(self, queues: Sequence[str]) -> None:
        """Say that a transaction with `insert_within` has committed, where the store can't know."""
        ...

    # deliveries

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        """Keep deliveries and store their jobs, durably, before answering.

        A delivery whose (endpoint, key, generation) is kept already stores nothing: its count of
        repeats grows, a body that is not the same is marked, and the first answer comes back. The
        jobs of an arrival carry ids made from the delivery, so that on a store without
        transactions, where they go first, a half-done receive is finished by the next one. The
        store writes `received_at` unless it is given, and as `jobs` those that now stand for the
        arrival's. The body of one that was here before does not come back.
        """
        ...

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        """The same inside a driver connection's open transaction, which the caller rolls back if
        the verdict is not NEW."""
        ...

    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        """Write down what came of a delivery whose function `job` was to run, and store that.

        `arrival.kept` has the delivery's id, endpoint and generation. While `job` is among the jobs
        of the stored delivery, or is "" for an UNHANDLED one that has none, the arrival's jobs are
        stored and the delivery gets the arrival's key, state, reason, status and answer, and as
        `jobs` those that now stand for the arrival's, or those that its delivery names where it
        brings none: NEW. Else another was first, or the delivery is pruned: DONE. CLOSED: a queue
        takes nothing in. Neither changes anything.

        The delivery's body, headers, thread, age and repeats stay. A key that is new to it is known
        from then on beside the one it had, unless another delivery has it. On a store without
        transactions the jobs go first, by the ids that they would have again.
        """
        ...

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        """Call resolve() inside a driver connection's open transaction, which the caller rolls
        back if the verdict is not NEW."""
        ...

    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        """The newest generation kept under each key, without bodies; pruned ones still have their
        answer."""
        ...

    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        """What was delivered, newest first, without bodies; pruned ones are not listed."""
        ...

    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        """Deliveries in full."""
        ...

    # out

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        """Take up to `count` due jobs, shared evenly over the queues, high priority first.

        Paused queues give nothing. No job is given to two workers under live leases.
        """
        ...

    async def extend(self, leases: Sequence[Lease], lease: int) -> list[bool]:
        """Keep leases alive; False where the job has gone to someone else or was cancelled."""
        ...

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        """End runs; False, and nothing changed, where the lease is no longer ours.

        The settle of a flow's last child releases its parent in the same step.
        """
        ...

    def turn(self) -> AbstractAsyncContextManager[None]:
        """The right to hold a write transaction of one's own on the store's database.

        SQLite has one writer: its turns come in order. Others give it at once.
        """
        ...

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        """The same inside a driver connection's open transaction."""
        ...

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        """Return when one of the queues may have work, or after `timeout` seconds.

        A wake-up that came between the last claim and this call is not lost.
        """
        ...

    # effects

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        """Write intentions down durably; where (job, name) is there already, that one comes."""
        ...

    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        """Write how they ended, and under which key; False, and nothing changed, if it may not be.

        A confirmed effect stays confirmed. Any other is written by its own `run`, by the run that
        `follows` it, and by a person. A run that comes late, after another one or a person has
        written the effect, changes nothing with an intent, a failure, a refusal or a doubt. Its
        confirmation is a fact about its key: it stands, unless the effect is undecided under
        another key, which may have happened, too.
        """
        ...

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        threads: frozenset[str] = frozenset(),
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        """The ledger, newest first; `text` is found in key or result.

        No index knows `threads`: the whole ledger is looked through.
        """
        ...

    # memory

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        """What was remembered under these names."""
        ...

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        """Write each note if its version is still the stored one (the next is version + 1)."""
        ...

    async def recall_within(
        self, connection: Any, kind: str, names: Sequence[str]
    ) -> list[Note | None]:
        """The same inside a driver connection's open transaction, which sees its own notes."""
        ...

    async def remember_within(self, connection: Any, notes: Sequence[Note]) -> list[bool]:
        """The same; the notes are kept when it commits."""
        ...

    async def forget(self, kind: str, names: Sequence[str]) -> int:
        """Remove; answers how many there were."""
        ...

    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        """Notes of a kind in the order of their names."""
        ...

    # groups of jobs

    async def set_gate(self, ids: Sequence[str], gate: Gate) -> list[bool]:
        """Close groups, or shut them; False where that changes nothing.

        One that is closed and has no live member goes on in the same step. One that is shut was
        open or closed, and stays shut.
        """
        ...

    async def job_groups(self, ids: Sequence[str]) -> list[JobGroup | None]:
        """How far groups have come, by the ids of their jobs, as long as these are kept."""
        ...

    async def newest_groups(self, limit: int = 50) -> list[JobGroup]:
        """The groups that were opened last, newest first."""
        ...

    async def live_members(self, id: str, limit: int = BATCH) -> list[str]:
        """Some members of a group that have not ended, by the ids of their jobs."""
        ...

    # upkeep

    async def rescue(
        self,
        limit: int = BATCH,
        *,
        worker: str | None = None,
        losses: Sequence[Loss] = (),
        queues: Sequence[str] | None = None,
    ) -> Sweep:
        """Take back the jobs whose lease has lapsed, or all of `worker`, which is known to be gone.

        In these queues at least, or in all; whoever serves a queue sweeps it often. A rescued job
        is READY, however often that has happened, and its run has spent no attempt.

        Of a worker that is known to be gone, the jobs in `losses` were running: their history gets
        a line, and their suspicion rises by one, at least to what the loss says; NONE leaves it.
        Its other jobs had never begun, and are given back as they were. Where a lease has lapsed,
        it is not known whether the run had begun: the job's history gets a line, and its suspicion
        rises by one. It is ALONE at most.
        """
        ...

    async def isolate(self, leases: Sequence[Lease], *, is_alone: bool = True) -> list[bool]:
        """Count a crash for each job before it runs alone; False where the lease is no longer ours.

        Its crashes are those of the lease and one more, or without `is_alone`, which says that
        other jobs run beside it again, those of the lease. The ending of the run writes them anew
        (`Ending.crashes`), so that a crash stays counted only if there is none.
        """
        ...

    async def unpark(
        self,
        park: str,
        *,
        limit: int | None = None,
        spread: int = 0,
        ids: Sequence[str] | None = None,
    ) -> int:
        """Let parked jobs go on, oldest first, spread evenly over so many milliseconds.

        All that are parked behind it, or of these `ids` alone. Answers how many went.
        """
        ...

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        """Remove what has been kept long enough, at most `limit` rows; keys stay as promised.

        Of deliveries older than `DELIVERY_KEEP` only the key's hash and the answer stay; failed
        ones stay as long as dead jobs, if that is longer; those refused go after `REFUSED_KEEP`.
        Effects of a job that has not ended stay, and any for as long as deliveries, which may be
        replayed.
        """
        ...

    async def beat(self, worker: WorkerInfo, ttl: int) -> None:
        """Show that a worker is alive."""
        ...

    async def leave(self, worker: str) -> None:
        """Show that a worker has gone politely."""
        ...

    async def silence(self, workers: Sequence[str], *, is_gone: bool = False) -> None:
        """Show that workers have lost their jobs: silent until they beat again, or gone."""
        ...

    # people

    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        """Jobs with their history."""
        ...

    async def page(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        """Jobs without history, newest first."""
        ...

    async def count(self, where: Filter, *, most: int = 10_000) -> int:
        """How many jobs a filter means; counting stops at `most`."""
        ...

    async def tally(self) -> list[Tally]:
        """Every queue that has, or had, jobs; counts of done jobs may be as of the last minute."""
        ...

    async def groups(self, *, queue: str | None = None, limit: int = 50) -> list[Group]:
        """Dead letters by fingerprint, most first."""
        ...

    async def workers(self) -> list[WorkerInfo]:
        """The workers of the last day, with the number of their running jobs."""
        ...

    async def retry(self, ids: Sequence[str], by: By, *, spread: int = 0) -> list[bool]:
        """Ready again with fresh attempts: dead, held, parked, cancelled or scheduled jobs.

        Spread evenly over so many milliseconds. False where the job is in no such state, or a
        younger one has its key.
        """
        ...

    async def edit(self, edits: Sequence[Edit], by: By) -> list[bool]:
        """Change jobs that are not running nor done."""
        ...

    async def cancel(self, ids: Sequence[str], by: By) -> list[bool]:
        """End jobs that have not ended; a running one loses its lease."""
        ...

    async def discard(self, ids: Sequence[str], by: By) -> list[bool]:
        """Put dead or held jobs aside as cancelled, with the reason."""
        ...

    async def erase(
        self, jobs: Sequence[str], deliveries: Sequence[str], by: By, *, act: str
    ) -> tuple[int, int]:
        """What prune() does in time, at once: of these nothing is left but hashes and answers.

        Ended jobs go with their attempts, edges, results and effects; effects also where the job
        itself is gone already. Jobs that have not ended are left alone. Answers how many jobs and
        deliveries went; if any did, the audit has one line, whose target is `act`.
        """
        ...

    def sealed_values(self) -> AsyncGenerator[list[SealedValue]]:
        """All values in which something is sealed, some at a time.

        Not the payloads of jobs of which a run has begun and may be repeated, dead ones included:
        a run makes the ids of its follow-ups under the key of its payload, and under another key
        it would order them a second time.
        """
        ...

    async def swap_values(self, values: Sequence[tuple[SealedValue, bytes]]) -> int:
        """Replace values that are still as they were read; answers how many were."""
        ...

    async def set_mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        """Pause, drain or open queues; False where it was so already."""
        ...

    async def audit(self, rows: Sequence[Audit]) -> None:
        """Write down what a person did elsewhere."""
        ...

    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        """What people did, newest first."""
        ...


class Outbox(Protocol):
    """What a SQL store keeps for a store that lives elsewhere."""

    async def post(self, jobs: Sequence[NewJob]) -> list[Verdict]:
        """Keep letters, durably: NEW, IN_PROGRESS if there is one of that id, DONE if that id has
        been marked as ended; these change nothing."""
        ...

    async def post_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        """Keep letters inside a driver connection's open transaction."""
        ...

    async def receive_posted(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        """Keep deliveries, and their jobs as letters, in one step."""
        ...

    async def receive_posted_within(self, connection: Any, arrival: Arrival) -> Reception:
        """The same inside a driver connection's open transaction."""
        ...

    async def resolve_posted(self, job: str, arrival: Arrival) -> Reception:
        """resolve(), with the jobs as letters."""
        ...

    async def resolve_posted_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        """Call resolve_posted() inside a driver connection's open transaction."""
        ...

    async def letters(self, *, carried: bool, after: int = 0, limit: int = BATCH) -> list[Letter]:
        """Open letters in the order in which they were posted, after the one of that `seq`: those
        to be carried, or those that were."""
        ...

    async def mark_carried(self, ids: Sequence[str]) -> None: ...

    async def close_letters(
        self, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        """Mark jobs as ended, letter or not; True for the first to do so.

        The first one's result is kept until drop_results(): the other store may never hear of it
        from the process that had it.
        """
        ...

    async def close_letters_within(
        self, connection: Any, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]: ...

    async def results(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The results of jobs that have been marked as ended, where they are still kept."""
        ...

    async def drop_results(self, ids: Sequence[str]) -> None:
        """Forget results: the other store has them."""
        ...

    async def drop_letters(self, ids: Sequence[str]) -> None:
        """Forget open letters: their jobs are the other store's alone from now on."""
        ...

    async def closed(self, ids: Sequence[str]) -> list[bool]:
        """Which of these jobs have been marked as ended."""
        ...

    async def prune_posted(self, *, dead_keep: int, limit: int = BATCH) -> int:
        """Call prune(), but leave the effects: the other store knows whose jobs have not ended."""
        ...

    async def old_effects(
        self, *, dead_keep: int, after: int = 0, limit: int = BATCH
    ) -> list[tuple[int, str]]:
        """The effects that prune() may remove once their jobs have ended, after the one of that
        number: a number that rises, and the job."""
        ...

    async def drop_effects(self, numbers: Sequence[int], *, dead_keep: int) -> int:
        """Remove those of these effects that are still old; answers how many."""
        ...

    async def prune_letters(self, *, keep: int, limit: int = BATCH) -> int:
        """Forget ends older than `keep` milliseconds."""
        ...


class SqlStore(Store, Outbox, Protocol):
    """A store that is a database."""
