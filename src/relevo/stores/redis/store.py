"""RedisStore: jobs in, jobs out, and upkeep. One script run per call, whatever the batch."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import repeat
from typing import Any

from relevo.clock import Clock
from relevo.errors import MisuseError, StoreUnavailable
from relevo.ids import parse_id
from relevo.job import Ending, Failure, Lease, State
from relevo.store import (
    BATCH,
    RATE_MARGIN,
    Audit,
    By,
    Claim,
    Loss,
    Rescued,
    SealedValue,
    Store,
    Sweep,
    Want,
)
from relevo.stores.redis.deliveries import Deliveries, kept_for
from relevo.stores.redis.frame import timely
from relevo.stores.redis.groups import Groups
from relevo.stores.redis.ledger import Ledger
from relevo.stores.redis.line import Arg
from relevo.stores.redis.memory import DAY, Memory
from relevo.stores.redis.people import People
from relevo.stores.redis.record import (
    LETTERS,
    Unreadable,
    digest,
    pack_failure,
    read_lease,
    to_text,
)
from relevo.stores.redis.wire import Refused, Unsent

ORPHANED = 10_000  # a bundle this old has lost its caller
UNHEARD = 8  # claims without an answer that are asked for again


SEALED = 200
"""Fields of a hash that are looked at at once for what is sealed."""


class RedisStore(People, Groups, Deliveries, Ledger, Memory):
    """A store on Redis or Valkey: one server, one named by sentinels, or a cluster."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        super().__init__(url, clock=clock)
        self._turn = 0
        self._settled: set[tuple[str, str]] = set()
        self._unheard: dict[str, list[str]] = {}

    def spawn(self) -> Store:
        return RedisStore(self.dsn, clock=self._clock)

    # out

    @timely
    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        if count <= 0 or not wants:
            return Claim([])
        count = min(count, BATCH)
        self._turn += 1
        start = self._turn % len(wants)
        turned = list({want.queue: want for want in [*wants[start:], *wants[:start]]}.values())
        marks = self._bell.marks(want.queue for want in turned)
        who = worker.encode("utf-8", "replace")
        if self._wire.is_cluster:
            claim = await self._claim_apart(turned, count, who, lease)
        else:
            claim = await self._claim_from(turned, count, who, lease)
        if len(claim.leases) < count:
            self._bell.trust(marks)
        return claim

    @timely
    async def extend(self, leases: Sequence[Lease], lease: int) -> list[bool]:
        answers = [False] * len(leases)
        items = [(held.queue, (held.id, str(held.token))) for held in leases]
        for places, kept in await self._over("extend", items, lease):
            for place, ours in zip(places, kept, strict=True):
                answers[place] = ours == 1
        return answers

    @timely
    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        answers = [True] * len(endings)
        already = self._settled & {_run_of(ending) for ending in endings if self._settled}
        runs = self._endings(endings, already)
        found = await asyncio.gather(*map(self._settle, runs), return_exceptions=True)
        out: list[Any] = []
        trouble: BaseException | None = None
        for result in found:
            if isinstance(result, BaseException):
                trouble = result
                continue
            lost, releases = result
            out += releases
            for place in lost:
                answers[place] = False
        if trouble is not None:
            # One node of a cluster is away. Who asks again must not hear that the others' leases
            # were lost, only because they have been settled already.
            if len(self._settled) > 10 * BATCH:
                self._settled.clear()
            self._settled.update(
                _run_of(endings[place])
                for run, result in zip(runs, found, strict=True)
                if not isinstance(result, BaseException)
                for place in run.places
                if answers[place]
            )
            raise trouble
        self._settled -= already
        await self._carry(out)
        return answers

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        raise MisuseError("Redis is no SQL database: the outbox carries it")

    def turn(self) -> AbstractAsyncContextManager[None]:
        return _at_once()

    async def wait(self, queues: Sequence[str], timeout: float) -> None:
        if queues:
            has_work = partial(self._has_work, within=int(timeout * 1_000))
            await self._bell.wait(list(queues), timeout, has_work)

    # upkeep

    @timely
    async def rescue(
        self,
        limit: int = BATCH,
        *,
        worker: str | None = None,
        losses: Sequence[Loss] = (),
        queues: Sequence[str] | None = None,
    ) -> Sweep:
        lost = [value for loss in losses for value in _loss(loss)]
        gone = (worker or "").encode("utf-8", "replace")
        sweep = Sweep()
        for keys in await self._groups(queues):
            left = max(min(limit - len(sweep), BATCH), 0)
            found, out, bundles, lapse = await self._run(
                "rescue", keys, (left, gone, ORPHANED, *lost)
            )
            sweep += [_read_rescued(row) for row in found]
            if lapse >= 0:
                known = sweep.next_lapse
                sweep.next_lapse = lapse if known is None else min(lapse, known)
            await self._carry(out)
            for queue, name, jobs in bundles:
                await self._finish(queue.decode(), name, jobs)
        return sweep

    @timely
    async def isolate(self, leases: Sequence[Lease], *, is_alone: bool = True) -> list[bool]:
        answers = [False] * len(leases)
        # The script is told the new number of crashes, so that a call repeated after its answer was
        # lost counts once.
        items = [
            (held.queue, (held.id, str(held.token), held.crashes + is_alone)) for held in leases
        ]
        for places, counted in await self._over("isolate", items):
            for place, ours in zip(places, counted, strict=True):
                answers[place] = ours == 1
        return answers

    @timely
    async def unpark(
        self,
        park: str,
        *,
        limit: int | None = None,
        spread: int = 0,
        ids: Sequence[str] | None = None,
    ) -> int:
        some = [id for id in dict.fromkeys(ids or ()) if parse_id(id) == id]
        if ids is not None and not some:
            return 0
        freed = 0
        most = 2**31 if limit is None else limit
        for keys in await self._groups():
            before, all_of_it = 0, ""
            while freed < most:
                args = (to_text(park), most - freed, spread, before, all_of_it, *some)
                gone, all_of_it = await self._run("unpark", keys, args)
                before, freed = before + gone, freed + gone
                if gone < BATCH:
                    break
        return freed

    @timely
    async def prune(self, *, dead_keep: int, limit: int = BATCH) -> int:
        removed = 0
        for keys in await self._groups():
            if removed < limit:
                args = (dead_keep, limit - removed, DAY, *kept_for(dead_keep))
                removed += await self._run("prune", keys, args)
        if self._wire.is_cluster and removed < limit:
            removed += await self._tidy_memory(limit - removed)
            removed += await self._tidy_deliveries(dead_keep, limit - removed)
        return removed

    async def sealed_values(self) -> AsyncGenerator[list[SealedValue]]:
        # What is sealed lies in hashes alone; lists and sets hold ids.
        async for key in self._wire.scan(f"{self._address.prefix}:*".encode(), b"hash"):
            cursor = b"0"
            while True:
                cursor, pairs = await self._wire.command(
                    key, b"HSCAN", key, cursor, b"COUNT", SEALED
                )
                found = zip(pairs[::2], pairs[1::2], strict=True)
                yield [
                    SealedValue(place=(key, field), data=value)
                    for field, value in found
                    if b"relevo-sealed" in value
                ]
                if cursor == b"0":
                    break

    @timely
    async def swap_values(self, values: Sequence[tuple[SealedValue, bytes]]) -> int:
        by_key: dict[bytes, list[Arg]] = {}
        for value, data in values:
            key, field = value.place
            by_key.setdefault(key, []).extend((field, value.data, data))
        return sum([await self._run("swap", [key], args) for key, args in by_key.items()])

    @timely
    async def erase(
        self, jobs: Sequence[str], deliveries: Sequence[str], by: By, *, act: str
    ) -> tuple[int, int]:
        wanted = [id for id in dict.fromkeys(jobs) if parse_id(id) == id]
        others = [id for id in dict.fromkeys(deliveries) if parse_id(id) == id]
        head = (to_text(by.who), to_text(by.note), to_text(act), len(wanted))
        line = Audit(who=by.who, verb="forget", target=act, note=by.note)
        try:
            parts = await self._all("erase", (*head, *wanted, *others))
            gone, effects, shed = (sum(part[n] for part in parts) for n in range(3))
            if self._wire.is_cluster:
                shed += await self._erase_deliveries(others)
        except StoreUnavailable:
            # Nodes that did answer have erased: rather a line too many than none.
            if self._wire.is_cluster:
                with suppress(StoreUnavailable):
                    await self.audit([line])
            raise
        if self._wire.is_cluster and (gone or effects or shed):
            await self.audit([line])
        return gone, shed

    async def _groups(self, queues: Sequence[str] | None = None) -> list[list[bytes]]:
        """The keys of runs over all queues, or these: one run, or on a cluster one for each."""
        if self._wire.is_cluster:
            wanted = await self._queues() if queues is None else queues
            return [[self._root(queue)] for queue in wanted]
        if queues is None:
            return [[self._key("queues")]]
        return [[self._root(queue) for queue in queues]] if queues else []

    # how a claim is made

    async def _claim_from(
        self, wants: Sequence[Want], count: int, worker: bytes, lease: int
    ) -> Claim:
        token = secrets.token_hex(8)
        keys = [self._root(want.queue) for want in wants]
        unheard = {want.queue: self._unheard.pop(want.queue, []) for want in wants}
        asked = [value for w in wants for value in (_limits(w), ",".join(unheard[w.queue]))]
        try:
            args = (worker, lease, token, count, *asked)
            now, look, given, out = await self._run("claim", keys, args)
        except BaseException as error:
            # What the server gave and we never heard of must not wait until its leases lapse,
            # nor come under suspicion then: the next claim asks for it by name.
            lost = [] if isinstance(error, (Unsent, Refused)) else [token]
            for queue, tokens in unheard.items():
                if kept := [*tokens, *lost][-UNHEARD:]:
                    self._unheard[queue] = kept
            raise
        if sum(len(ids) for _, ids, *_ in given) == count:
            # More of it than was asked for may be left.
            self._unheard |= {queue: tokens for queue, tokens in unheard.items() if tokens}
        leases: list[Lease] = []
        damaged: list[Lease] = []
        suspects: dict[str, tuple[int, int]] = {}
        for number, ids, blobs, attempts, turns, marks in given:
            queue = wants[int(number) - 1].queue
            counts = zip(attempts or repeat(1), turns or repeat(0), strict=False)
            for id, blob, (attempt, turn) in zip(ids, blobs, counts, strict=False):
                try:
                    leases.append(read_lease(id, queue, blob or b"", attempt, turn, token, now))
                except (Unreadable, ValueError):
                    damaged.append(_unreadable(id, queue, attempt, token, now))
            for id, suspicion, crashes in marks:
                suspects[id.decode("utf-8", "replace")] = suspicion, crashes
        for held in leases if suspects else ():
            held.suspicion, held.crashes = suspects.get(held.id, (0, 0))
        if damaged:
            await self._bury(damaged)
        if out:
            # A sweep carries what cannot be carried now; the leases are given all the same.
            with suppress(StoreUnavailable):
                await self._carry(out)
        return Claim(leases, None if look < 0 else look)

    async def _claim_apart(
        self, wants: Sequence[Want], count: int, worker: bytes, lease: int
    ) -> Claim:
        """The same from a cluster: queue by queue, side by side, until all have been asked."""
        leases: list[Lease] = []
        looks: list[int] = []
        trouble: BaseException | None = None
        unasked, giving = list(wants), list[Want]()
        while len(leases) < count and (unasked or giving):
            left = count - len(leases)
            asked, unasked = unasked[:left], unasked[left:]
            if not asked:
                asked, giving = giving[:left], giving[left:]
            shares = [left // len(asked) + (n < left % len(asked)) for n in range(len(asked))]
            claims = await asyncio.gather(
                *(
                    self._claim_from([want], share, worker, lease)
                    for want, share in zip(asked, shares, strict=True)
                ),
                return_exceptions=True,
            )
            for want, share, claim in zip(asked, shares, claims, strict=True):
                if isinstance(claim, BaseException):
                    trouble = claim
                    continue
                leases += claim.leases
                if len(claim.leases) == min(share, BATCH):
                    giving.append(want)
                elif claim.next_due is not None:
                    looks.append(claim.next_due)
        if trouble is not None:
            if not leases:
                raise trouble
            # What one node gave is not left to lapse because another is away.
            self.doubt()
        return Claim(leases, min(looks, default=None))

    async def _bury(self, leases: Sequence[Lease]) -> None:
        # Edited by hand, and wrongly: it ends among the dead letters, the others go on.
        failure = Failure(
            type="Unreadable",
            message="its row in Redis is not one of ours any more",
            fingerprint="Unreadable",
        )
        endings = [Ending(lease=held, state=State.DEAD, failure=failure) for held in leases]
        for run in self._endings(endings):
            _, out = await self._settle(run)
            await self._carry(out)

    async def _has_work(self, queues: Sequence[str], *, within: int) -> bool:
        return any(await self._arm(queues, within))

    @timely
    async def _arm(self, queues: Sequence[str], within: int) -> list[int]:
        return await self._each("arm", queues, (within,))

    def _endings(
        self, endings: Sequence[Ending], already: AbstractSet[tuple[str, str]] = frozenset()
    ) -> list[Endings]:
        """The endings as script runs: one, or on a cluster one for each queue."""
        # The second ending of one lease must find the first one's: those go one after the other.
        once = len({ending.lease.id for ending in endings}) == len(endings)
        runs: dict[str, Endings] = {}
        for place, ending in enumerate(endings):
            if already and _run_of(ending) in already:
                continue
            queue = ending.lease.queue
            slot = queue if self._wire.is_cluster else ""
            run = runs.get(slot)
            if run is None:
                run = runs[slot] = Endings()
            if once and _is_plain(ending):
                run.add_plain(place, ending.lease)
            else:
                run.rich += (run.number(queue), *_rich_ending(ending))
                run.rich_places.append(place)
        return list(runs.values())

    async def _settle(self, run: Endings) -> tuple[list[int], list[Any]]:
        """The places of endings whose lease was lost, and releases to carry."""
        args = run.args()
        keys = [self._root(queue) for queue in run.queues]
        lost, out = await self._run("settle", keys, args)
        places = run.places
        return [places[at] for at in lost], out


class Endings:
    """Some endings, as settle.lua takes them."""

    def __init__(self) -> None:
        self.queues: dict[str, int] = {}
        self.plain: dict[tuple[str, Any, int, int], tuple[list[str], list[int]]] = {}
        self.rich: list[Arg] = []
        self.rich_places: list[int] = []

    def number(self, queue: str) -> int:
        return self.queues.setdefault(queue, len(self.queues) + 1)

    def add_plain(self, place: int, lease: Lease) -> None:
        # What one claim brought shares its token: together they need no more than their ids.
        remember = 0 if lease.keep else lease.ref or 0
        group = lease.queue, lease.token, lease.keep, remember
        found = self.plain.get(group)
        if found is None:
            found = self.plain[group] = ([], [])
        found[0].append(lease.id)
        found[1].append(place)

    def args(self) -> list[Arg]:
        args: list[Arg] = []
        count = 0
        for (queue, token, keep, remember), (ids, _) in self.plain.items():
            for start in range(0, len(ids), BATCH):
                some = ids[start : start + BATCH]
                args += (self.number(queue), str(token), keep, remember, len(some), *some)
                count += 1
        return [count, *args, *self.rich]

    @property
    def places(self) -> list[int]:
        return [place for _, places in self.plain.values() for place in places] + self.rich_places


def _run_of(ending: Ending) -> tuple[str, str]:
    return ending.lease.id, str(ending.lease.token)


def _is_plain(ending: Ending) -> bool:
    lease = ending.lease
    return (
        ending.state is State.DONE
        and ending.result is None
        and ending.failure is None
        and lease.key is None
        and lease.lane is None
    )


def _rich_ending(ending: Ending) -> tuple[Arg, ...]:
    failure = ending.failure
    return (
        ending.lease.id,
        str(ending.lease.token),
        LETTERS[ending.state],
        max(ending.delay, 0),
        b"1" if ending.spend else b"0",
        pack_failure(failure),
        to_text(failure.fingerprint) if failure else b"",
        b"1" if ending.result is not None else b"0",
        ending.result or b"",
        to_text(ending.park or ""),
        b"r" if ending.released else b"p" if ending.planned else b"",
        f"{ending.suspicion}+{ending.crashes}" if ending.suspicion or ending.crashes else b"",
    )


def _limits(want: Want) -> str:
    if (
        want.limit is None
        and want.lane_limit is None
        and want.rate is None
        and want.lane_rate is None
        and not want.ordered
        and not want.lanes
    ):
        return ""
    values: list[int | None] = [want.limit, want.lane_limit]
    values += [*(want.rate or (None, None)), *(want.lane_rate or (None, None))]
    values += [1 if want.ordered else 0, want.burst, RATE_MARGIN]
    bounds = ",".join("" if value is None else str(value) for value in values)
    lanes = (f"{digest(lane)}:{most}" for lane, most in want.lanes.items())
    return "|".join((bounds, *lanes))


def _unreadable(id: bytes, queue: str, attempt: int, token: str, now: int) -> Lease:
    return Lease(
        id=id.decode("utf-8", "replace"),
        queue=queue,
        kind="?",
        payload=b"",
        attempt=attempt,
        attempts=0,
        token=token,
        claimed_at=now,
    )


def _loss(loss: Loss) -> tuple[Arg, ...]:
    is_excused = b"1" if loss.is_excused else b"0"
    return loss.id, int(loss.suspicion), is_excused, pack_failure(loss.failure)


def _read_rescued(row: Sequence[bytes]) -> Rescued:
    id, queue, worker = (value.decode("utf-8", "replace") for value in row)
    return Rescued(id, queue, worker)


@asynccontextmanager
async def _at_once() -> AsyncGenerator[None]:
    yield
