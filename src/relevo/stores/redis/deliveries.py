"""Deliveries: what webhooks brought, each endpoint in a slot of its own.

On one server most are kept with their jobs by one script. Else jobs go first, by ids made of their
delivery, and the delivery with its answer behind them. Whoever dies in between has answered
nothing: the provider delivers again, finds its jobs there and is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from msgspec import DecodeError, Struct, structs
from msgspec.json import Decoder

from relevo.errors import MisuseError, StoreDamaged
from relevo.ids import parse_id
from relevo.job import NewJob, Verdict
from relevo.store import (
    DELIVERY_KEEP,
    REFUSED_KEEP,
    Arrival,
    DeliveryState,
    Kept,
    Letterbox,
    Reception,
    stands_for,
)
from relevo.stores.redis.frame import side_by_side, timely
from relevo.stores.redis.inlet import Inlet
from relevo.stores.redis.line import Arg
from relevo.stores.redis.newest import Newest
from relevo.stores.redis.record import (
    band,
    digest,
    dump,
    from_text,
    is_plain,
    load,
    pack_job,
    to_text,
    when,
)

HELD_AGAIN = 0.02  # seconds until it is asked again what became of another body of a key
KEEP_JOBS = 3_600_000  # a job is known so long after its end, for who delivers a second time
SETS = {state: state.value for state in DeliveryState} | {DeliveryState.REFUSED: "rejected"}
STATES = {state.name[0].encode(): state for state in DeliveryState}


class Rest(Struct, omit_defaults=True):
    """What of a delivery only Python reads."""

    m: str = "POST"  # method
    p: str = ""  # path
    q: str = ""  # query
    j: tuple[str, ...] = ()  # jobs
    t: str | None = None  # thread
    k: str = ""  # hash of the key, where it keeps no other out
    r: bool = False  # refused, but only when a job had run its function: its key is known
    h: str = ""  # hash of what is compared, where that is not the body; Lua looks at the end


class Row(Struct):
    """A delivery's row, taken apart."""

    letter: bytes
    generation: int
    status: int
    moment: int
    key: bytes | None
    reason: bytes
    headers: bytes
    answer: bytes
    rest: Rest


_rest = Decoder(Rest)


class Deliveries(Inlet, Newest):
    """The verbs of deliveries."""

    @timely
    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        for arrival in arrivals:
            if parse_id(arrival.kept.id) != arrival.kept.id:
                raise MisuseError(f"{arrival.kept.id!r:.60} is no id: take one from new_id()")
        if not arrivals:
            return []
        prints = [_print(arrival) for arrival in arrivals]
        if (arrived := await self._arrive(arrivals, prints)) is not None:
            return arrived
        receptions = [Reception(arrival.kept, Verdict.CLOSED) for arrival in arrivals]
        left = dict(enumerate(arrivals))
        while left:
            named = {n: one for n, one in left.items() if _is_known(one.kept)}
            known, held = await self._receive("ask", named, prints, receptions)
            fresh = {n: one for n, one in left.items() if n not in known | held}
            taken = await self._insert_jobs(fresh)
            await self._register_endpoints({one.kept.endpoint for one in taken.values()})
            await self._receive("keep", taken, prints, receptions)
            left = {n: left[n] for n in sorted(held)}
            if not taken and left:
                await asyncio.sleep(HELD_AGAIN)
        return receptions

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        raise MisuseError("Redis is no SQL database: receive() keeps it by itself")

    @timely
    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        named = arrival.kept
        root = self._endpoint(named.endpoint)
        rows = await self._run("delivery", [root], [named.id])
        stored = _read_kept(named.endpoint, rows[0]) if rows else None
        if stored is None or not stands_for(job, stored):
            return Reception(stored or named, Verdict.DONE)
        stands = await self.insert([_bound(one, arrival) for one in arrival.jobs])
        if any(one.verdict is Verdict.CLOSED for one in stands):
            return Reception(stored, Verdict.CLOSED)
        resolved = structs.replace(
            stored,
            key=named.key,
            state=named.state,
            reason=named.reason,
            status=named.status,
            answer=named.answer,
            jobs=tuple([one.id for one in stands]) or named.jobs,
        )
        refused = resolved.state is DeliveryState.REFUSED
        front, behind = _row(resolved, r=refused, h=_split(rows[0][2]).rest.h)
        args = (
            named.id,
            job,
            _letter(resolved),
            _hash(resolved),
            resolved.generation,
            front + str(resolved.received_at).encode() + behind,
        )
        if await self._run("resolve", [root], args, wait=self._address.wait):
            return Reception(structs.replace(resolved, body=b""), Verdict.NEW)
        [first] = await self.delivery([named.id])
        return Reception(first or named, Verdict.DONE)

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        raise MisuseError("Redis is no SQL database: resolve() writes it by itself")

    @timely
    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        if not keys:
            return []
        rows = await self._run(
            "delivered", [self._endpoint(endpoint)], [digest(key) for key in keys]
        )
        return [_read_kept(endpoint, row) if row is not None else None for row in rows]

    @timely
    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        endpoints = {
            root: endpoint
            for root, endpoint in (await self._endpoints()).items()
            if where.endpoint in (None, endpoint)
        }
        streams = [
            (f"{root.decode()}:{name}", root + f":{name}".encode())
            for root in endpoints
            for state, name in SETS.items()
            if where.state in (None, state)
        ]
        question = (
            digest(where.key) if where.key is not None else "",
            digest(where.thread) if where.thread is not None else "",
            *((b"1", to_text(where.text)) if where.text is not None else (b"0", b"")),
        )
        return await self._newest(
            "deliveries",
            sorted(streams),
            question,
            lambda row: _shown(endpoints[row[1][0]], row[1]),
            cursor=cursor,
            limit=limit,
        )

    @timely
    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        known = [id for id in dict.fromkeys(ids) if parse_id(id) == id]
        endpoints = await self._endpoints() if known else {}
        found: dict[str, Kept] = {}
        runs = [[root] for root in endpoints] if self._wire.is_cluster else [list(endpoints)]
        if endpoints:
            for rows in await side_by_side(*(self._run("delivery", run, known) for run in runs)):
                found |= {row[1].decode(): _shown(endpoints[row[0]], row) for row in rows}
        return [found.get(id) for id in ids]

    async def _tidy_deliveries(self, dead_keep: int, limit: int) -> int:
        """On a cluster: remove what has been kept long enough."""
        removed = 0
        for root in await self._endpoints():
            if removed < limit:
                args = (*kept_for(dead_keep), limit - removed)
                removed += await self._run("tidy_deliveries", [root], args)
        return removed

    async def _erase_deliveries(self, ids: Sequence[str]) -> int:
        """On a cluster: remove these, whatever their age."""
        roots = await self._endpoints() if ids else {}
        runs = (self._run("erase_deliveries", [root], ids) for root in roots)
        return sum(await side_by_side(*runs))

    # how

    async def _arrive(
        self, arrivals: Sequence[Arrival], prints: Sequence[str]
    ) -> list[Reception] | None:
        """In one step, as most can be; None if these cannot, and nothing has happened."""
        jobs = [job for arrival in arrivals for job in arrival.jobs]
        if self._wire.is_cluster or not all(is_plain(job) and not when(job) for job in jobs):
            return None
        endpoints = {
            arrival.kept.endpoint: self._endpoint(arrival.kept.endpoint) for arrival in arrivals
        }
        queues = {job.queue: self._root(job.queue) for job in jobs}
        places = {key: at for at, key in enumerate((*endpoints.values(), *queues.values()), 1)}
        args: list[Arg] = [len(endpoints)]
        kept: list[Kept] = []
        for arrival, print_ in zip(arrivals, prints, strict=True):
            one = structs.replace(arrival.kept, jobs=tuple([job.id for job in arrival.jobs]))
            packed = _pack(structs.replace(arrival, kept=one), print_)
            args += (places[endpoints[one.endpoint]], *packed, len(arrival.jobs))
            for job in [_bound(job, arrival) for job in arrival.jobs]:
                args += (places[queues[job.queue]], band(job.priority), job.id, pack_job(job))
            kept.append(one)
        await self._register_endpoints(set(endpoints))
        try:
            rows = await self._run("arrive", list(places), args, wait=self._address.wait)
        finally:
            for queue in queues:
                self._bell.ring(queue)
        if rows == [-1]:
            return None
        return [_told(one, row) for one, row in zip(kept, rows, strict=True)]

    async def _receive(
        self,
        form: str,
        some: Mapping[int, Arrival],
        prints: Sequence[str],
        receptions: list[Reception],
    ) -> tuple[set[int], set[int]]:
        """Ask about deliveries, or keep them.

        Answers the places of those it could say more of, and of those that have to wait until it is
        known what becomes of another body of their key.
        """
        places, pack = list(some), _pack if form == "keep" else _asked
        items = [(one.kept.endpoint, pack(one, prints[n])) for n, one in some.items()]
        wait = self._address.wait  # also to ask: what is known here must be known there
        told: set[int] = set()
        held: set[int] = set()
        runs = await self._over("receive", items, form, root=self._endpoint, wait=wait)
        for mine, rows in runs:
            for place, row in zip((places[at] for at in mine), rows, strict=True):
                if row == 0:
                    held.add(place)
                elif row:
                    receptions[place] = _told(some[place].kept, row)
                    told.add(place)
        return told, held

    async def _insert_jobs(self, arrivals: Mapping[int, Arrival]) -> dict[int, Arrival]:
        """Store what came of them; answers those that no draining queue has refused."""
        firsts: dict[tuple[str, str, int], int] = {}
        jobs: list[NewJob] = []
        for n, arrival in arrivals.items():
            # The same delivery twice in one call: the second brings nothing.
            if firsts.setdefault(_name(arrival.kept), n) == n:
                jobs += [_bound(job, arrival) for job in arrival.jobs]
        inserted = iter(await self.insert(jobs))
        taken: dict[int, Arrival] = {}
        for n, arrival in arrivals.items():
            first = firsts[_name(arrival.kept)]
            stands = [next(inserted) for _ in arrival.jobs] if first == n else []
            if not any(one.verdict is Verdict.CLOSED for one in stands) and first in {n, *taken}:
                ids = tuple(one.id for one in stands)
                taken[n] = structs.replace(arrival, kept=structs.replace(arrival.kept, jobs=ids))
        return taken

    def _endpoint(self, endpoint: str) -> bytes:
        """What all keys of a endpoint start with."""
        return self._key(_word(endpoint), tag=True)

    async def _endpoints(self) -> dict[bytes, str]:
        """Every endpoint there is, by its root."""
        key = self._key("hooks")
        names = [from_text(name) for name in await self._wire.command(key, b"HVALS", key)]
        return {self._endpoint(name): name for name in sorted(names)}

    async def _register_endpoints(self, endpoints: set[str]) -> None:
        fresh = sorted(each for each in endpoints if f"hook {each}" not in self._registered)
        if fresh:
            key = self._key("hooks")
            pairs = [value for each in fresh for value in (_word(each), to_text(each))]
            await self._wire.command(key, b"HSET", key, *pairs)
            self._registered.update(f"hook {each}" for each in fresh)


def kept_for(dead_keep: int) -> tuple[int, int, int]:
    """How long deliveries are kept, failed ones, and refused ones."""
    return DELIVERY_KEEP, max(DELIVERY_KEEP, dead_keep), REFUSED_KEEP


def _told(kept: Kept, row: Any) -> Reception:
    """What the script said of a delivery: the row that was there, or when it came."""
    if isinstance(row, bytes):
        return Reception(structs.replace(kept, received_at=int(row)), Verdict.NEW)
    *row, differs = row
    return Reception(_read_kept(kept.endpoint, row), Verdict.DONE, differs == 1)


def _word(endpoint: str) -> str:
    return f"hook_{digest(endpoint)}"


def _name(kept: Kept) -> tuple[str, str, int]:
    """What makes it the same delivery again."""
    name = f"key {kept.key}" if _is_known(kept) else f"id {kept.id}"
    return kept.endpoint, name, kept.generation


def _is_known(kept: Kept) -> bool:
    """Whether its key is known from then on; a refused one keeps no other out."""
    return kept.key is not None and kept.state is not DeliveryState.REFUSED


def _hash(kept: Kept) -> str:
    """The hash under which its key is known, or ''."""
    return digest(kept.key) if kept.key is not None and _is_known(kept) else ""


def _letter(kept: Kept) -> str:
    return kept.state.name[0]


def _bound(job: NewJob, arrival: Arrival) -> NewJob:
    """One of an arrival's jobs: stored with the others or not at all, and known for a while."""
    bundle = arrival.kept.id if len(arrival.jobs) > 1 else job.bundle
    return structs.replace(job, bundle=bundle, keep=max(job.keep, KEEP_JOBS))


def _print(arrival: Arrival) -> str:
    return sha1(arrival.compared, usedforsecurity=False).hexdigest()


def _asked(arrival: Arrival, print_: str) -> tuple[Arg, ...]:
    return _hash(arrival.kept), arrival.kept.generation, print_


def _pack(arrival: Arrival, print_: str) -> tuple[Arg, ...]:
    kept = arrival.kept
    named = digest(kept.key) if kept.key is not None and not _is_known(kept) else ""
    front, behind = _row(kept, k=named, h=print_ if arrival.body is not None else "")
    return (
        *_asked(arrival, print_),
        kept.id,
        _letter(kept),
        kept.received_at or "",
        digest(kept.thread) if kept.thread is not None else "",
        front,
        behind,
        kept.body,
        named,
    )


def _row(kept: Kept, *, k: str = "", r: bool = False, h: str) -> tuple[bytes, bytes]:
    """A delivery's row: what is in front of its moment, and what is behind."""
    key, reason = to_text(kept.key or ""), to_text(kept.reason)
    length = "-" if kept.key is None else len(key)
    thread = digest(kept.thread) if kept.thread is not None else ""
    rest = Rest(kept.method, kept.path, kept.query, kept.jobs, kept.thread, k, r, h)
    front = f"{_letter(kept)}|{kept.generation}|{kept.status}|".encode()
    lengths = f"|{length}|{len(reason)}|{len(kept.headers)}|{len(kept.answer)}|{thread}|".encode()
    return front, lengths + key + reason + kept.headers + kept.answer + dump(rest)


def _shown(endpoint: str, row: Sequence[Any]) -> Kept:
    """A delivery for people: one that somebody edited by hand, and wrongly, hides no other."""
    try:
        return _read_kept(endpoint, row)
    except StoreDamaged as error:
        id = row[1].decode("utf-8", "replace")
        return Kept(
            id=id, endpoint=endpoint, key=None, state=DeliveryState.REFUSED, reason=str(error)
        )


def _read_kept(endpoint: str, row: Sequence[Any]) -> Kept:
    try:
        return _unpack(endpoint, row)
    except (DecodeError, LookupError, ValueError) as error:
        raise StoreDamaged("the delivery's row in Redis is not one of ours any more") from error


def _unpack(endpoint: str, row: Sequence[Any]) -> Kept:
    _, id, packed, again, body = row
    its = _split(packed)
    repeats, repeated_at, differs = again.split(b"|") if again else (b"0", b"0", b"0")
    return Kept(
        id=id.decode(),
        endpoint=endpoint,
        key=None if its.key is None else from_text(its.key),
        generation=its.generation,
        state=STATES[its.letter],
        reason=from_text(its.reason),
        method=its.rest.m,
        path=its.rest.p,
        query=its.rest.q,
        headers=its.headers or b"[]",
        body=body,
        answer=its.answer,
        status=its.status,
        jobs=its.rest.j,
        thread=its.rest.t,
        received_at=its.moment,
        repeats=int(repeats),
        repeated_at=int(repeated_at),
        differs=differs == b"1",
    )


def _split(packed: bytes) -> Row:
    letter, generation, status, moment, *lengths, _, tail = packed.split(b"|", 9)
    texts: list[bytes] = []
    for length in lengths:
        size = 0 if length == b"-" else int(length)
        if size > len(tail):
            raise ValueError("shorter than it says")
        texts.append(tail[:size])
        tail = tail[size:]
    key, reason, headers, answer = texts
    return Row(
        letter,
        int(generation),
        int(status),
        int(moment),
        None if lengths[0] == b"-" else key,
        reason,
        headers,
        answer,
        load(_rest, tail) if tail else Rest(),
    )
