"""What people and pages ask: jobs, counts, groups, ledgers. Read beside the writer."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from relevo.job import AGING, After, Attempt, Failure, Job, Joined, State, Unique
from relevo.store import (
    Audit,
    Effect,
    EffectState,
    Filter,
    Group,
    Holding,
    Note,
    Page,
    QueueMode,
    Tally,
    WorkerInfo,
)
from relevo.stores.sqlite.latest import LATEST, REPLACED
from relevo.stores.sqlite.memory import RECALL, effect_of, note_of, worker_of
from relevo.stores.sqlite.transaction import (
    CODES,
    DONE,
    NEVER,
    READY,
    RUNNING,
    STATES,
    as_bytes,
    as_list,
    plain,
    text,
)

FEW = 5_000  # up to so many candidates are sorted; more are found by walking from the newest
TOP = 1 << 62  # above every number of a job or line
LONGEST = 200  # jobs on one page, at most
WALK = 20_000  # rows looked at for one page when only their text can tell
MANY = 100_000  # jobs: fewer are counted anew each time
SLOW, STALE = 0.1, 50.0  # seconds: a count that takes longer is kept, but never for longer

_COLUMNS = """
    job.seq, job.id, job.queue, job.kind, job.state, job.payload, job.priority, job.attempt,
    job.attempts, job.inserted_at, job.run_at, job.ended_at, job.until_at, job.worker, job.key,
    job.forever, job.lane, job.park, job.thread, job.cause, job.meta, job.flow, job.node,
    job.result, job.failure, job.note, job.claimed_at, name.name,
    job.turn, job.remember, job.joined, job.suspicion, job.crashes, job.keep
"""
_JOBS = f"""
    select {_COLUMNS}
    from relevo_jobs as job
    left join relevo_names as name on name.no = job.worker
"""  # noqa: S608 - put together from constants

_JOBS_BY_ID = _JOBS + " where job.id in (select value from json_each(?))"  # noqa: S608 - constant

_failure = msgspec.json.Decoder(Failure).decode


def failure_of(value: Any) -> Failure | None:
    """A stored failure, also where a hand has spoiled it."""
    if value is None:
        return None
    try:
        held = _failure(value)
        return Failure(
            type=plain(held.type),
            message=plain(held.message),
            trace=plain(held.trace),
            fingerprint=plain(held.fingerprint),
        )
    except (msgspec.DecodeError, TypeError):
        return Failure(type="Unreadable", message="the stored failure was changed by hand")


_UNIQUES: dict[Any, Unique] = {1: "forever", LATEST: "latest", REPLACED: "latest"}


def _plain(value: str | None) -> str | None:
    return None if value is None else plain(value)


def _number(value: Any, instead: int = 0) -> int:
    return value if isinstance(value, int) else instead


def state_of(code: Any, run_at: Any, now: int) -> State:
    """The state a row is in; one that no code knows reads as dead, which the keeper makes true."""
    if code == READY and _number(run_at) > now:
        return State.SCHEDULED
    return STATES.get(code, State.DEAD)


def job_of(row: Sequence[Any], now: int) -> Job:
    """The job in a row of `_JOBS`."""
    state = state_of(row[4], row[10], now)
    ran = _number(row[26], NEVER) != NEVER
    ended = state in (State.DONE, State.DEAD, State.CANCELLED)
    return Job(
        id=plain(row[1]),
        queue=row[2],
        kind=plain(str(row[3])),
        state=state,
        payload=as_bytes(row[5]),
        priority=_number(row[6]),
        attempt=_number(row[7]),
        attempts=_number(row[8]),
        inserted_at=_number(row[9]),
        run_at=_number(row[10]),
        ended_at=_number(row[11]) if ended else None,
        lease_until=_number(row[12]) if state is State.RUNNING else None,
        worker=_plain(row[27]) if ran and (ended or state is State.RUNNING) else None,
        key=_plain(row[14]),
        unique=_UNIQUES.get(row[15], "unfinished"),
        lane=_plain(row[16]) or None,
        park=_plain(row[17]),
        thread=plain(row[18] or row[1]),
        cause=_plain(row[19]),
        meta=None if row[20] is None else as_bytes(row[20]),
        flow=_plain(row[21]),
        node=_plain(row[22]),
        result=None if row[23] is None else as_bytes(row[23]),
        failure=None if state is State.DONE else failure_of(row[24]),
        note=plain(row[25] or ""),
        turn=_number(row[28]),
        suspicion=0 if ended else _number(row[31]),
        crashes=0 if ended else _number(row[32]),
        remember=_number(row[29]),
        keep=_number(row[33]),
    )


# jobs


def find(connection: sqlite3.Connection, ids: Sequence[str], now: int) -> list[Job | None]:
    """Jobs with their history and what they wait for."""
    rows = connection.execute(_JOBS_BY_ID, (as_list(map(text, ids)),)).fetchall()
    seqs = as_list(row[0] for row in rows)
    history = _history(connection, seqs)
    after = _after(connection, seqs)
    before = _before(connection, as_list(row[1] for row in rows))
    joins = _joins(connection, as_list(row[0] for row in rows if row[30]))
    found: dict[str, Job] = {}
    for row in rows:
        job = job_of(row, now)
        lines = history[row[0]]
        if job.state is State.DONE:
            lines.append(
                Attempt(
                    number=job.attempt,
                    outcome="done",
                    began_at=row[26],
                    ended_at=row[11],
                    worker=plain(row[27] or ""),
                )
            )
        job.history = tuple(lines[-50:])
        job.after = tuple(after[row[0]])
        job.before = tuple(before[row[1]])
        job.joined = _number(row[30])
        job.joins = tuple(joins[row[0]])
        found[job.id] = job
    return [found.get(id_) for id_ in ids]


def _history(connection: sqlite3.Connection, seqs: str) -> defaultdict[int, list[Attempt]]:
    lines: defaultdict[int, list[Attempt]] = defaultdict(list)
    for job, number, outcome, began_at, ended_at, worker, failure in connection.execute(
        """
        select line.job, line.number, line.outcome, line.began_at, line.ended_at, name.name,
               line.failure
        from relevo_attempts as line
        left join relevo_names as name on name.no = line.worker
        where line.job in (select value from json_each(?))
        order by line.job, line.line
        """,
        (seqs,),
    ):
        lines[job].append(
            Attempt(
                number=number,
                outcome=outcome,
                began_at=began_at,
                ended_at=ended_at,
                worker=plain(worker or ""),
                failure=failure_of(failure),
            )
        )
    return lines


def _joins(connection: sqlite3.Connection, seqs: str) -> defaultdict[int, list[Joined]]:
    joins: defaultdict[int, list[Joined]] = defaultdict(list)
    for job, id_, cause, at in connection.execute(
        """
        select job, id, cause, at
        from relevo_joins
        where job in (select value from json_each(?))
        order by job, line
        """,
        (seqs,),
    ):
        joins[job].append(Joined(id=plain(id_), cause=_plain(cause), at=at))
    return joins


def _after(connection: sqlite3.Connection, seqs: str) -> defaultdict[int, list[After]]:
    edges: defaultdict[int, list[After]] = defaultdict(list)
    for parent, child, policy in connection.execute(
        """
        select parent, child, policy
        from relevo_edges
        where parent in (select value from json_each(?))
          and policy <> 'tally'
        order by parent, place
        """,
        (seqs,),
    ):
        edges[parent].append(After(plain(child), policy))
    return edges


def _before(connection: sqlite3.Connection, ids: str) -> defaultdict[str, list[str]]:
    edges: defaultdict[str, list[str]] = defaultdict(list)
    for child, parent in connection.execute(
        """
        select edge.child, parent.id
        from relevo_edges as edge
        cross join relevo_jobs as parent on parent.seq = edge.parent
        where edge.child in (select value from json_each(?))
          and edge.child <> parent.id
        order by parent.seq
        """,
        (ids,),
    ):
        edges[child].append(plain(parent))
    return edges


class _Question:
    """A filter as SQL: conditions put together from constants, values always bound."""

    def __init__(self, where: Filter, now: int) -> None:
        self.terms: list[str] = []
        self.values: list[Any] = []
        self.where = where
        self.codes = {CODES[state] for state in where.states}
        for column, value in (
            ("job.queue = ?", where.queue),
            ("job.kind = ?", where.kind),
            ("job.key = ?", where.key),
            ("job.lane = ?", where.lane),
            ("job.park = ?", where.park),
            ("job.flow = ?", where.flow),
            ("job.fingerprint = ?", where.fingerprint),
        ):
            if value is not None:
                self.add(column, text(value))
        if where.thread is not None:
            self.add(
                "(job.thread = ? or (job.thread is null and job.id = ?))", *[text(where.thread)] * 2
            )
        if where.text is not None:
            self.add(
                """
                (instr(cast(job.payload as text), ?) or instr(ifnull(job.key, ''), ?)
                    or instr(ifnull(job.failure, ''), ?) or instr(ifnull(job.note, ''), ?))
                """,
                *[text(where.text)] * 4,
            )
        if where.error is not None:
            self.add(
                """
                job.state <> 30 and json_valid(job.failure) and instr(
                    json_extract(job.failure, '$.type') || ': '
                        || json_extract(job.failure, '$.message'),
                    ?
                )
                """,
                text(where.error),
            )
        for sign, moment in ((">=", where.since), ("<", where.until)):
            if moment is not None:
                self.add(
                    f"iif(job.state in (30, 70, 80), job.ended_at, job.inserted_at) {sign} ?",
                    moment,
                )
        self._add_states(now)

    def add(self, term: str, *values: Any) -> None:
        self.terms.append(term)
        self.values += values

    def _add_states(self, now: int) -> None:
        states = self.where.states
        if not states:
            return
        parts = [f"job.state = {code}" for code in sorted(self.codes - {READY})]
        values: list[int] = []
        if {State.READY, State.SCHEDULED} <= states:
            parts.append(f"job.state = {READY}")
        elif State.READY in states:
            parts.append(f"(job.state = {READY} and job.run_at <= ?)")
            values.append(now)
        elif State.SCHEDULED in states:
            parts.append(f"(job.state = {READY} and job.run_at > ?)")
            values.append(now)
        self.add("(" + " or ".join(parts) + ")", *values)

    def narrow(self, connection: sqlite3.Connection) -> bool:
        """Name the candidates if an index knows them to be few; False when one has to walk."""
        looks = self._indexes(connection)
        seqs: set[int] = set()
        for sql, values in looks:
            rows = connection.execute(sql + " limit ?", (*values, FEW + 1)).fetchall()
            seqs.update(seq for (seq,) in rows)
            if len(seqs) > FEW:
                return False
        if looks:
            self.add("job.seq in (select value from json_each(?))", as_list(seqs))
        return bool(looks)

    def _indexes(self, connection: sqlite3.Connection) -> list[tuple[str, tuple[Any, ...]]]:
        """Where to look: the most telling index first."""
        where = self.where
        if where.key is not None:
            return [("select seq from relevo_jobs where key = ?", (text(where.key),))]
        if where.thread is not None:
            return [
                ("select seq from relevo_jobs where thread = ?", (text(where.thread),)),
                ("select seq from relevo_jobs where id = ?", (text(where.thread),)),
            ]
        if where.flow is not None:
            return [("select seq from relevo_jobs where flow = ?", (text(where.flow),))]
        if where.park is not None:
            return [
                ("select seq from relevo_jobs where state = 50 and park = ?", (text(where.park),))
            ]
        if where.fingerprint is not None:
            mark = text(where.fingerprint)
            return [("select seq from relevo_jobs where fingerprint = ?", (mark,))]
        return self._indexes_by_state(connection)

    def _indexes_by_state(
        self, connection: sqlite3.Connection
    ) -> list[tuple[str, tuple[Any, ...]]]:
        if not self.codes and self.where.queue is None:
            return []
        codes = self.codes or set(STATES)
        queues = (
            [name for (name,) in connection.execute("select name from relevo_queues")]
            if self.where.queue is None
            else [text(self.where.queue)]
        )
        looks: list[tuple[str, tuple[Any, ...]]] = [
            (
                """
                select seq
                from relevo_jobs
                where state not between 10 and 30
                  and state = ?
                  and queue = ?
                """,
                (code, queue),
            )
            for code in sorted(codes - {READY, RUNNING, DONE})
            for queue in queues
        ]
        if RUNNING in codes:
            looks.append(("select seq from relevo_jobs where state = 20", ()))
        for queue in queues:
            if READY in codes:
                looks += [
                    (_READY_SEQS, (queue,)),
                    (_LANED_SEQS, (queue,)),
                ]
            if DONE in codes:
                looks.append(
                    ("select seq from relevo_jobs where state = 30 and queue = ?", (queue,))
                )
        return looks


_READY_SEQS = "select seq from relevo_jobs where state = 10 and lane is null and queue = ?"
_LANED_SEQS = "select seq from relevo_jobs where state = 10 and lane is not null and queue = ?"


def page(
    connection: sqlite3.Connection, where: Filter, cursor: str | None, limit: int, now: int
) -> Page:
    """Jobs without history, newest first."""
    question = _Question(where, now)
    limit = _size(limit)
    is_few = question.narrow(connection)
    below = _seq_of(cursor)
    if below is not None:
        question.add("job.seq < ?", below)
    floor = None
    if where.text is not None and not is_few:
        floor = _floor(connection, below)
        if floor is not None:
            question.add("job.seq >= ?", floor)
    sql = _JOBS
    if question.terms:
        sql += " where " + " and ".join(question.terms)
    rows = connection.execute(
        sql + " order by job.seq desc limit ?", (*question.values, limit + 1)
    ).fetchall()
    found = [job_of(row, now) for row in rows[:limit]]
    if len(rows) > limit:
        return Page(found, str(rows[limit - 1][0]))
    return Page(found, None if floor is None else str(floor))


def _size(limit: int) -> int:
    """How many to a page: what was asked for, within reason."""
    return min(max(limit, 1), LONGEST)


def _seq_of(cursor: str | None) -> int | None:
    """The place in a cursor; one that was tampered with begins anew."""
    if cursor is None or not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 19:
        return None
    return int(cursor)


def _floor(
    connection: sqlite3.Connection, below: int | None, rows: str = "relevo_jobs"
) -> int | None:
    """How far down one page of a text search goes; None: to the end."""
    row = connection.execute(
        f"select seq from {rows} where seq < ? order by seq desc limit 1 offset ?",  # noqa: S608 - a table's name of ours
        (below or TOP, WALK),
    ).fetchone()
    return None if row is None else row[0]


def count(connection: sqlite3.Connection, where: Filter, most: int, now: int) -> int:
    """How many jobs a filter means, counted up to `most`."""
    question = _Question(where, now)
    question.narrow(connection)
    sql = "select 1 from relevo_jobs as job"
    if question.terms:
        sql += " where " + " and ".join(question.terms)
    (found,) = connection.execute(
        f"select count(*) from ({sql} limit ?)",  # noqa: S608 - put together from constants
        (*question.values, most),
    ).fetchone()
    return found


# counts


class Counts:
    """Counts by queue, kept for a while where counting takes long: a page asks every second."""

    def __init__(self, sql: str, *, patience: float) -> None:
        self._sql = sql
        self._patience = patience  # how many times as long as it took to count
        self._rows: list[Any] = []
        self._good_until = 0.0

    def read(self, connection: sqlite3.Connection, *values: Any) -> list[Any]:
        """The rows, counted now or a short while ago."""
        began = time.monotonic()
        if began >= self._good_until:
            self._rows = connection.execute(self._sql, values).fetchall()
            ended = time.monotonic()
            took = ended - began
            is_slow = took > SLOW and sum(row[1] for row in self._rows) > MANY
            self._good_until = ended + min(took * self._patience, STALE) if is_slow else 0.0
        return self._rows


def live_counts() -> Counts:
    """Due and scheduled jobs: a look at a million may be some seconds old, at fewer it is not."""
    return Counts(
        # Every index holds seq, which rises: the first that came in costs no look at the rows.
        """
        select queue, number, due, first_at,
               (select inserted_at from relevo_jobs where seq = oldest)
        from (
            select queue, count(*) as number, sum(run_at <= ?1) as due, min(run_at) as first_at,
                   min(iif(run_at <= ?1, seq, null)) as oldest
            from relevo_jobs
            where state = 10
              and lane is null
            group by queue
            union all
            select queue, count(*), sum(run_at <= ?1), min(run_at),
                   min(iif(run_at <= ?1, seq, null))
            from relevo_jobs
            where lane is not null
              and state = 10
            group by queue
        )
        """,
        patience=8.0,
    )


def done_counts() -> Counts:
    """Done jobs, which may be counted as of the last minute."""
    return Counts(
        "select queue, count(*) from relevo_jobs where state = 30 group by queue", patience=500.0
    )


def tally(connection: sqlite3.Connection, live: Counts, done: Counts, now: int) -> list[Tally]:
    """Every queue, its mode, its jobs by state, the age of its oldest, how late its first is."""
    counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
    oldest: dict[str, int] = {}
    late: dict[str, int] = {}
    for queue, all_, due, first, inserted in live.read(connection, now):
        mine = counts[queue]
        mine[State.READY] = mine.get(State.READY, 0) + due
        mine[State.SCHEDULED] = mine.get(State.SCHEDULED, 0) + all_ - due
        if due:
            late[queue] = max(late.get(queue, 0), now - first)
            oldest[queue] = max(oldest.get(queue, 0), now - inserted)
    for queue, number in connection.execute(
        "select queue, count(*) from relevo_jobs where state = 20 group by queue"
    ):
        counts[queue][State.RUNNING] = number
    for code, queue, number, inserted in connection.execute(
        """
        select state, queue, number, (select inserted_at from relevo_jobs where seq = oldest)
        from (
            select state, queue, count(*) as number, min(seq) as oldest
            from relevo_jobs
            where state not between 10 and 30
            group by state, queue
        )
        """
    ):
        state = STATES.get(code, State.DEAD)
        counts[queue][state] = counts[queue].get(state, 0) + number
        if state in AGING:
            oldest[queue] = max(oldest.get(queue, 0), now - inserted)
    for queue, number in done.read(connection):
        counts[queue][State.DONE] = number
    modes = dict(connection.execute("select name, mode from relevo_queues").fetchall())
    return [
        Tally(
            queue=queue,
            mode=QueueMode(modes.get(queue, "open")),
            counts={state: number for state, number in counts[queue].items() if number},
            oldest=oldest.get(queue),
            late=late.get(queue),
        )
        for queue in sorted(modes.keys() | counts.keys())
    ]


def groups(connection: sqlite3.Connection, queue: str | None, limit: int) -> list[Group]:
    """Dead letters by fingerprint, most first."""
    rows = connection.execute(
        """
        select grouped.fingerprint, grouped.queue, grouped.number, grouped.first_at,
               grouped.last_at, newest.id, newest.failure
        from (
            select fingerprint, queue, count(*) as number, min(ended_at) as first_at,
                   max(ended_at) as last_at
            from relevo_jobs
            where state = 70
              and fingerprint is not null
              and (?1 is null or queue = ?1)
            group by fingerprint, queue
            order by number desc, last_at desc
            limit ?2
        ) as grouped
        cross join relevo_jobs as newest on newest.seq = (
            select seq
            from relevo_jobs
            where state = 70
              and fingerprint = grouped.fingerprint
              and queue = grouped.queue
            order by ended_at desc, seq desc
            limit 1
        )
        order by grouped.number desc, grouped.last_at desc
        """,
        (None if queue is None else text(queue), _size(limit)),
    ).fetchall()
    found: list[Group] = []
    for fingerprint, name, number, first_at, last_at, sample, stored in rows:
        failure = failure_of(stored)
        found.append(
            Group(
                fingerprint=plain(fingerprint or ""),
                queue=name,
                type=failure.type if failure else "",
                message=failure.message if failure else "",
                count=number,
                first_at=first_at,
                last_at=last_at,
                sample=sample,
            )
        )
    return found


def has_due(connection: sqlite3.Connection, queues: Sequence[str], now: int) -> bool:
    """Whether an open queue among these has a job that is due."""
    (found,) = connection.execute(
        """
        select exists (
            select 1
            from json_each(?1) as asked
            where not exists (
                select 1 from relevo_queues where name = asked.value and mode = 'paused'
            )
            and (
                exists (
                    select 1
                    from relevo_jobs
                    where state = 10
                      and lane is null
                      and queue = asked.value
                      and priority in (0, 1, 2)
                      and run_at <= ?2
                )
                or exists (
                    select 1
                    from relevo_jobs
                    where state = 10
                      and lane is not null
                      and queue = asked.value
                      and run_at <= ?2
                )
            )
        )
        """,
        (as_list(queues), now),
    ).fetchone()
    return bool(found)


# memory


def recall(
    connection: sqlite3.Connection, kind: str, names: Sequence[str], now: int
) -> list[Note | None]:
    """What was remembered under these names."""
    asked = [(text(kind), text(name), now) for name in names]
    rows = [connection.execute(RECALL, about).fetchone() for about in asked]
    return [None if row is None else note_of(row, now) for row in rows]


def notes(
    connection: sqlite3.Connection, kind: str, after: str, limit: int, now: int
) -> list[Note]:
    """Notes of a kind in the order of their names."""
    rows = connection.execute(
        """
        select kind, name, value, version, expires_at, updated_at
        from relevo_notes
        where kind = ?
          and name > ?
          and (expires_at is null or expires_at > ?)
        order by name
        limit ?
        """,
        (text(kind), text(after), now, limit),
    ).fetchall()
    return [note_of(row, now) for row in rows]


def effects(
    connection: sqlite3.Connection,
    job: str | None,
    states: frozenset[EffectState],
    wanted: str | None,
    threads: frozenset[str],
    cursor: str | None,
    limit: int,
) -> tuple[list[Effect], str | None]:
    """The ledger, newest first."""
    terms = ["true"]
    values: list[Any] = []
    if job is not None:
        terms.append("job = ?")
        values.append(text(job))
    if states:
        # Confirmed ones are nearly all: those are found by walking, the others by their index.
        term = "state in (select value from json_each(?))"
        terms.append(f"+{term}" if EffectState.CONFIRMED in states else term)
        values.append(as_list(state.value for state in states))
    if wanted is not None:
        terms.append("(instr(key, ?) or instr(ifnull(cast(result as text), ''), ?))")
        values += [text(wanted)] * 2
    if threads:
        terms.append("thread in (select value from json_each(?))")
        values.append(as_list(map(text, threads)))
    if (below := _seq_of(cursor)) is not None:
        terms.append("seq < ?")
        values.append(below)
    floor = None if wanted is None else _floor(connection, below, "relevo_effects")
    if floor is not None:
        terms.append("seq >= ?")
        values.append(floor)
    limit = _size(limit)
    rows = connection.execute(
        """
        select job, queue, name, key, state, result, error, attempt, run, thread, created_at,
               updated_at, decided_by, seq
        from relevo_effects
        where TERMS
        order by seq desc
        limit ?
        """.replace("TERMS", " and ".join(terms)),
        (*values, limit + 1),
    ).fetchall()
    found = [effect_of(row) for row in rows[:limit]]
    if len(rows) > limit:
        return found, str(rows[limit - 1][13])
    return found, None if floor is None else str(floor)


def audits(
    connection: sqlite3.Connection, target: str | None, cursor: str | None, limit: int
) -> tuple[list[Audit], str | None]:
    """What people did, newest first."""
    limit = _size(limit)
    rows = connection.execute(
        """
        select seq, who, verb, target, note, at, before, after
        from relevo_audit
        where seq < ?
          and THOSE
        order by seq desc
        limit ?
        """.replace("THOSE", "true" if target is None else "target = ?"),
        (
            _seq_of(cursor) or TOP,
            *([] if target is None else [text(target)]),
            limit + 1,
        ),
    ).fetchall()
    found = [
        Audit(
            who=plain(row[1]),
            verb=plain(row[2]),
            target=plain(row[3]),
            note=plain(row[4]),
            at=row[5],
            before=plain(row[6]),
            after=plain(row[7]),
        )
        for row in rows[:limit]
    ]
    return found, str(rows[limit - 1][0]) if len(rows) > limit else None


def workers(connection: sqlite3.Connection, now: int) -> list[WorkerInfo]:
    """The workers of the last day, with the number of their running jobs."""
    holders = {
        worker: Holding(number, until)
        for worker, number, until in connection.execute(
            """
            select name.name, held.number, held.until
            from (
                select worker, count(*) as number, max(until_at) as until
                from relevo_jobs
                where state = 20
                group by worker
            ) as held
            join relevo_names as name on name.no = held.worker
            """
        )
    }
    rows = connection.execute(
        """
        select info, started_at, beat_at, silent_at, id
        from relevo_workers
        where silent_at > ?
        order by id
        """,
        (now - 86_400_000,),
    ).fetchall()
    return [worker_of(row, now, holders.get(row[4], Holding())) for row in rows]
