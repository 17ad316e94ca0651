"""Carries the outbox to a store that lives elsewhere.

With Redis as the store and a SQL database beside it, a command given with `tx=` becomes a letter: a
row in the user's own transaction. The letter is the truth and Redis the fast lane. It stays open
until its job has ended, its first closing wins, and what Redis no longer knows is carried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeAlias, cast

import msgspec

from relevo.errors import MisuseError, StoreError, StoreUnavailable
from relevo.job import ENDED, Ending, Job, Lease, NewJob, Receipt, State, Verdict
from relevo.store import (
    BATCH,
    DELIVERY_KEEP,
    KNOWN,
    Arrival,
    Audit,
    By,
    Claim,
    Effect,
    EffectState,
    Finding,
    Gate,
    Kept,
    Letter,
    Letterbox,
    Note,
    QueueMode,
    Reception,
    Schema,
    SqlStore,
    Store,
    Want,
)
from relevo.telemetry import Telemetry, log

CARRY_EVERY = 5.0  # seconds between looks at the outbox when no commit wakes the relay
REFILL_EVERY = 15.0
AWAY = 5.0  # seconds for which a store that did not answer is not asked again by insert
DAY = 86_400_000
MODES_FOR = 5.0  # seconds for which it is remembered which queues are draining
MODES_WITHIN = 0.25  # seconds to ask for them while a transaction is open
Insert: TypeAlias = Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]]

STANDS = "stands"
"""The kind of the notes that tell which job stands for one of the outbox that joined it."""

LONGEST_PAGE = 200
_Places: TypeAlias = tuple[str | None, str | None]
"""Where two lists go on; None: at its end."""

_START: _Places = ("", "")

TURN = 15_000  # milliseconds for which a recurring job is ours while its turn commits


class Relayed:
    """A fast store with a SQL database beside it, kept as one store."""

    def __init__(self, fast: Store, ledger: SqlStore, telemetry: Telemetry) -> None:
        self.fast = fast
        self.ledger = ledger
        self._telemetry = telemetry
        self._posted = asyncio.Event()
        self._away_until = 0.0  # jobs go straight to the outbox until then; loop time
        self._closed: frozenset[str] = frozenset()  # queues that were draining when last asked
        self._modes_until = 0.0  # when to ask again; loop time
        self.joined: Callable[[NewJob, Receipt], None] = lambda job, receipt: None
        self._ended_within: list[Ending] = []  # committed by their transaction, not yet in fast
        self._told: list[str] = []  # jobs whose results are in fast, and in the ledger still

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fast, name)

    def as_store(self) -> Store:
        return cast("Store", self)

    @property
    def dsn(self) -> str:
        return self.ledger.dsn

    # life

    async def open(self) -> None:
        await self.ledger.open()
        await self.fast.open()

    async def close(self) -> None:
        with suppress(StoreError):
            await self.drop_told()
        await self.fast.close()
        await self.ledger.close()

    async def migrate(self) -> list[str]:
        # The fast one first: it knows the workers, and refuses for those that could not go on.
        return [*await self.fast.migrate(), *await self.ledger.migrate()]

    async def schema(self) -> Schema:
        seen = await self.fast.schema(), await self.ledger.schema()
        return next((one for one in seen if one.number != one.known), seen[0])

    def spawn(self) -> Store:
        # Whoever spawns a handle only extends leases and beats; the letters are not its business.
        return self.fast.spawn()

    async def check(self) -> list[Finding]:
        waiting = await self.ledger.letters(carried=False, limit=1)
        lag = await self.ledger.now() - waiting[0].posted_at if waiting else 0
        late = lag > 30_000
        note = Finding(
            level="warning" if late else "ok",
            subject="outbox",
            message=f"the oldest letter waits {lag / 1000:.0f} s to be carried"
            + (": is a worker running, and Redis up?" if late else ""),
        )
        return [note, *await self.ledger.check(), *await self.fast.check()]

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """Into the fast store; into the outbox while that is away.

        Its answer may be lost, and the job in both: by its id it is carried to where it has run.
        A job with unique="latest" always goes by the outbox, and its bundle with it: which of two
        is the newer is the order in which the database took them.
        """
        posted = _by_outbox(jobs)
        if posted:
            return await _in_parts(jobs, posted, self._insert, self._post)
        return await self._insert(jobs)

    async def _insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._away_until:
            try:
                return await self.fast.insert([_known(job) for job in jobs])
            except StoreUnavailable as error:
                # Whoever comes next need not wait for the same deadline.
                self._away_until = loop.time() + AWAY
                self._telemetry.trouble("the store is away; jobs go to the outbox", error)
        verdicts = await self.ledger.post([_letter(job) for job in jobs])
        return _receipts(jobs, verdicts)

    async def _post(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        closed = await self._closed_to(jobs)
        open_ = [job for job in jobs if job.id not in closed]
        verdicts = await self.ledger.post([_letter(job) for job in open_]) if open_ else []
        self._posted.set()
        return _receipts(jobs, verdicts, closed)

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        closed = await self._closed_to(jobs)
        letters = [_letter(job) for job in jobs if job.id not in closed]
        verdicts = await self.ledger.post_within(connection, letters) if letters else []
        return _receipts(jobs, verdicts, closed)

    async def _closed_to(self, jobs: Sequence[NewJob]) -> set[str]:
        """The ids of the jobs whose queues take nothing in, with those of their bundles."""
        draining = await self._draining({job.queue for job in jobs})
        closed = {job.id for job in jobs if job.queue in draining}
        bundles = {job.bundle for job in jobs if job.id in closed and job.bundle is not None}
        return closed | {job.id for job in jobs if job.bundle in bundles}

    async def set_mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        self._modes_until = 0.0
        return await self.fast.set_mode(queues, mode, by)

    async def _draining(self, queues: set[str]) -> frozenset[str]:
        """The queues that take nothing in, as far as the fast store says so at once.

        What slips through, being told a moment ago, waits in the outbox until its queue is open.
        """
        now = asyncio.get_running_loop().time()
        is_fresh = now < self._modes_until and not self._closed & queues  # it may be open by now
        if is_fresh or now < self._away_until:
            return self._closed
        self._modes_until = now + MODES_FOR
        try:
            async with asyncio.timeout(MODES_WITHIN):
                tallies = await self.fast.tally()
        except (StoreError, TimeoutError):
            return self._closed
        modes = {tally.queue: tally.mode for tally in tallies}
        self._closed = frozenset(q for q, mode in modes.items() if mode is QueueMode.DRAINING)
        return self._closed

    async def set_gate(self, ids: Sequence[str], gate: Gate) -> list[bool]:
        """What was posted before a group closes comes before its closing: it may be members."""
        if gate is Gate.CLOSED:
            await self.carry()
        return await self.fast.set_gate(ids, gate)

    def committed(self, queues: Sequence[str]) -> None:
        self._posted.set()

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self.ledger.turn()

    # deliveries: in the database, their jobs beside them as letters

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        shut = [await self._is_shut(arrival, may_be_known=True) for arrival in arrivals]
        posted = [_posted(arrival) for arrival, no in zip(arrivals, shut, strict=True) if not no]
        answers = iter(await self.ledger.receive_posted(posted) if posted else [])
        self._posted.set()
        return [
            _shut(arrival) if no else next(answers)
            for arrival, no in zip(arrivals, shut, strict=True)
        ]

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        if await self._is_shut(arrival, may_be_known=True):
            return _shut(arrival)
        return await self.ledger.receive_posted_within(connection, _posted(arrival))

    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        if await self._is_shut(arrival):
            return _shut(arrival)
        answer = await self.ledger.resolve_posted(job, _posted(arrival))
        self._posted.set()
        return answer

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        if await self._is_shut(arrival):
            return _shut(arrival)
        return await self.ledger.resolve_posted_within(connection, job, _posted(arrival))

    async def _is_shut(self, arrival: Arrival, *, may_be_known: bool = False) -> bool:
        """Whether a queue of its jobs takes nothing in; what came before has its answer already."""
        if not (arrival.jobs and await self._closed_to(arrival.jobs)):
            return False
        kept = arrival.kept
        if not may_be_known or kept.key is None:
            return True
        [known] = await self.ledger.delivered(kept.endpoint, [kept.key])
        return known is None or known.generation < kept.generation

    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        return await self.ledger.delivered(endpoint, keys)

    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        return await self.ledger.deliveries(where, cursor=cursor, limit=limit)

    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        return await self.ledger.delivery(ids)

    # out

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        """What the fast store gives, less what has ended already and only it does not know."""
        claim = await self.fast.claim(wants, count, worker, lease)
        if not claim.leases:
            return claim
        try:
            ended = await self.ledger.closed([one.id for one in claim.leases])
        except StoreError:
            # Without the ledger nobody may run them; they go back unspent.
            back = [Ending(lease=one, state=State.SCHEDULED, spend=False) for one in claim.leases]
            await self.fast.settle(back)
            raise
        if not any(ended):
            return claim
        over = [one for one, is_over in zip(claim.leases, ended, strict=True) if is_over]
        results = await self.ledger.results([one.id for one in over])
        ends = [Ending(lease=one, state=State.DONE, result=results.get(one.id)) for one in over]
        await self._settle_fast(ends, results)
        left = [one for one, is_over in zip(claim.leases, ended, strict=True) if not is_over]
        return Claim(left, 0 if not left else claim.next_due)

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        """The letter is closed first: from then on nobody runs the job again."""
        letters = [end for end in endings if _is_letter(end.lease)]
        over = [end.lease.id for end in letters if end.state is State.DONE]
        results = _results(letters)
        marks = await self.ledger.close_letters(over, results) if over else []
        first = dict(zip(over, marks, strict=True))
        settled = await self._settle_fast(endings, results)
        await self._drop_cancelled(endings, settled)
        return [
            first.get(end.lease.id, is_ours) for end, is_ours in zip(endings, settled, strict=True)
        ]

    async def _settle_fast(
        self, endings: Sequence[Ending], results: Mapping[str, bytes]
    ) -> list[bool]:
        """Settle what the ledger has marked, and some of it with results."""
        settled = await self.fast.settle(endings)
        ids = [end.lease.id for end, is_ours in zip(endings, settled, strict=True) if is_ours]
        self._told += [id for id in ids if id in results]
        return settled

    async def drop_told(self) -> None:
        """Keep no result in the database that the fast store has."""
        told, self._told = self._told, []
        try:
            if told:
                await self.ledger.drop_results(told)
        except StoreError:
            self._told += told
            raise

    async def _drop_cancelled(self, endings: Sequence[Ending], settled: Sequence[bool]) -> None:
        """Not closed: a person may want a cancelled job again."""
        called_off = [
            end.lease.id
            for end, is_ours in zip(endings, settled, strict=True)
            if is_ours and end.state is State.CANCELLED and _is_letter(end.lease)
        ]
        if called_off:
            await self.ledger.drop_letters(called_off)

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        """The first to mark a job as done wins; ended_within() is told when that has committed."""
        over = [end.lease.id for end in endings if end.state is State.DONE]
        results = _results(endings)
        marks = await self.ledger.close_letters_within(connection, over, results)
        first = dict(zip(over, marks, strict=True))
        # The turn of a recurring job has no mark: its lease must still be ours.
        turns = [end.lease for end in endings if end.state is not State.DONE]
        ours = await self.fast.extend(turns, TURN) if turns else []
        first |= zip([lease.id for lease in turns], ours, strict=True)
        return [first[end.lease.id] for end in endings]

    def ended_within(self, ending: Ending) -> None:
        """A transaction that settled a job has committed: the fast store is yet to hear of it.

        Told before the commit, it would take for done what may still be rolled back.
        """
        self._ended_within.append(ending)
        self._posted.set()

    # effects: in the database, so that they outlive the fast store

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        return await self.ledger.intend(effects)

    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        return await self.ledger.conclude(effects, by)

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
        return await self.ledger.effects(
            job=job, states=states, text=text, threads=threads, cursor=cursor, limit=limit
        )

    # memory: in the database, so that a transaction can write it, and it outlives the fast store

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        return await self.ledger.recall(kind, names)

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        return await self.ledger.remember(notes)

    async def recall_within(
        self, connection: Any, kind: str, names: Sequence[str]
    ) -> list[Note | None]:
        return await self.ledger.recall_within(connection, kind, names)

    async def remember_within(self, connection: Any, notes: Sequence[Note]) -> list[bool]:
        return await self.ledger.remember_within(connection, notes)

    async def forget(self, kind: str, names: Sequence[str]) -> int:
        return await self.ledger.forget(kind, names)

    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        return await self.ledger.notes(kind, after=after, limit=limit)

    # people

    async def erase(
        self, jobs: Sequence[str], deliveries: Sequence[str], by: By, *, act: str
    ) -> tuple[int, int]:
        """From both; what only waits to be carried has not ended."""
        ended = [job.id for job in await self._found(jobs) if job.state in ENDED]
        # Letters first: the relay would carry again what the fast store no longer knows.
        await self.ledger.drop_letters(ended)
        await self.ledger.drop_results(ended)
        gone, _ = await self.fast.erase(ended, (), by, act=act)
        # What a person has retried meanwhile still needs to know what it has done outside.
        there = {job.id for job in await self._found(jobs)}
        over = [id for id in dict.fromkeys(jobs) if id not in there]
        open_ = await self.open_letters(over)
        over = [id for id in over if id not in open_]
        _, shed = await self.ledger.erase(over, deliveries, by, act=act)
        return gone, shed

    async def audits(
        self, *, target: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Audit], str | None]:
        """What people did to jobs, in the fast store, and to effects, in the database."""
        read: list[tuple[int, int, Audit]] = []
        limit = max(1, min(limit, LONGEST_PAGE))
        try:
            places = _START if cursor is None else msgspec.json.decode(cursor, type=_Places)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise MisuseError(
                "that is no cursor of this store: start from the first page"
            ) from error
        pages: list[tuple[list[Audit], str | None]] = []
        for number, (store, place) in enumerate(zip((self.fast, self.ledger), places, strict=True)):
            page: tuple[list[Audit], str | None] = ([], None)
            if place is not None:
                page = await store.audits(target=target, cursor=place or None, limit=limit)
            pages.append(page)
            read += [(-row.at, number, row) for row in page[0]]
        read.sort(key=lambda one: one[:2])  # newest first, each store's in its own order
        chosen = read[:limit]
        following: list[str | None] = []
        for number, (store, place) in enumerate(zip((self.fast, self.ledger), places, strict=True)):
            rows, end = pages[number]
            taken = sum(which == number for _, which, _ in chosen)
            if 0 < taken < len(rows):
                _, end = await store.audits(target=target, cursor=place or None, limit=taken)
            following.append(end if taken or not rows else place)
        shown = [row for _, which, row in chosen if not (which and await self._is_told(row))]
        if following == [None, None]:
            return shown, None
        return shown, msgspec.json.encode(following).decode()

    async def _is_told(self, row: Audit) -> bool:
        """Whether the fast store has the line too, as erase() writes one in each."""
        return row.verb == "forget" and bool((await self.fast.audits(target=row.target))[0])

    async def _found(self, ids: Sequence[str]) -> list[Job]:
        return [job for job in await self.fast.find(ids) if job is not None]

    async def open_letters(self, ids: Sequence[str]) -> set[str]:
        """Those of these jobs whose letters are open: not ended, though the store may not know."""
        wanted = set(ids)
        found: set[str] = set()
        for carried in (False, True) if wanted else ():
            async for letter in self.walk_letters(carried=carried):
                if letter.job.id in wanted:
                    found.add(letter.job.id)
        return found

    async def walk_letters(self, *, carried: bool) -> AsyncIterator[Letter]:
        """Every open letter."""
        async for letters in self._batches(carried=carried):
            for letter in letters:
                yield letter

    async def _batches(self, *, carried: bool) -> AsyncIterator[list[Letter]]:
        after = 0
        while letters := await self.ledger.letters(carried=carried, after=after):
            yield letters
            if len(letters) < BATCH:
                return
            after = letters[-1].seq

    # upkeep

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        await self._let_go_of_dead(dead_keep)
        await self.carry()  # while what it may stand for is known; see insert()
        removed = await self.ledger.prune_posted(dead_keep=dead_keep, limit=limit)
        removed += await self.ledger.prune_letters(keep=dead_keep, limit=limit)
        removed += await self._prune_effects(dead_keep, limit)
        return removed + await self.fast.prune(dead_keep=dead_keep, limit=limit)

    async def _prune_effects(self, dead_keep: int, limit: int) -> int:
        """Remove old effects, but not those of a job that has not ended."""
        removed = after = 0
        while removed < limit and (
            old := await self.ledger.old_effects(dead_keep=dead_keep, after=after)
        ):
            after = old[-1][0]
            jobs = list(dict.fromkeys(job for _, job in old))
            live = {job.id for job in await self._found(jobs) if job.state not in ENDED}
            live |= await self.open_letters([job for job in jobs if job not in live])
            over = [number for number, job in old if job not in live][: limit - removed]
            if over:
                removed += await self.ledger.drop_effects(over, dead_keep=dead_keep)
        return removed

    async def _let_go_of_dead(self, dead_keep: int) -> None:
        """Drop the letters of what prune() may remove; the relay would carry it again."""
        before = await self.fast.now() - dead_keep
        async for letters in self._batches(carried=True):
            # None can have died long ago that was posted lately, whatever the two clocks say.
            old = [letter.job.id for letter in letters if letter.posted_at <= before + DAY]
            known = await self.fast.find(old) if old else []
            gone = [
                job.id
                for job in known
                if job is not None and job.state is State.DEAD and (job.ended_at or 0) <= before
            ]
            if gone:
                await self.ledger.drop_letters(gone)

    async def settle_committed(self) -> None:
        """Tell the fast store what transactions have ended; claim() looks, should this be lost."""
        ended, self._ended_within = self._ended_within, []
        try:
            if ended:
                await self._drop_cancelled(ended, await self._settle_fast(ended, _results(ended)))
        except StoreError:
            self._ended_within = ended + self._ended_within  # a recurring job's turn is only here
            raise

    async def carry(self) -> int:
        """Carry what waits; by job id, so that carrying twice is carrying once."""
        return sum([await self._carry(some) async for some in self._batches(carried=False)])

    async def _carry(self, letters: list[Letter]) -> int:
        answers = await self.fast.insert([letter.job for letter in letters])
        self._away_until = 0.0
        await self._untie(letters, answers)
        for letter, answer in zip(letters, answers, strict=True):
            if answer.differs:
                self.joined(letter.job, answer)
        # The delivery that asked for it names its letter, which is no job.
        stand = [
            Note(
                kind=STANDS,
                name=letter.job.id,
                value=msgspec.json.encode(answer.id),
                ttl=DELIVERY_KEEP,
            )
            for letter, answer in zip(letters, answers, strict=True)
            if answer.verdict is not Verdict.CLOSED and answer.id != letter.job.id
        ]
        if stand:
            await self.ledger.remember(stand)
        # What a draining queue does not take was promised all the same: it waits for the queue.
        taken = [
            (letter.job.id, answer.id)
            for letter, answer in zip(letters, answers, strict=True)
            if answer.verdict is not Verdict.CLOSED
        ]
        if taken:
            await self.ledger.mark_carried([id for id, _ in taken])
        # Another job stands for it: its key is taken, or was done for good.
        over = [id for id, stands in taken if stands != id]
        over += await self._over(
            [
                answer.id
                for letter, answer in zip(letters, answers, strict=True)
                if answer.verdict is Verdict.DONE and answer.id == letter.job.id
            ]
        )
        if over:
            await self.ledger.close_letters(over)
        return len(taken)

    async def _untie(self, letters: Sequence[Letter], answers: list[Receipt]) -> None:
        """Carry members whose group takes no more as jobs of their own: they were promised."""
        late = [n for n, answer in enumerate(answers) if answer.verdict is Verdict.LATE]
        if late:
            log.warning(
                "jobs of the outbox came when their group was closed; they run outside it",
                extra={"jobs": [letters[n].job.id for n in late]},
            )
            alone = [msgspec.structs.replace(letters[n].job, before=()) for n in late]
            for n, answer in zip(late, await self.fast.insert(alone), strict=True):
                answers[n] = answer

    async def _over(self, ids: Sequence[str]) -> list[str]:
        """Those of these jobs that can never run: done, or gone and remembered by their ids.

        What is dead or cancelled may be retried by a person, and keeps its letter.
        """
        known = await self.fast.find(ids) if ids else []
        return [
            id for id, job in zip(ids, known, strict=True) if job is None or job.state is State.DONE
        ]

    async def refill(self) -> int:
        """Carry again what was carried and the fast store no longer knows."""
        carried = 0
        async for letters in self._batches(carried=True):
            known = await self.fast.find([letter.job.id for letter in letters])
            missing = [one for one, job in zip(letters, known, strict=True) if job is None]
            if missing:
                log.warning("the store has lost jobs; carried again", extra={"jobs": len(missing)})
                carried += await self._carry(missing)
            there = [job for job in known if job is not None]
            over = [job.id for job in there if job.state is State.DONE]
            if over:
                await self.ledger.close_letters(over)
            called_off = [job.id for job in there if job.state is State.CANCELLED]
            if called_off:
                await self.ledger.drop_letters(called_off)
        return carried

    async def run(self) -> None:
        """The relay of one process: on every commit here, and now and then for the others."""
        refill_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            self._posted.clear()
            try:
                await self.settle_committed()
                await self.carry()
                if loop.time() >= refill_at:
                    await self.drop_told()
                    await self.refill()
                    refill_at = loop.time() + REFILL_EVERY
            except Exception as error:  # noqa: BLE001 - were the relay to end, letters would lie for ever
                self._telemetry.trouble("cannot carry the outbox; trying again", error)
                await asyncio.sleep(1)
                continue
            try:
                async with asyncio.timeout(CARRY_EVERY):
                    await self._posted.wait()
            except TimeoutError:
                pass


def _letter(job: NewJob) -> NewJob:
    """Marked, so that whoever settles it knows of its letter."""
    meta: dict[str, Any] = {} if job.meta is None else msgspec.json.decode(job.meta)
    return msgspec.structs.replace(job, meta=msgspec.json.encode(meta | {"letter": True}))


def _by_outbox(jobs: Sequence[NewJob]) -> set[str]:
    """The ids of those whose order of acceptance counts, with those of their bundles."""
    bundles = {job.bundle for job in jobs if job.unique == "latest" and job.bundle is not None}
    return {job.id for job in jobs if job.unique == "latest" or job.bundle in bundles}


async def _in_parts(
    jobs: Sequence[NewJob], chosen: set[str], rest: Insert, of_chosen: Insert
) -> list[Receipt]:
    """Insert the chosen jobs in one way and the others in another."""
    others = [job for job in jobs if job.id not in chosen]
    mine = await of_chosen([job for job in jobs if job.id in chosen])
    theirs = await rest(others) if others else []
    some, more = iter(mine), iter(theirs)
    return [next(some if job.id in chosen else more) for job in jobs]


def _receipts(
    jobs: Sequence[NewJob], verdicts: Sequence[Verdict], closed: Set[str] = frozenset()
) -> list[Receipt]:
    """The receipts of jobs that were posted, but for those whose queues are closed."""
    told = iter(verdicts)
    return [Receipt(job.id, Verdict.CLOSED if job.id in closed else next(told)) for job in jobs]


def _known(job: NewJob) -> NewJob:
    """Known for a while after its end, however short it is to be kept."""
    return job if job.keep >= KNOWN else msgspec.structs.replace(job, keep=KNOWN)


def _posted(arrival: Arrival) -> Arrival:
    return Arrival(arrival.kept, tuple([_letter(job) for job in arrival.jobs]), arrival.body)


def _shut(arrival: Arrival) -> Reception:
    return Reception(arrival.kept, Verdict.CLOSED)


def _results(endings: Sequence[Ending]) -> dict[str, bytes]:
    """What jobs that are done have returned, by their ids."""
    return {
        end.lease.id: end.result
        for end in endings
        if end.state is State.DONE and end.result is not None
    }


def _is_letter(lease: Lease) -> bool:
    return lease.meta is not None and b'"letter":true' in lease.meta
