"""Carries the outbox to a store that lives elsewhere.

With Redis as the store and a SQL database beside it, a command given with `tx=` becomes a letter: a
row in the user's own transaction. The letter is the truth and Redis the fast lane. It stays open
until its job has ended, its first closing wins, and what Redis no longer knows is carried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec

from relevo.errors import StoreError, StoreUnavailable
from relevo.job import Ending, Inserted, Lease, NewJob, State, Verdict
from relevo.store import (
    BATCH,
    Arrival,
    By,
    Claim,
    Effect,
    EffectState,
    Finding,
    Kept,
    Letter,
    Letterbox,
    Reception,
    SqlStore,
    Store,
    Want,
)
from relevo.telemetry import Telemetry, log

CARRY_EVERY = 5.0  # seconds between looks at the outbox when no commit wakes the relay
REFILL_EVERY = 15.0
AWAY = 5.0  # seconds for which a store that did not answer is not asked again by insert
SETTLED = frozenset({State.DONE, State.CANCELLED})


class Relayed:
    """A fast store with a SQL database beside it, kept as one store."""

    def __init__(self, fast: Store, ledger: SqlStore, telemetry: Telemetry) -> None:
        self.fast = fast
        self.ledger = ledger
        self._telemetry = telemetry
        self._posted = asyncio.Event()
        self._away_until = 0.0  # jobs go straight to the outbox until then; loop time
        self._ended_within: list[Ending] = []  # committed by their transaction, not yet in fast

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
        await self.fast.close()
        await self.ledger.close()

    async def migrate(self) -> list[str]:
        return [*await self.ledger.migrate(), *await self.fast.migrate()]

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

    async def insert(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Into the fast store; into the outbox while that is away."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._away_until:
            try:
                return await self.fast.insert(jobs)
            except StoreUnavailable as error:
                # Whoever comes next need not wait for the same deadline.
                self._away_until = loop.time() + AWAY
                self._telemetry.trouble("the store is away; jobs go to the outbox", error)
        await self.ledger.post([_letter(job) for job in jobs])
        return [Inserted(job.id, Verdict.NEW) for job in jobs]

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        await self.ledger.post_within(connection, [_letter(job) for job in jobs])
        return [Inserted(job.id, Verdict.NEW) for job in jobs]

    def committed(self, queues: Sequence[str]) -> None:
        self._posted.set()

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self.ledger.turn()

    # deliveries: in the database, their jobs beside them as letters

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        answers = await self.ledger.receive_posted([_posted(arrival) for arrival in arrivals])
        self._posted.set()
        return answers

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        return await self.ledger.receive_posted_within(connection, _posted(arrival))

    async def delivered(self, source: str, keys: Sequence[str]) -> list[Kept | None]:
        return await self.ledger.delivered(source, keys)

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
        await self.fast.settle([Ending(lease=one, state=State.DONE) for one in over])
        left = [one for one, is_over in zip(claim.leases, ended, strict=True) if not is_over]
        return Claim(left, 0 if not left else claim.next_due)

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        """The letter is closed first: from then on nobody runs the job again."""
        over = [end.lease.id for end in endings if end.state in SETTLED and _is_letter(end.lease)]
        if not over:
            return await self.fast.settle(endings)
        first = dict(zip(over, await self.ledger.close_letters(over), strict=True))
        settled = await self.fast.settle(endings)
        return [
            first.get(end.lease.id, is_ours) for end, is_ours in zip(endings, settled, strict=True)
        ]

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        ids = [end.lease.id for end in endings if end.state in SETTLED]
        first = dict(zip(ids, await self.ledger.close_letters_within(connection, ids), strict=True))
        self._ended_within += [end for end in endings if first.get(end.lease.id, True)]
        return [first.get(end.lease.id, True) for end in endings]

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
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        return await self.ledger.effects(
            job=job, states=states, text=text, cursor=cursor, limit=limit
        )

    # upkeep

    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        removed = await self.ledger.prune(dead_keep=dead_keep, limit=limit)
        removed += await self.ledger.prune_letters(keep=dead_keep, limit=limit)
        return removed + await self.fast.prune(dead_keep=dead_keep, limit=limit)

    async def settle_committed(self) -> None:
        """Tell the fast store what transactions have ended; harmless to lose, claim() looks."""
        ended, self._ended_within = self._ended_within, []
        if ended:
            await self.fast.settle(ended)

    async def carry(self) -> int:
        """Carry what waits; by job id, so that carrying twice is carrying once."""
        carried = 0
        while letters := await self.ledger.letters(carried=False):
            await self._carry(letters)
            carried += len(letters)
            if len(letters) < BATCH:
                break
        return carried

    async def _carry(self, letters: list[Letter]) -> None:
        jobs = [letter.job for letter in letters]
        answers = await self.fast.insert(jobs)
        self._away_until = 0.0
        await self.ledger.mark_carried([job.id for job in jobs])
        # Another job stands for it: its key is taken, or was done for good.
        twins = [job.id for job, answer in zip(jobs, answers, strict=True) if answer.id != job.id]
        if twins:
            await self.ledger.close_letters(twins)

    async def refill(self) -> int:
        """Carry again what was carried and the fast store no longer knows."""
        carried = 0
        after = ""
        while letters := await self.ledger.letters(carried=True, after=after):
            after = letters[-1].job.id
            known = await self.fast.find([letter.job.id for letter in letters])
            missing = [one for one, job in zip(letters, known, strict=True) if job is None]
            if missing:
                log.warning("the store has lost jobs; carried again", extra={"jobs": len(missing)})
                await self._carry(missing)
                carried += len(missing)
            over = [job.id for job in known if job is not None and job.state in SETTLED]
            if over:
                await self.ledger.close_letters(over)
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


def _posted(arrival: Arrival) -> Arrival:
    return Arrival(arrival.kept, tuple([_letter(job) for job in arrival.jobs]))


def _is_letter(lease: Lease) -> bool:
    return lease.meta is not None and b'"letter":true' in lease.meta
