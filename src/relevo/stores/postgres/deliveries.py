"""Deliveries: kept once, with their jobs, in one round trip; answered alike for good.

A delivery lives in two tables: in full, for people, until it is pruned, and as a line that knows
its answer for ever. Whoever delivers again touches only the line.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

import msgspec

from relevo.clock import Patience
from relevo.errors import StoreUnavailable
from relevo.ids import parse_id
from relevo.job import NewJob, Verdict
from relevo.store import (
    DELIVERY_KEEP,
    REFUSED_KEEP,
    STATE_NUMBERS,
    Arrival,
    DeliveryState,
    Kept,
    Letterbox,
    Reception,
)
from relevo.stores.postgres import arriving
from relevo.stores.postgres.lines import PATIENCE, Record, Spoiled
from relevo.stores.postgres.rows import (
    brief,
    columns_of,
    digest,
    hashed,
    ids_as_text,
    job_arguments,
    known_ids,
    packed_ids,
    page_size,
    thread_of,
)
from relevo.stores.postgres.session import Session
from relevo.stores.postgres.text import clean, restore

NO_JOB = "0" * 32
"""What no job has as its id."""

SEARCHED = 20_000
"""Deliveries whose bodies are searched for one page."""

_replace = msgspec.structs.replace
_pack = msgspec.msgpack.Encoder().encode

_TEXTS = dict.fromkeys((3, 10, 11, 12, 13), "text")
_SPREAD = _TEXTS | {
    6: "integer",
    7: "smallint",
    8: "smallint",
    9: "bigint",
    17: "bytea",
    18: "bytea",
}


def _argument(number: int) -> str:
    """An argument of `receive` as `_columns_of` gives it, see job_arguments()."""
    if number in (2, 5, 16):
        return f"${number}::text::uuid[]"
    if number in _SPREAD:
        return f"relevo.spread(${number}::{_SPREAD[number]}[], cardinality($19::bytea[]))"
    return f"${number}"


_RECEIVE = f"""
select place, verdict, moment, stands, (known).*
from relevo.receive({", ".join(map(_argument, range(1, 22)))}, {job_arguments(22)})
"""  # noqa: S608 - numbers of parameters
_RESOLVE = f"""
select verdict, (known).*
from relevo.resolve(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, {job_arguments(12)}
)
"""  # noqa: S608 - numbers of parameters
_SHOWN = """
    id, source, generation, received_at, status, answer, repeats, repeated_at, differs, key,
    state, reason, method, path, query, headers, jobs, thread
"""
_STATES = {number: state for state, number in STATE_NUMBERS.items()}


class Deliveries(Session):
    """The verbs of deliveries."""

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        if not arrivals:
            return []
        try:
            async with Patience(PATIENCE):
                answers, unsure = await self._arrive(arrivals)
                left = [place for place, answer in enumerate(answers) if answer is None]
                if left:
                    others = [arrivals[place] for place in left]
                    with self._saying(others):
                        late = await self._receive(others, posted=False, unsure=unsure)
                    for place, answer in zip(left, late, strict=True):
                        answers[place] = answer
        except TimeoutError as error:
            raise StoreUnavailable(f"PostgreSQL did not answer within {PATIENCE:g} s") from error
        return cast("list[Reception]", answers)

    async def receive_posted(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        return await self._receive(arrivals, posted=True) if arrivals else []

    async def _arrive(self, arrivals: Sequence[Arrival]) -> tuple[list[Reception | None], bool]:
        """Keeps those that are simply new; None for others, which may have been so, unheard."""
        nothing: list[Reception | None] = [None] * len(arrivals)
        # A pooler would have it planned every time.
        if self._address.pooler or not all(map(arriving.is_plain, arrivals)):
            return nothing, False
        try:
            with self._saying(arrivals):
                [row], unsure = await self._in.fetch_once(
                    self._sql(arriving.ARRIVE), self._skew, *arriving.columns_of(arrivals)
                )
        except Spoiled:
            return nothing, False  # nor has an earlier try happened: this one would have seen it
        now: int = row["now"]
        if row["news"] is None:
            return [_new(arrival, now) for arrival in arrivals], unsure
        news: set[UUID] = set(row["news"])
        return [
            _new(arrival, now) if UUID(arrival.kept.id) in news else None for arrival in arrivals
        ], unsure

    @contextmanager
    def _saying(self, arrivals: Sequence[Arrival]) -> Generator[None]:
        try:
            yield
        finally:
            # In any case: they may have been stored although no answer came.
            self._ear.said({job.queue for arrival in arrivals for job in arrival.jobs})

    async def _receive(
        self, arrivals: Sequence[Arrival], *, posted: bool, unsure: bool = False
    ) -> list[Reception]:
        # By their identities, deliveries go in once however often they are sent.
        rows, unheard = await self._in.fetch_once(
            self._sql(_RECEIVE), self._skew, *_columns_of(arrivals, posted)
        )
        return _received(arrivals, rows, unsure=unsure or unheard)

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        return await self._receive_within(connection, arrival, posted=False)

    async def receive_posted_within(self, connection: Any, arrival: Arrival) -> Reception:
        return await self._receive_within(connection, arrival, posted=True)

    async def _receive_within(
        self, connection: Any, arrival: Arrival, *, posted: bool
    ) -> Reception:
        async with self._lent(connection) as driver:
            rows = await driver.fetch(
                self._sql(_RECEIVE), self._skew, *_columns_of([arrival], posted)
            )
        return _received([arrival], rows, unsure=False)[0]

    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        with self._saying([arrival]):
            return await self._resolve(job, arrival, posted=False)

    async def resolve_posted(self, job: str, arrival: Arrival) -> Reception:
        return await self._resolve(job, arrival, posted=True)

    async def _resolve(self, job: str, arrival: Arrival, *, posted: bool) -> Reception:
        # Sent twice it stores its jobs once: the row names the job no more, or is as it was.
        rows, unsure = await self._in.fetch_once(
            self._sql(_RESOLVE), self._skew, *_resolution_of(job, arrival, posted)
        )
        return _resolved(arrival, rows, unsure=unsure)

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        return await self._resolve_within(connection, job, arrival, posted=False)

    async def resolve_posted_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        return await self._resolve_within(connection, job, arrival, posted=True)

    async def _resolve_within(
        self, connection: Any, job: str, arrival: Arrival, *, posted: bool
    ) -> Reception:
        async with self._lent(connection) as driver:
            rows = await driver.fetch(
                self._sql(_RESOLVE), self._skew, *_resolution_of(job, arrival, posted)
            )
        return _resolved(arrival, rows, unsure=False)

    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        hashes = [hashed(key) for key in keys]
        rows = await self._upkeep.fetch(
            self._sql(f"""
            select {_SHOWN}, hash
            from relevo.accepted
            where hash = any ($1) and source = $2
            order by generation
            """),  # noqa: S608 - a constant is put in, every value is bound
            hashes,
            clean(endpoint),
            repeat=True,
        )
        found = {row["hash"]: kept_of(row) for row in rows}
        return [found.get(hash_) for hash_ in hashes]

    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        rows = await self._people.fetch(
            self._sql(f"""
            select {_SHOWN}, body
            from relevo.letterbox
            where state = any ('{{0, 1, 2, 3, 4}}') and id = any ($1)
            """),  # noqa: S608 - a constant is put in, every value is bound
            known_ids(ids),
            repeat=True,
        )
        found = {row["id"].hex: kept_of(row, row["body"]) for row in rows}
        return [found.get(parse_id(text) or "") for text in ids]

    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        limit = page_size(limit)
        before = None if cursor is None else parse_id(cursor)
        if cursor is not None and before is None:
            return [], None
        meant = _meant(where, before)
        floor = None
        if where.text is not None:
            sql = self._sql(_FLOOR.format(_walks(_LAST, where.state)))
            rows = await self._people.fetch(sql, *meant, SEARCHED, repeat=True)
            floor = rows[0]["floor"]
        searched = where.text and where.text.encode("utf-8", "surrogatepass")
        sql = self._sql(_PAGE.format(_walks(_FOUND, where.state)))
        rows = await self._people.fetch(
            sql, *meant, limit + 1, floor, clean(where.text), searched, repeat=True
        )
        found = [kept_of(row) for row in rows[:limit]]
        return found, found[-1].id if len(rows) > limit else floor and floor.hex

    async def _prune_deliveries(self, dead_keep: int, limit: int) -> int:
        rows = await self._upkeep.fetch(
            self._sql("select relevo.prune_deliveries($1, $2, $3, $4, $5) as gone"),
            self._skew,
            DELIVERY_KEEP,
            REFUSED_KEEP,
            max(DELIVERY_KEEP, dead_keep),
            limit,
        )
        return rows[0]["gone"]


# A Letterbox as a condition, its parameters as `_meant` gives them. What an index knows to be few
# is looked up first: a walk from the newest on could be long.
_MEANT = """
    state = STATE
    and ($1::text is null or source = $1)
    and ($2::uuid is null or id = any (array(
        select id
        from relevo.delivered
        where hash = $2
        union all
        select id
        from relevo.deliveries
        where state = 1 and key = $3::text
    )))
    and ($4::text is null or id = any (array(
        select id
        from relevo.deliveries
        where thread = $4 and thread <> ''
        union all
        select id
        from relevo.deliveries
        where state = STATE and id = $5::uuid and thread is null
    )))
    and ($6::uuid is null or id < $6)
"""
_FOUND = f"""
    select {_SHOWN}
    from relevo.letterbox
    where {_MEANT}
        and ($8::uuid is null or id >= $8)
        and ($9::text is null
             or position($10::bytea in body) > 0
             or strpos(key, $9) > 0
             or strpos(reason, $9) > 0)
    order by id desc
    limit $7
"""  # noqa: S608 - constants are put in, every value is bound
_PAGE = "select * from ({}) as found order by id desc limit $7"
_LAST = f"select id from relevo.deliveries where {_MEANT} order by id desc offset $7 limit 1"  # noqa: S608 - constants
_FLOOR = """
select id as floor
from ({} union all select null) as last
order by id desc nulls last
limit 1
"""


def _walks(walk: str, state: DeliveryState | None) -> str:
    """A walk through each state that is meant: no index knows all of them by age."""
    numbers = STATE_NUMBERS.values() if state is None else [STATE_NUMBERS[state]]
    return " union all ".join([f"({walk.replace('STATE', str(number))})" for number in numbers])


def _meant(where: Letterbox, before: str | None) -> list[Any]:
    return [
        clean(where.endpoint),
        None if where.key is None else hashed(where.key),
        clean(where.key),
        clean(where.thread),
        None if where.thread is None else parse_id(where.thread),
        before,
    ]


def _hash(kept: Kept) -> str | None:
    """What makes it the same again; a refused one keeps no other out."""
    if kept.key is None or kept.state is DeliveryState.REFUSED:
        return None
    return digest(kept.key)


def _columns_of(arrivals: Sequence[Arrival], posted: bool) -> list[Any]:
    """The arguments of `receive` after the skew; a column of nulls travels as an empty one."""
    all_kept = [arrival.kept for arrival in arrivals]
    jobs: list[NewJob] = []
    owners: list[int] = []
    for place, arrival in enumerate(arrivals, 1):
        jobs += arrival.jobs
        owners += [place] * len(arrival.jobs)
    return [
        ids_as_text([kept.id for kept in all_kept]),
        brief([clean(kept.endpoint) for kept in all_kept]),
        [clean(kept.key) for kept in all_kept],
        _as_text([_hash(kept) for kept in all_kept]),
        brief([kept.generation for kept in all_kept]),
        brief([kept.status for kept in all_kept]),
        brief([STATE_NUMBERS[kept.state] for kept in all_kept]),
        brief([kept.received_at or None for kept in all_kept]),
        brief([thread_of(kept) for kept in all_kept]),
        brief([clean(kept.method) for kept in all_kept]),
        brief([clean(kept.path) for kept in all_kept]),
        brief([clean(kept.query) for kept in all_kept]),
        [clean(kept.reason) for kept in all_kept] if any(kept.reason for kept in all_kept) else [],
        [packed_ids(arrival.jobs) for arrival in arrivals] if jobs else [],
        ids_as_text([digest(arrival.compared) for arrival in arrivals]),
        brief([kept.headers for kept in all_kept]),
        brief([kept.answer for kept in all_kept]),
        [kept.body for kept in all_kept],
        owners,
        [_pack(job) for job in jobs] if posted else [],
        *columns_of(jobs),
    ]


def _resolution_of(job: str, arrival: Arrival, posted: bool) -> list[Any]:
    """The arguments of `resolve` after the skew."""
    kept, jobs = arrival.kept, arrival.jobs
    return [
        (parse_id(job) or NO_JOB) if job else None,
        parse_id(kept.id),
        clean(kept.key),
        _hash(kept),
        STATE_NUMBERS[kept.state],
        kept.status,
        clean(kept.reason),
        kept.answer,
        packed_ids(jobs) if jobs else bytes.fromhex("".join(kept.jobs)),
        [_pack(each) for each in jobs] if posted else [],
        *columns_of(jobs),
    ]


def _as_text(digests: Sequence[str | None]) -> str:
    """An array of them, as PostgreSQL reads it."""
    return f"{{{','.join([each or 'null' for each in digests])}}}"


def _received(
    arrivals: Sequence[Arrival], rows: Sequence[Record], *, unsure: bool
) -> list[Reception]:
    now: int = rows[0]["moment"]
    others = {row["place"]: row for row in rows}
    answers: list[Reception] = []
    for place, arrival in enumerate(arrivals, 1):
        kept, row = arrival.kept, others.get(place)
        if row is not None and row["verdict"] == "done":
            stored = kept_of(row)
            # If the first try was heard and its answer lost, the delivery that is there is this.
            is_ours = unsure and stored.id == kept.id
            verdict = Verdict.NEW if is_ours else Verdict.DONE
            print_: UUID | None = row["print"]
            differs = print_ is not None and print_.hex != digest(arrival.compared)
            answers.append(Reception(stored, verdict, differs))
        elif row is not None and row["verdict"] == "closed":
            answers.append(Reception(kept, Verdict.CLOSED))
        else:
            answers.append(_new(arrival, now, None if row is None else _ids_of(row["stands"])))
    return answers


def _resolved(arrival: Arrival, rows: Sequence[Record], *, unsure: bool) -> Reception:
    named = arrival.kept
    if not rows:
        return Reception(named, Verdict.DONE)
    stored = kept_of(rows[0])
    verdict = Verdict(rows[0]["verdict"])
    if unsure and verdict is Verdict.DONE:
        # If the first try was heard and its answer lost, what is written there is this.
        jobs = tuple([job.id for job in arrival.jobs]) or named.jobs
        mine = _replace(
            stored,
            key=named.key,
            state=named.state,
            reason=named.reason,
            status=named.status,
            answer=named.answer,
            jobs=jobs,
        )
        verdict = Verdict.NEW if mine == stored else Verdict.DONE
    return Reception(stored, verdict)


def _new(arrival: Arrival, now: int, stands: tuple[str, ...] | None = None) -> Reception:
    kept = arrival.kept
    jobs = tuple([job.id for job in arrival.jobs]) if stands is None else stands
    stored = _replace(kept, received_at=kept.received_at or now, jobs=jobs)
    return Reception(stored, Verdict.NEW)


def _ids_of(packed: bytes) -> tuple[str, ...]:
    digits = packed.hex()
    return tuple([digits[start : start + 32] for start in range(0, len(digits), 32)])


def kept_of(row: Record, body: bytes = b"") -> Kept:
    """The delivery in a row of `accepted` or `letterbox`."""
    id_ = row["id"].hex
    line = Kept(
        id=id_,
        endpoint=restore(row["source"]),
        key=None,
        generation=row["generation"],
        method="",
        answer=row["answer"],
        status=row["status"],
        received_at=row["received_at"],
        repeats=row["repeats"],
        repeated_at=row["repeated_at"],
        differs=row["differs"],
    )
    if row["state"] is None:
        return line  # it was pruned
    thread: str | None = row["thread"]
    return _replace(
        line,
        key=restore(row["key"]),
        state=_STATES[row["state"]],
        reason=restore(row["reason"]),
        method=restore(row["method"]),
        path=restore(row["path"]),
        query=restore(row["query"]),
        headers=row["headers"],
        body=body,
        jobs=_ids_of(row["jobs"]),
        thread=id_ if thread is None else restore(thread) or None,
    )
