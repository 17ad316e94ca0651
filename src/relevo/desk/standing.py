"""What stands and goes on by itself: breakers, pollers, schedules, the outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from relevo.breaker import KIND as BREAKER
from relevo.breaker import Breakers, Circuit
from relevo.clock import SystemClock
from relevo.desk.looking import PAGE_MAX, Looking
from relevo.desk.people import Person
from relevo.errors import DefinitionError, MisuseError, NotFoundError
from relevo.job import ENDED, LIVE, Job, State, Unique
from relevo.joining import KIND as JOINED
from relevo.joining import decode as decode_joins
from relevo.message import Spec
from relevo.outcome import behind
from relevo.payload import mask, plain
from relevo.poller import PAUSED, RUN, Progress
from relevo.scrubbing import mask as mask_text
from relevo.store import Audit, By, Filter, Letter, Note, Outbox
from relevo.storetime import StoreTime
from relevo.waiting import KIND as WAITING
from relevo.waiting import decode as decode_wait
from relevo.waiting import is_waiting

RECURRING_MAX = 2_000

What: TypeAlias = Literal["poller", "schedule"]
_MODULES: dict[What, str] = {"poller": "pollers", "schedule": "schedules"}
_KINDS: dict[What, str] = {"poller": "poll:", "schedule": "tick:"}
_BAD = "bad:"  # the kind of the items that pollers put aside

_PARKED = frozenset({State.PARKED})

_progress = msgspec.json.Decoder(Progress).decode


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker, and how many jobs it holds back."""

    name: str
    circuit: Circuit
    parked: int


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait without spending an attempt, for a person or for a provider."""

    name: str  # what they are parked behind; the queue of postponed ones
    queue: str
    job: str  # the one that has waited for longest, as far as is known
    since: int
    why: str
    parked: int  # 0: they are postponed, and go on by themselves


class JoinsView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue in which commands joined a job by their key, and their own payload is not used."""

    queue: str
    kind: str  # of the last one
    unique: Unique
    count: int
    job: str  # which the last one joined
    since_at: int
    last_at: int


class UniqueView(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait and were stored under another `unique` than their command says now."""

    queue: str
    kind: str
    stored: Unique
    unique: Unique
    count: int  # of the newest 200 of the queue
    job: str  # one of them

    def __str__(self) -> str:
        return (
            f"jobs of {self.kind} wait that were stored with unique='{self.stored}', and it says "
            f"'{self.unique}' now ({self.count:,} of the newest {PAGE_MAX}, such as {self.job}): "
            "they go on as they were stored, and until they have ended a new command with the key "
            "of one of them may run beside it"
        )


class RecurringView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a poller, or a schedule: the job that never ends, and what it remembers."""

    name: str  # the poller's key, the schedule's name
    function: str
    job: str
    queue: str
    state: State
    is_paused: bool
    next_at: int | None  # None when it is running, or has ended
    last_at: int
    failures: int
    error: str
    cursor: bytes | None  # JSON, as the last turn left it
    turned_at: int = 0  # the last turn, good or not
    is_silent: bool = False  # its turn should have been over for longer than its heartbeat
    bad: int = 0  # items put aside that are dead letters now
    joined: tuple[str, ...] = ()  # of a schedule's last tick: jobs that its commands joined by key


class OutboxView(msgspec.Struct, frozen=True, kw_only=True):
    """The letters that wait, oldest first."""

    waiting: list[Letter]  # to be carried to the store
    carried: list[Letter]  # carried, and their jobs have not ended
    lag: int  # milliseconds that the oldest has waited to be carried
    is_cut: bool


class Standing(Looking):
    """What a person may see of them, and do to them."""

    # breakers

    async def breakers(self) -> list[BreakerView]:
        """Every breaker that was ever troubled, open ones first."""
        views = [
            BreakerView(name=name, circuit=self._readable(circuit), parked=parked)
            for name, circuit, parked in await self._breakers().all()
            if await self._sees_breaker(name)
        ]
        return sorted(views, key=lambda view: (view.circuit.state == "closed", view.name))

    async def breaker(self, name: str) -> BreakerView:
        """One breaker with its history."""
        [note] = await self.store.recall(BREAKER, [name])
        if note is None or not await self._sees_breaker(name):
            raise NotFoundError(
                f"no breaker {name!r:.80} was ever troubled; those that were: `relevo breakers ls`"
            )
        circuit = msgspec.json.decode(note.value, type=Circuit)
        parked = await self.store.count(Filter(park=behind(name)))
        return BreakerView(name=name, circuit=self._readable(circuit), parked=parked)

    async def turn_breaker(
        self, name: str, verb: Literal["open", "close", "probe"], by: Person, note: str = ""
    ) -> BreakerView:
        """Open, close or probe by hand; what it held back is let go when it closes."""
        signed = by.acts("turn_breaker", note)
        if not 0 < len(name) <= 512:
            raise DefinitionError("a breaker's name has 1 to 512 characters")
        if self.apps is not None and not await self._sees_breaker(name):
            raise NotFoundError(f"no breaker {name!r:.80} was ever troubled")
        await self._breakers().turn(name, verb, signed)
        return await self.breaker(name)

    def _readable(self, circuit: Circuit) -> Circuit:
        turns = tuple(replace(turn, why=self.told(turn.why)) for turn in circuit.history)
        return replace(circuit, history=turns)

    def _breakers(self) -> Breakers:
        # Fresh each time: whoever stands at a desk wants no second-old memory.
        return Breakers(self.store, StoreTime(self.store, SystemClock()))

    async def _sees_breaker(self, name: str) -> bool:
        # A breaker belongs to no app; a desk of some apps knows it by the jobs it holds back.
        return self.apps is None or await self.count(Filter(park=behind(name)), most=1) > 0

    # jobs that wait

    async def waiting(self) -> list[WaitView]:
        """Jobs that wait for a key to be mended, or that were postponed for long."""
        notes: list[Note] = []
        while more := await self.store.notes(WAITING, after=notes[-1].name if notes else ""):
            notes += more
        waits = [decode_wait(note.value) for note in notes]
        found: list[WaitView] = []
        for note, wait in zip(notes, waits, strict=True):
            if not self.sees(wait.queue):
                continue
            if wait.park:
                parked = await self.count(Filter(park=wait.park, states=_PARKED))
                is_over = not parked
            else:
                [job] = await self.store.find([wait.job])
                parked, is_over = 0, not is_waiting(job)
            if not is_over:
                found.append(
                    WaitView(
                        name=note.name,
                        queue=wait.queue,
                        job=wait.job,
                        since=wait.since,
                        why=self.told(wait.why),
                        parked=parked,
                    )
                )
        return sorted(found, key=lambda view: (not view.parked, view.since))

    async def joins(self) -> list[JoinsView]:
        """The queues in which commands joined a job with another payload lately, most first."""
        notes: list[Note] = []
        while more := await self.store.notes(JOINED, after=notes[-1].name if notes else ""):
            notes += more
        found: list[JoinsView] = []
        for note in notes:
            if self.sees(note.name):
                seen = decode_joins(note.value)
                found.append(
                    JoinsView(
                        queue=note.name,
                        kind=seen.kind,
                        unique=seen.unique,
                        count=seen.count,
                        job=seen.job,
                        since_at=seen.since,
                        last_at=note.updated_at,
                    )
                )
        return sorted(found, key=lambda each: -each.count)

    async def changed_uniques(self, specs: Iterable[Spec]) -> list[UniqueView]:
        """Commands of which jobs wait that were stored when their key was for something else.

        Looked for among the newest jobs of each queue that have not ended.
        """
        wanted: dict[str, dict[str, Unique]] = {}
        for spec in specs:
            if spec.key is not None:
                wanted.setdefault(spec.queue, {})[spec.kind] = spec.unique
        found: dict[tuple[str, str, Unique], UniqueView] = {}
        for tally in await self.queues() if wanted else ():
            says = wanted.get(tally.queue)
            if says is None or not any(tally.counts.get(state) for state in LIVE):
                continue
            where = Filter(queue=tally.queue, states=LIVE)
            for job in (await self.jobs(where, None, PAGE_MAX)).jobs:
                unique = says.get(job.kind, job.unique)
                if job.key is None or job.unique == unique:
                    continue
                place = (job.queue, job.kind, job.unique)
                seen = found.get(place)
                found[place] = UniqueView(
                    queue=job.queue,
                    kind=job.kind,
                    stored=job.unique,
                    unique=unique,
                    count=1 if seen is None else seen.count + 1,
                    job=job.id,
                )
        return list(found.values())

    # pollers and schedules

    async def recurring(self, what: What) -> list[RecurringView]:
        """Every poller's key, or every schedule, by queue and name; 2,000 at most."""
        jobs: list[Job] = []
        for tally in await self.queues():
            if tally.queue.split(":")[1] == _MODULES[what]:
                # Bad items may be many, and none of them shall hide a key that lives.
                jobs += await self._some(Filter(queue=tally.queue, states=LIVE))
                jobs += await self._some(Filter(queue=tally.queue, states=ENDED))
        newest: dict[tuple[str, str], Job] = {}
        bad: Counter[str] = Counter()
        for job in jobs:
            if job.kind.startswith(_KINDS[what]):
                newest.setdefault((job.queue, job.key or job.id), job)
            elif job.kind.startswith(_BAD) and job.state is State.DEAD:
                bad[job.thread] += 1
        names = [name for _, name in newest]
        paused: dict[str, Note | None] = {}
        for start in range(0, len(names), PAGE_MAX):
            some = names[start : start + PAGE_MAX]
            paused |= zip(some, await self.store.recall(PAUSED, some), strict=True)
        now = await self.store.now()
        views = [
            replace(_recurring(name, job, now, paused[name] is not None), bad=bad[job.thread])
            for (_, name), job in newest.items()
        ]
        views = [replace(view, error=self.told(view.error)) for view in views]
        return sorted(views, key=lambda view: (view.queue, view.name))

    async def _some(self, where: Filter) -> list[Job]:
        """The jobs that a filter means, 2,000 at most."""
        found: list[Job] = []
        cursor = None
        while len(found) < RECURRING_MAX:
            page = await self.jobs(where, cursor, PAGE_MAX)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
        return found

    async def bad_items(self, view: RecurringView, limit: int = 20) -> list[Job]:
        """The dead letters of what a poller's key has put aside."""
        [job] = await self.store.find([view.job])
        if job is None:
            return []
        kind = _BAD + job.kind.partition(":")[2]
        dead = frozenset({State.DEAD})
        where = Filter(queue=view.queue, kind=kind, thread=job.thread, states=dead)
        return (await self.jobs(where, None, limit)).jobs

    async def recurring_one(self, what: What, name: str) -> RecurringView:
        """A poller by its key, or a schedule by its name; either by its job's id."""
        for view in await self.recurring(what):
            if name in (view.name, view.job):
                return view
        raise NotFoundError(
            f"no {what} is called {name!r:.80}; those that are known: `relevo {what}s ls`"
        )

    async def pause_recurring(self, what: What, name: str, by: Person, note: str = "") -> bool:
        """Switch one off until it is resumed; False if it was off already."""
        signed = by.acts("pause", note)
        view = await self.recurring_one(what, name)
        off = Note(kind=PAUSED, name=view.name, value=plain({"by": signed.who, "note": note}))
        [is_new] = await self.store.remember([off])
        if is_new:
            await self._wrote(signed, "pause", view.name, "on", "off")
        return is_new

    async def resume_recurring(self, what: What, name: str, by: Person, note: str = "") -> bool:
        """Switch one on again; False if it was on already."""
        signed = by.acts("resume", note)
        view = await self.recurring_one(what, name)
        removed = await self.store.forget(PAUSED, [view.name]) > 0
        if removed:
            await self._wrote(signed, "resume", view.name, "off", "on")
            if view.state is State.SCHEDULED and what == "poller":
                await self.store.retry([view.job], signed)
        return removed

    async def run_recurring(self, what: What, name: str, by: Person, note: str = "") -> bool:
        """Take a turn now; False when one is being taken."""
        signed = by.acts("retry", note)
        view = await self.recurring_one(what, name)
        if view.is_paused:
            raise MisuseError(f"{view.name} is paused: `relevo {what}s resume` first")
        if view.state is State.RUNNING:
            return False
        if what == "schedule":
            # A schedule orders only what is due; the note makes this moment a tick of its own.
            at = plain(await self.store.now())
            await self.store.forget(RUN, [view.name])
            await self.store.remember([Note(kind=RUN, name=view.name, value=at, ttl=3_600_000)])
        if view.state is State.READY:
            if what == "schedule":
                await self._wrote(signed, "run", view.name, "", "")
            return True
        [is_due] = await self.store.retry([view.job], signed)
        return is_due

    async def _wrote(self, by: By, verb: str, target: str, before: str, after: str) -> None:
        await self.store.audit(
            [Audit(who=by.who, verb=verb, target=target, note=by.note, before=before, after=after)]
        )

    # the outbox

    async def outbox(self, letters: Outbox, now: int, limit: int = 50) -> OutboxView:
        """What waits in the outbox of a database beside the store."""
        limit = min(max(limit, 1), PAGE_MAX)
        waiting = await letters.letters(carried=False, limit=limit + 1)
        carried = await letters.letters(carried=True, limit=limit + 1)
        return OutboxView(
            waiting=[letter for letter in waiting[:limit] if self.sees(letter.job.queue)],
            carried=[letter for letter in carried[:limit] if self.sees(letter.job.queue)],
            lag=max(0, now - waiting[0].posted_at) if waiting else 0,
            is_cut=len(waiting) > limit or len(carried) > limit,
        )

    def masked_recurring(self, seen: RecurringView) -> RecurringView:
        """What a viewer sees of a poller: its cursor may be anything the provider gave."""
        cursor = None if seen.cursor is None else mask(seen.cursor)
        return replace(seen, cursor=cursor, error=mask_text(seen.error))

    def masked_letter(self, letter: Letter) -> Letter:
        """The letter as a viewer sees it."""
        return replace(letter, job=replace(letter.job, payload=mask(letter.job.payload)))


def _is_silent(job: Job, now: int, ttl: int) -> bool:
    # A running job keeps the moment it was due: a turn that never ends shows too.
    due = job.state in (State.READY, State.SCHEDULED, State.RUNNING)
    return due and now - job.run_at > ttl


def _recurring(name: str, job: Job, now: int, is_paused: bool) -> RecurringView:
    try:
        kept = Progress() if job.result is None else _progress(job.result)
    except msgspec.DecodeError:
        kept = Progress()
    waits = job.state in LIVE and job.state is not State.RUNNING
    return RecurringView(
        name=name,
        function=f"{job.queue.partition(':')[0]}.{job.kind.partition(':')[2]}",
        job=job.id,
        queue=job.queue,
        state=job.state,
        is_paused=is_paused,
        next_at=job.run_at if waits else None,
        last_at=kept.last_at,
        failures=kept.failures,
        error=kept.error,
        cursor=None if kept.cursor is None else msgspec.json.encode(kept.cursor),
        turned_at=kept.turned_at,
        is_silent=_is_silent(job, now, kept.ttl),
        joined=kept.joined,
    )
