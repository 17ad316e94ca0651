"""Deliveries: kept once, with their jobs, in one step; answered alike for good.

A delivery lives in two tables: in full, for people, until it is pruned, and as a line that knows
its answer for ever (lines.py). Whoever delivers again touches only the line.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from relevo.job import NewJob, Verdict
from relevo.store import (
    DELIVERY_KEEP,
    REFUSED_KEEP,
    STATE_NUMBERS,
    Arrival,
    DeliveryState,
    Kept,
    Letterbox,
    QueueMode,
    Reception,
    stands_for,
)
from relevo.stores.sqlite import letters, lines
from relevo.stores.sqlite.jobs import insert_jobs
from relevo.stores.sqlite.transaction import Tx, as_bytes, as_list, bound, chunks, fill, plain, text

LONGEST = 200  # deliveries on one page, at most
WALK = 20_000  # deliveries whose bodies are searched for one page

Identity: TypeAlias = tuple[bytes, str, int]  # the key's hash, the source, the generation
Meetings: TypeAlias = dict[Identity, tuple[Kept | int, bytes | None]]
"""What stands under an identity: one kept before and its body's hash, or a place in this call."""
Storing: TypeAlias = Callable[[Tx, Sequence[NewJob]], Sequence[str]]

STATES = {number: state for state, number in STATE_NUMBERS.items()}

_replace = msgspec.structs.replace


# in


def receive(tx: Tx, arrivals: Sequence[Arrival]) -> list[Reception]:
    """Keep deliveries, and their jobs in this store."""
    shut = {
        name
        for name in {job.queue for arrival in arrivals for job in arrival.jobs}
        if tx.queue(name).mode is QueueMode.DRAINING
    }
    return _receive(tx, arrivals, _insert, shut)


def receive_posted(tx: Tx, arrivals: Sequence[Arrival]) -> list[Reception]:
    """The same, the jobs as letters to another store."""
    return _receive(tx, arrivals, _post, set())


def _insert(tx: Tx, jobs: Sequence[NewJob]) -> Sequence[str]:
    return [answer.id for answer in insert_jobs(tx, jobs)]


def _post(tx: Tx, jobs: Sequence[NewJob]) -> Sequence[str]:
    letters.post(tx, jobs)
    return [job.id for job in jobs]


def _receive(
    tx: Tx, arrivals: Sequence[Arrival], storing: Storing, shut: set[str]
) -> list[Reception]:
    identities = [identity_of(arrival.kept) for arrival in arrivals]
    closed = {
        place
        for place, arrival in enumerate(arrivals)
        if shut and any(job.queue in shut for job in arrival.jobs)
    }
    known = _met(tx, identities)
    fresh = _fresh(identities, known, closed)
    jobs = _jobs_of(arrivals, fresh)
    stands: Sequence[str] = storing(tx, jobs) if jobs else ()
    stored = _keep(tx, arrivals, identities, fresh, stands)
    answers: list[Reception] = []
    repeats: list[tuple[Identity, bool]] = []
    for place, arrival in enumerate(arrivals):
        identity = identities[place]
        if place in stored:
            answers.append(Reception(stored[place], Verdict.NEW))
        elif identity is not None and identity in known:
            first, print_ = known[identity]
            if isinstance(first, int):
                first, print_ = stored[first], _print(arrivals[first].compared)
            differs = print_ not in (None, _print(arrival.compared))
            if first.id != arrival.kept.id:
                repeats.append((identity, differs))
            answers.append(Reception(first, Verdict.DONE, differs))
        else:
            answers.append(Reception(arrival.kept, Verdict.CLOSED))
    if repeats:
        _count(tx, repeats)
    return answers


def _met(tx: Tx, identities: Sequence[Identity | None]) -> Meetings:
    """What was kept before under these identities, and its body's hash."""
    asked = list({identity for identity in identities if identity is not None})
    lines.learn(tx)
    lines.enter(tx, [hash_ for hash_, *_ in asked])
    return _known(tx, asked)


def _fresh(
    identities: Sequence[Identity | None], known: Meetings, closed: set[int]
) -> Sequence[int]:
    """The places of those that are new; each is known to those that follow it in this call."""
    fresh: list[int] = []
    for place, identity in enumerate(identities):
        if place in closed or identity in known:
            continue
        fresh.append(place)
        if identity is not None:
            known[identity] = (place, None)
    return fresh


def identity_of(kept: Kept) -> Identity | None:
    """What makes it the same delivery again; a refused one keeps no other out."""
    if kept.key is None or kept.state is DeliveryState.REFUSED:
        return None
    return _hash(kept.key), text(kept.endpoint), kept.generation


def _hash(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _print(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def _jobs_of(arrivals: Sequence[Arrival], places: Sequence[int]) -> Sequence[NewJob]:
    return list(chain.from_iterable([arrivals[place].jobs for place in places]))


def _keep(
    tx: Tx,
    arrivals: Sequence[Arrival],
    identities: Sequence[Identity | None],
    places: Sequence[int],
    stands: Sequence[str],
) -> dict[int, Kept]:
    """Write new deliveries in full; `stands` are the jobs of all of them, one after the other."""
    stored: dict[int, Kept] = {}
    start = 0
    for place in places:
        end = start + len(arrivals[place].jobs)
        stored[place] = stored_of(arrivals[place].kept, tx.now, tuple(stands[start:end]))
        start = end
    named = [(identities[place], kept) for place, kept in stored.items()]
    hashes = [identity and identity[0] for identity, _ in named]
    first = tx.known.last_delivery + 1
    tx.known.last_delivery += len(stored)
    rows = rows_of(first, [arrivals[place] for place in stored], list(stored.values()), hashes)
    if rows and tx.insert(_KEEP, rows) < len(rows):
        # One was kept under another key: it has no row to make its second line from.
        lines.enter_now(
            tx,
            [
                (*identity, kept.id, kept.received_at, kept.status, kept.answer)
                for identity, kept in named
                if identity is not None
            ],
        )
    if any(hashes):
        lines.leave(tx, first, hashes)
    return stored


def stored_of(kept: Kept, now: int, jobs: tuple[str, ...]) -> Kept:
    """A new delivery as it is stored."""
    return _replace(kept, received_at=kept.received_at or now, jobs=jobs)


def rows_of(
    first: int,
    arrivals: Sequence[Arrival],
    stored: Sequence[Kept],
    hashes: Sequence[bytes | None],
) -> list[tuple[Any, ...]]:
    """New deliveries as rows of their table, in the order of COLUMNS."""
    return [
        (
            seq,
            STATE_NUMBERS[kept.state],
            kept.generation,
            kept.received_at,
            kept.status,
            kept.id,
            text(kept.endpoint),
            None if kept.key is None else text(kept.key),
            hash_,
            None if kept.thread == kept.id else text(kept.thread or ""),
            text(kept.method),
            text(kept.path),
            text(kept.query),
            text(kept.reason),
            bytes.fromhex("".join(kept.jobs)),
            # Made from the body when it is asked for, unless that is sealed.
            b"" if arrival.body is None else _print(arrival.compared),
            kept.headers,
            kept.answer,
            kept.body,
        )
        for seq, (arrival, kept, hash_) in enumerate(
            zip(arrivals, stored, hashes, strict=True), first
        )
    ]


COLUMNS = """
    seq, state, generation, received_at, status, id, source, key, hash, thread, method, path,
    query, reason, jobs, print, headers, answer, body
"""
_KEEP = f"""
    insert into relevo_deliveries ({COLUMNS})
    values []
    on conflict (state, id) do nothing
"""  # noqa: S608 - put together from constants


def _count(tx: Tx, repeats: list[tuple[Identity, bool]]) -> None:
    lines.enter(tx, [hash_ for (hash_, *_), _ in repeats])
    tx.connection.executemany(
        """
        update relevo_delivered
        set repeats = repeats + 1, repeated_at = ?, differs = max(differs, ?)
        where hash = ? and source = ? and generation = ?
        """,
        [(tx.now, differs, *identity) for identity, differs in repeats],
    )


# what came of it later


def resolve(tx: Tx, job: str, arrival: Arrival) -> Reception:
    """Write down what came of a delivery whose function a job has run."""
    shut = any(tx.queue(each.queue).mode is QueueMode.DRAINING for each in arrival.jobs)
    return _resolve(tx, job, arrival, _insert, shut=shut)


def resolve_posted(tx: Tx, job: str, arrival: Arrival) -> Reception:
    """resolve(), the jobs as letters to another store."""
    return _resolve(tx, job, arrival, _post, shut=False)


def _resolve(tx: Tx, job: str, arrival: Arrival, storing: Storing, *, shut: bool) -> Reception:
    lines.learn(tx)
    [stored] = delivery(tx.connection, [arrival.kept.id])
    if stored is None or not stands_for(job, stored):
        return Reception(stored or arrival.kept, Verdict.DONE)
    if shut:
        return Reception(stored, Verdict.CLOSED)
    named = arrival.kept
    resolved = _replace(
        stored,
        key=named.key,
        state=named.state,
        reason=named.reason,
        status=named.status,
        answer=named.answer,
        jobs=tuple(storing(tx, arrival.jobs)) if arrival.jobs else named.jobs,
    )
    before, after = identity_of(stored), identity_of(resolved)
    # Lines of both keys that still wait are made first, from the rows as they are now.
    lines.enter(tx, [identity[0] for identity in (before, after) if identity is not None])
    if before is not None:
        tx.run(
            """
            update relevo_delivered
            set status = ?, answer = ?
            where hash = ? and source = ? and generation = ? and id = ?
            """,
            (resolved.status, resolved.answer, *before, resolved.id),
        )
    tx.run(
        """
        update relevo_deliveries
        set state = ?, key = ?, hash = ?, reason = ?, status = ?, answer = ?, jobs = ?
        where state = ? and id = ?
        """,
        (
            STATE_NUMBERS[resolved.state],
            None if resolved.key is None else text(resolved.key),
            after and after[0],
            text(resolved.reason),
            resolved.status,
            resolved.answer,
            bytes.fromhex("".join(resolved.jobs)),
            STATE_NUMBERS[stored.state],
            text(resolved.id),
        ),
    )
    if after is not None and after != before:
        line = (*after, resolved.id, resolved.received_at, resolved.status, resolved.answer)
        lines.enter_now(tx, [line])
        tx.run(
            """
            update relevo_delivered
            set repeats = ?, repeated_at = ?, differs = ?
            where hash = ? and source = ? and generation = ? and id = ?
            """,
            (resolved.repeats, resolved.repeated_at, resolved.differs, *after, resolved.id),
        )
    return Reception(_replace(resolved, body=b""), Verdict.NEW)


# out

_FULL = """
    select full.id, full.source, full.generation, full.received_at, full.status,
           ifnull(line.answer, full.answer), ifnull(line.repeats, 0), ifnull(line.repeated_at, 0),
           ifnull(line.differs, 0), full.key, full.state, full.reason, full.method, full.path,
           full.query, full.headers, full.jobs, full.thread
"""
_LINE = """
    select line.id, line.source, line.generation, line.received_at, line.status, line.answer,
           line.repeats, line.repeated_at, line.differs, full.key, full.state, full.reason,
           full.method, full.path, full.query, full.headers, full.jobs, full.thread
"""
_ITS_LINE = """
    left join relevo_delivered as line
        on line.hash = full.hash
       and line.source = full.source
       and line.generation = full.generation
"""


_MET = f"""
    with asked (hash, source, generation) as (values [])
    {_LINE}, line.hash, line.source, full.print, iif(full.print = x'', full.body, null)
    from asked
    cross join relevo_delivered as line using (hash, source, generation)
    left join relevo_deliveries as full on full.state in (0, 2, 3, 4) and full.id = line.id
"""


def _known(tx: Tx, identities: Sequence[Identity]) -> Meetings:
    known: Meetings = {}
    for some in chunks(identities):
        rows = tx.all(*bound(_MET, some))
        for row in rows:
            print_, body = row[20:]
            print_ = print_ if body is None else _print(as_bytes(body))
            known[row[18], row[19], row[2]] = (kept_of(row), print_)
    return known


def delivered(
    connection: sqlite3.Connection, source: str, keys: Sequence[str]
) -> list[Kept | None]:
    """The newest generation kept under each key."""
    hashes = [_hash(key) for key in keys]
    found: dict[bytes, Kept] = {}
    # In this order: what leaves the one place before we look is found in the other.
    rows = connection.execute(
        f"""
        {_FULL}, full.hash
        from relevo_deliveries as full
        {_ITS_LINE}
        where full.seq in (select value from json_each(?))
          and full.source = ?
        order by full.generation
        """,  # noqa: S608 - put together from constants
        (as_list(lines.waiting(connection, hashes)), text(source)),
    )
    found.update({row[18]: kept_of(row) for row in rows})
    for some in chunks(hashes):
        rows = connection.execute(
            fill(
                f"""
                with asked (hash) as (values [?])
                {_LINE}, line.hash
                from asked
                cross join relevo_delivered as line on line.hash = asked.hash
                left join relevo_deliveries as full
                    on full.state in (0, 2, 3, 4)
                   and full.id = line.id
                where line.source = ?
                order by line.generation
                """,
                len(some),
            ),
            [*some, text(source)],
        )
        for row in rows:
            if row[18] not in found or found[row[18]].generation <= row[2]:
                found[row[18]] = kept_of(row)
    return [found.get(hash_) for hash_ in hashes]


def delivery(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Kept | None]:
    """Deliveries in full."""
    rows = connection.execute(
        f"""
        {_FULL}, full.body
        from relevo_deliveries as full
        {_ITS_LINE}
        where full.state in (0, 1, 2, 3, 4)
          and full.id in (select value from json_each(?))
        """,  # noqa: S608 - put together from constants
        (as_list(map(text, ids)),),
    )
    found = {row[0]: kept_of(row, row[18]) for row in rows}
    return [found.get(id_) for id_ in ids]


def deliveries(
    connection: sqlite3.Connection, where: Letterbox, cursor: str | None, limit: int
) -> tuple[list[Kept], str | None]:
    """What was delivered, newest first; a search that has looked far goes on with the cursor."""
    limit = min(max(limit, 1), LONGEST)
    states = list(STATES) if where.state is None else [STATE_NUMBERS[where.state]]
    walks = [_walk(connection, where, state, cursor, limit + 1) for state in states]
    floor = max(floor for _, floor in walks)
    merged = heapq.merge(*(found for found, _ in walks), key=lambda kept: kept.id, reverse=True)
    found = [kept for kept in merged if kept.id >= floor]
    if len(found) > limit:
        return found[:limit], found[limit - 1].id
    return found, floor or None


def _walk(
    connection: sqlite3.Connection, where: Letterbox, state: int, cursor: str | None, limit: int
) -> tuple[list[Kept], str]:
    """Those in one state from the newest on, and the id down to which they were looked at."""
    terms, values = ["full.state = ?"], [state]
    for term, value in _terms(connection, where, cursor):
        terms.append(term)
        values.append(value)
    those = " and ".join(terms)
    if where.text is None:
        rows = connection.execute(
            f"""
            {_FULL}
            from relevo_deliveries as full
            {_ITS_LINE}
            where {those}
            order by full.id desc
            limit ?
            """,
            (*values, limit),
        )
        return [kept_of(row) for row in rows], ""
    last = connection.execute(
        f"""
        select full.id
        from relevo_deliveries as full
        where {those}
        order by full.id desc
        limit 1 offset ?
        """,  # noqa: S608 - put together from constants
        (*values, WALK - 1),
    ).fetchone()
    asked = text(where.text)
    rows = connection.execute(
        f"""
        {_FULL}
        from relevo_deliveries as full
        {_ITS_LINE}
        where {those}
          and full.id >= ?
          and (instr(full.body, ?) or instr(full.key, ?) or instr(full.reason, ?))
        order by full.id desc
        limit ?
        """,
        (
            *values,
            (floor := last[0] if last else ""),
            where.text.encode("utf-8", "surrogatepass"),
            asked,
            asked,
            limit,
        ),
    )
    return [kept_of(row) for row in rows], floor


def _terms(
    connection: sqlite3.Connection, where: Letterbox, cursor: str | None
) -> Iterator[tuple[str, Any]]:
    """A letterbox as conditions; what an index knows to be few is looked up first."""
    if where.endpoint is not None:
        yield "full.source = ?", text(where.endpoint)
    if cursor is not None:
        yield "full.id < ?", text(cursor)
    if where.key is not None:
        hash_ = _hash(where.key)
        rows = connection.execute(
            """
            select id
            from relevo_deliveries
            where seq in (select value from json_each(?1))
              and hash = ?2
            union all
            select id from relevo_delivered where hash = ?2
            union all
            select id from relevo_deliveries where state = 1 and key = ?3
            """,
            (as_list(lines.waiting(connection, [hash_])), hash_, text(where.key)),
        )
        yield "full.id in (select value from json_each(?))", as_list(id_ for (id_,) in rows)
    if where.thread is not None:
        rows = connection.execute(
            """
            select id from relevo_deliveries where thread = ?1 and thread <> ''
            union all
            select id
            from relevo_deliveries
            where state in (0, 1, 2, 3, 4)
              and id = ?1
              and thread is null
            """,
            (text(where.thread),),
        )
        yield "full.id in (select value from json_each(?))", as_list(id_ for (id_,) in rows)


def kept_of(row: Sequence[Any], body: Any = b"") -> Kept:
    """The delivery in a row of `_FULL` or `_LINE`."""
    id_, source, generation, received_at, status, answer, repeats, repeated_at, differs = row[:9]
    line = Kept(
        id=id_,
        endpoint=plain(source),
        key=None,
        generation=generation,
        method="",
        answer=b"" if answer is None else as_bytes(answer),
        status=status,
        received_at=received_at,
        repeats=repeats,
        repeated_at=repeated_at,
        differs=bool(differs),
    )
    key, state, reason, method, path, query, headers, jobs, thread = row[9:18]
    if state is None:
        return line  # it was pruned
    packed = as_bytes(jobs).hex()
    return _replace(
        line,
        key=None if key is None else plain(key),
        state=STATES[state],
        reason=plain(reason),
        method=plain(method),
        path=plain(path),
        query=plain(query),
        headers=as_bytes(headers),
        body=as_bytes(body),
        jobs=tuple([packed[start : start + 32] for start in range(0, len(packed), 32)]),
        thread=id_ if thread is None else plain(thread) or None,
    )


# upkeep


def prune(tx: Tx, dead_keep: int, limit: int) -> int:
    """Remove what is old in full; the line with the answer stays."""
    gone = 0
    for state, number in STATE_NUMBERS.items():
        match state:
            case DeliveryState.REFUSED:
                keep = REFUSED_KEEP
            case DeliveryState.FAILED:
                keep = max(DELIVERY_KEEP, dead_keep)
            case _:
                keep = DELIVERY_KEEP
        gone += tx.run(
            """
            delete from relevo_deliveries
            where seq in (
                select seq
                from relevo_deliveries
                where state = ?
                  and received_at <= ?
                limit ?
            )
            """,
            (number, tx.now - keep, max(limit - gone, 0)),
        )
    return gone


def erase(tx: Tx, ids: Sequence[str]) -> int:
    """Remove these in full, whatever their age; the line with the answer stays."""
    return tx.run(
        """
        delete from relevo_deliveries
        where state in (0, 1, 2, 3, 4)
          and id in (select value from json_each(?))
        """,
        (as_list(map(text, ids)),),
    )
