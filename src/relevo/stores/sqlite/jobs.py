"""In and out: insert, extend, settle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from relevo.job import JOINS, Before, Ending, Failure, Lease, NewJob, Receipt, State, Verdict
from relevo.store import QueueMode
from relevo.stores.sqlite import flows, groups, remembered
from relevo.stores.sqlite.latest import LATEST
from relevo.stores.sqlite.transaction import (
    CANCELLED,
    CODES,
    DEAD,
    DONE,
    NEVER,
    READY,
    WAITING,
    Tx,
    as_list,
    chunks,
    encode,
    fill,
    new_token,
    optional,
    text,
)

STORED = (Verdict.NEW, Verdict.REOPENED)
GROUPS = 8  # claims whose endings are worth a statement each
OUTCOMES = {
    State.DEAD: "dead",
    State.HELD: "held",
    State.PARKED: "parked",
    State.CANCELLED: "cancelled",
}


# in


def insert_jobs(tx: Tx, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Store jobs; those whose id or key is taken answer with the job that stands for them."""
    for name in {job.queue for job in jobs}:
        tx.queue(name)
    closed = _closed(tx, jobs)
    # Only a queue that takes nothing in tears at a bundle.
    memory = _remembered(tx, jobs)
    if memory or any(
        job.key is not None or job.after or job.before or (closed and job.bundle) for job in jobs
    ):
        return _insert_judged(tx, jobs, memory)
    fresh = [job for job in jobs if job.queue not in closed] if closed else jobs
    first = tx.take_seqs(len(fresh))
    stored = _store(tx, fresh, first)
    if not closed and stored == len(fresh):
        return [Receipt(job.id, Verdict.NEW) for job in jobs]
    known = _known_ids(tx, jobs)
    ours = {job.id: first + place for place, job in reversed(list(enumerate(fresh)))}
    answers: list[Receipt] = []
    for job in jobs:
        seq, state = known.get(job.id, (None, READY))
        if seq is None:
            answers.append(Receipt(job.id, Verdict.CLOSED))
        elif seq == ours.pop(job.id, None):
            answers.append(Receipt(job.id, Verdict.NEW))
        else:
            answers.append(Receipt(job.id, _standing(state)))
    return answers


def _closed(tx: Tx, jobs: Sequence[NewJob]) -> set[str]:
    names = {job.queue for job in jobs}
    return {name for name in names if tx.queue(name).mode is QueueMode.DRAINING}


def _standing(state: int) -> Verdict:
    return Verdict.DONE if state in (DONE, DEAD, CANCELLED) else Verdict.IN_PROGRESS


def _known_ids(tx: Tx, jobs: Sequence[NewJob]) -> dict[str, tuple[int, int]]:
    rows = tx.all(
        """
        select id, seq, state
        from relevo_jobs
        where id in (select value from json_each(?))
        """,
        (as_list(job.id for job in jobs),),
    )
    return {id_: (seq, state) for id_, seq, state in rows}


def _remembered(tx: Tx, jobs: Sequence[NewJob]) -> dict[str, Receipt]:
    """The answers to ids that have no row, or had one."""
    asked = [job.id for job in jobs if job.remember]
    known = remembered.known(tx, asked) if asked else {}
    return {id_: Receipt(stands, _standing(state)) for id_, (stands, state) in known.items()}


def _insert_judged(tx: Tx, jobs: Sequence[NewJob], memory: dict[str, Receipt]) -> list[Receipt]:
    """Insert where keys, bundles or flows are involved: decide about each job, then store."""
    judge = _Judge(tx, jobs, memory)
    answers = judge.judge_all(jobs)
    pairs = [pair for pair in zip(jobs, answers, strict=True) if pair[1].verdict in STORED]
    fresh = [job for job, answer in pairs if answer.id == job.id]
    for job, answer in pairs:
        if answer.id != job.id:
            _reopen(tx, answer.id, job)
    _store(tx, fresh, tx.take_seqs(len(fresh)))
    _keep_keys(tx, pairs)
    for owner, job in judge.joins:
        _write_join(tx, owner, job)
    remembered.remember(tx, [(job.id, owner, job.remember) for job, owner in judge.stands])
    parents = {answer.id: job.after for job, answer in pairs if job.after}
    if parents:
        stands = {job.id: answer.id for job, answer in zip(jobs, answers, strict=True)}
        flows.attach(tx, parents, stands)
        flows.open_groups(tx, {job.id: job.node or "" for job in fresh if job.is_group})
    if judge.members:
        groups.join(tx, judge.members)
    return answers


class _Judge:
    """What is to become of each job of a batch; the second of two sees the first."""

    def __init__(self, tx: Tx, jobs: Sequence[NewJob], memory: dict[str, Receipt]) -> None:
        self.joins: list[tuple[str, NewJob]] = []  # those whose payload is another
        self.stands: list[tuple[NewJob, str]] = []  # ids to remember, and what stands for each
        self._memory = memory
        self._states = {id_: state for id_, (_, state) in _known_ids(tx, jobs).items()}
        self._taken = _live_keys(tx, jobs)
        self._lasting = _lasting_keys(tx, jobs)
        self._closed = _closed(tx, jobs)
        self._refused = groups.refused(tx, jobs)
        self.members: list[tuple[Before, str]] = []  # parents, and who is to be tied to each

    def judge_all(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """One answer for each, bundle by bundle."""
        bundles: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            bundles.setdefault(place if job.bundle is None else job.bundle, []).append(place)
        answers: dict[int, Receipt] = {}
        for places in bundles.values():
            answers.update(zip(places, self._judge([jobs[place] for place in places]), strict=True))
        return [answers[place] for place in range(len(jobs))]

    def _judge(self, bundle: Sequence[NewJob]) -> list[Receipt]:
        """All that are new are stored, or, where a queue of theirs is closed, none.

        A key that is taken refuses nobody else: the job that has it stands for the newcomer.
        """
        is_closed = any(job.queue in self._closed and not self._is_known(job) for job in bundle)
        answers: list[Receipt] = []
        for job in bundle:
            if is_closed and not self._is_known(job):
                answers.append(Receipt(job.id, Verdict.CLOSED))
                continue
            answers.append(self._judge_one(job))
        return answers

    def _is_known(self, job: NewJob) -> bool:
        return job.id in self._states or job.id in self._memory

    def _judge_one(self, job: NewJob) -> Receipt:
        if job.id in self._states:
            return Receipt(job.id, _standing(self._states[job.id]))
        if job.id in self._memory:
            return self._memory[job.id]
        is_refused = job.id in self._refused
        if is_refused and job.bundle is None:
            return Receipt(job.id, Verdict.LATE)
        answer = self._judge_new(job)
        if not is_refused:
            # One that is known by its own id was tied when it was stored.
            self.members += [(before, answer.id) for before in job.before]
        if answer.verdict in STORED:
            self._states[answer.id] = READY
            if job.key is not None:
                self._taken[job.queue, text(job.key)] = (answer.id, job.digest)
        elif answer.differs:
            self.joins.append((answer.id, job))
        if job.remember and answer.id != job.id:
            again = Verdict.IN_PROGRESS if answer.verdict in STORED else answer.verdict
            self._memory[job.id] = Receipt(answer.id, again)
            self.stands.append((job, answer.id))
        return answer

    def _judge_new(self, job: NewJob) -> Receipt:
        if job.key is None or job.unique == "latest":
            return Receipt(job.id, Verdict.NEW)
        taken = self._taken.get((job.queue, text(job.key)))
        if taken is not None:
            owner, digest = taken
            return Receipt(owner, Verdict.IN_PROGRESS, _differs(digest, job.digest))
        if job.unique == "forever":
            entry = self._lasting.get((job.queue, _hash(job.key)))
            if entry is not None:
                owner, state, lost, digest = entry
                if state in (DEAD, CANCELLED):
                    return Receipt(owner, Verdict.REOPENED)
                if lost:
                    return Receipt(job.id, Verdict.REOPENED)
                return Receipt(owner, Verdict.DONE, _differs(digest, job.digest))
        return Receipt(job.id, Verdict.NEW)


def _differs(standing: bytes | None, new: bytes | None) -> bool:
    """Whether digests say that two payloads are not the same; the first byte names their key."""
    if standing is None or new is None:
        return False
    return standing != new and standing[:1] == new[:1]


def _write_join(tx: Tx, owner: str, job: NewJob) -> None:
    """Add a line to a job that was joined with another payload, once for each id."""
    (seq, line) = tx.one("select seq, joined from relevo_jobs where id = ?", (owner,))
    if tx.one("select 1 from relevo_joins where job = ? and id = ?", (seq, job.id)) is not None:
        return
    tx.run(
        """
        insert or replace into relevo_joins (job, slot, line, id, cause, at)
        values (?, ?, ?, ?, ?, ?)
        """,
        (seq, line % JOINS, line, job.id, optional(job.cause), tx.now),
    )
    tx.run("update relevo_jobs set joined = joined + 1 where seq = ?", (seq,))


def _hash(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _live_keys(tx: Tx, jobs: Sequence[NewJob]) -> dict[tuple[str, str], tuple[str, bytes | None]]:
    keys = list(
        {
            (job.queue, text(job.key))
            for job in jobs
            if job.key is not None and job.unique != "latest"
        }
    )
    taken: dict[tuple[str, str], tuple[str, bytes | None]] = {}
    for some in chunks(keys):
        rows = tx.all(
            fill(
                """
                with asked (queue, key) as (values [?, ?])
                select job.queue, job.key, job.id, job.digest
                from asked
                cross join relevo_jobs as job
                where job.key = asked.key
                  and job.queue = asked.queue
                  and job.state in (10, 20, 40, 50, 60)
                """,
                len(some),
            ),
            [value for pair in some for value in pair],
        )
        taken.update({(queue, key): (id_, digest) for queue, key, id_, digest in rows})
    return taken


def _lasting_keys(
    tx: Tx, jobs: Sequence[NewJob]
) -> dict[tuple[str, bytes], tuple[str, int | None, int, bytes | None]]:
    keys = list({(j.queue, _hash(j.key)) for j in jobs if j.key and j.unique == "forever"})
    lasting: dict[tuple[str, bytes], tuple[str, int | None, int, bytes | None]] = {}
    for some in chunks(keys):
        rows = tx.all(
            fill(
                """
                with asked (queue, hash) as (values [?, ?])
                select entry.queue, entry.hash, entry.id, job.state, entry.lost, job.digest
                from asked
                cross join relevo_keys as entry using (queue, hash)
                left join relevo_jobs as job on job.id = entry.id
                """,
                len(some),
            ),
            [value for pair in some for value in pair],
        )
        lasting.update({(queue, hash_): tuple(entry) for queue, hash_, *entry in rows})
    return lasting


def _keep_keys(tx: Tx, pairs: list[tuple[NewJob, Receipt]]) -> None:
    entries = [
        (job.queue, _hash(job.key), answer.id)
        for job, answer in pairs
        if job.key is not None and job.unique == "forever"
    ]
    for some in chunks(entries):
        tx.run(
            fill(
                """
                insert into relevo_keys (queue, hash, id)
                values [?, ?, ?]
                on conflict (queue, hash) do update
                set id = excluded.id, lost = 0
                """,
                len(some),
            ),
            [value for entry in some for value in entry],
        )


def _store(tx: Tx, jobs: Sequence[NewJob], first: int) -> int:
    """Write rows; an id already there is left alone. Answers how many were written."""
    _enter_lanes(tx, jobs)
    tx.woken.update({job.queue for job in jobs})
    return tx.insert(_INSERT, rows_of(tx, jobs, first))


def rows_of(tx: Tx, jobs: Sequence[NewJob], first: int) -> list[tuple[Any, ...]]:
    """Jobs as rows of their table, in the order of COLUMNS."""
    now = tx.now
    ordered = {name for name in {job.queue for job in jobs} if tx.queue(name).ordered}
    kinds = {kind: text(kind) for kind in {job.kind for job in jobs}}
    return [
        (
            now,
            seq,
            WAITING if job.after else READY,
            min(max(job.priority, 0), 2),
            job.attempts,
            _UNIQUES[job.unique] if job.key is not None else 0,
            now + job.delay if job.run_at is None else job.run_at,
            job.keep,
            job.id,
            job.queue,
            kinds[job.kind],
            job.key and text(job.key),
            _lane(tx, job) if job.lane or job.queue in ordered else None,
            None if job.thread is None or job.thread == job.id else text(job.thread),
            job.cause and text(job.cause),
            job.flow and text(job.flow),
            job.node and text(job.node),
            job.payload,
            job.meta,
            job.remember,
            None if job.key is None else job.digest,
        )
        for seq, job in enumerate(jobs, first)
    ]


COLUMNS = """
    inserted_at, seq, state, priority, attempts, forever, run_at, keep, id, queue, kind, key, lane,
    thread, cause, flow, node, payload, meta, remember, digest
"""
_UNIQUES = {"unfinished": 0, "forever": 1, "latest": LATEST}  # as relevo_jobs.forever has them
_INSERT = f"""
    insert into relevo_jobs ({COLUMNS})
    values []
    on conflict (id) do nothing
"""  # noqa: S608 - put together from constants


def _enter_lanes(tx: Tx, jobs: Sequence[NewJob]) -> None:
    for name in {job.queue for job in jobs if job.lane}:
        if not tx.queue(name).laned:
            tx.change_queue(name, laned=True)
    for name in {job.queue for job in jobs if job.unique == "latest" and job.key is not None}:
        if not tx.queue(name).latest:
            tx.change_queue(name, latest=True)


def _lane(tx: Tx, job: NewJob) -> str | None:
    return text(job.lane) if job.lane else "" if tx.queue(job.queue).ordered else None


def _reopen(tx: Tx, standing: str, job: NewJob) -> None:
    _enter_lanes(tx, [job])
    tx.woken.add(job.queue)
    tx.run(
        "delete from relevo_edges where parent = (select seq from relevo_jobs where id = ?)",
        (standing,),
    )
    tx.run(
        """
        update relevo_jobs
        set state = ?, priority = ?, attempt = 0, attempts = ?, suspicion = 0, crashes = 0,
            run_at = ?, keep = ?, kind = ?, lane = ?, thread = ?, cause = ?, flow = ?,
            node = ?, payload = ?, meta = ?, remember = max(remember, ?), digest = ?,
            result = null, failure = null, fingerprint = null, note = null
        where id = ?
        """,
        (
            WAITING if job.after else READY,
            min(max(job.priority, 0), 2),
            job.attempts,
            tx.now + job.delay if job.run_at is None else job.run_at,
            job.keep,
            text(job.kind),
            _lane(tx, job),
            optional(job.thread),
            optional(job.cause),
            optional(job.flow),
            optional(job.node),
            job.payload,
            job.meta,
            job.remember,
            job.digest,
            standing,
        ),
    )
    flows.revive(tx, [standing])


# out


def extend_leases(tx: Tx, pairs: Sequence[tuple[Lease, int]]) -> list[bool]:
    """Keep leases alive, each for its own length."""
    marks = [(lease.ref, lease.token, tx.now + length) for lease, length in pairs]
    kept = 0
    for some in chunks(marks):
        kept += tx.run(
            fill(
                """
                update relevo_jobs
                set until_at = max(relevo_jobs.until_at, held.column3)
                from (values [?, ?, ?]) as held
                where relevo_jobs.seq = held.column1
                  and relevo_jobs.token = held.column2
                  and relevo_jobs.state = 20
                """,
                len(some),
            ),
            [value for mark in some for value in mark],
        )
    if kept == len(marks):
        return [True] * len(marks)
    ours = _held(tx, [lease for lease, _ in pairs])
    return [(lease.ref, lease.token) in ours for lease, _ in pairs]


def _held(tx: Tx, leases: Sequence[Lease]) -> dict[tuple[int, int | str], bool]:
    """The leases that are still ours, and whether another job waits for theirs."""
    held: dict[tuple[int, int | str], bool] = {}
    for some in chunks(leases):
        rows = tx.all(
            fill(
                """
                with held (seq, token) as (values [?, ?])
                select job.seq, job.token, job.waited
                from held
                cross join relevo_jobs as job on job.seq = held.seq and job.token = held.token
                where job.state = 20
                """,
                len(some),
            ),
            [value for lease in some for value in (lease.ref, lease.token)],
        )
        held.update({(seq, token): bool(waited) for seq, token, waited in rows})
    return held


def isolate(tx: Tx, leases: Sequence[Lease], more: int) -> list[bool]:
    """Count so many crashes more than their leases say for jobs that run alone, or no longer."""
    held = _held(tx, leases)
    for lease in leases:
        if (lease.ref, lease.token) in held:
            tx.run(
                "update relevo_jobs set crashes = ? where seq = ?",
                (lease.crashes + more, lease.ref),
            )
    return [(lease.ref, lease.token) in held for lease in leases]


def settle_runs(tx: Tx, endings: Sequence[Ending]) -> list[bool]:
    """End runs whose lease is still ours. Plain successes go in one statement per claim."""
    groups: defaultdict[tuple[int | str, bool], dict[int, int]] = defaultdict(dict)  # seq: place
    others: list[int] = []
    for place, ending in enumerate(endings):
        lease = ending.lease
        if ending.state is State.DONE and ending.result is None and ending.failure is None:
            groups[lease.token, lease.keep > 0][lease.ref] = place
        else:
            others.append(place)
    count = sum(map(len, groups.values())) + len(others)
    is_twice = count < len(endings) or any(
        lease.ref in groups.get((lease.token, lease.keep > 0), ())
        for lease in (endings[place].lease for place in others)
    )
    if is_twice or len(groups) > GROUPS:
        # All in one pass: of two endings of one lease the first must win.
        others = list(range(len(endings)))
        groups.clear()
    answers = [True] * len(endings)
    for (token, is_kept), places in groups.items():
        end = _settle_plain if is_kept else _settle_gone
        others += end(tx, token, places)
    if others:
        for place in _settle_any(tx, endings, others):
            answers[place] = False
    if tx.known.limited:
        tx.woken.update({ending.lease.queue for ending in endings} & tx.known.limited)
    return answers


def _settle_plain(tx: Tx, token: int | str, places: dict[int, int]) -> list[int]:
    """End what simply went well; answers the places of what has to be looked at more closely."""
    seqs = as_list(places)
    # A mark of this very call tells the rows ended now from those ended before with this lease.
    stamp = -new_token()
    ended = tx.run(END_PLAIN, (seqs, token, stamp, tx.now))
    if ended == len(places):
        return []
    rows = tx.all(
        """
        select seq
        from relevo_jobs
        where seq in (select value from json_each(?))
          and token = ?
        """,
        (seqs, stamp),
    )
    done = {seq for (seq,) in rows}
    return [place for seq, place in places.items() if seq not in done]


END_PLAIN = """
    update relevo_jobs
    set state = 30, token = ?3, ended_at = ?4, until_at = ?4 + keep
    where seq in (select value from json_each(?1))
      and token = ?2
      and state = 20
      and waited = 0
"""


def _settle_gone(tx: Tx, token: int | str, places: dict[int, int]) -> list[int]:
    """The same for jobs of which nothing is kept."""
    ends = (as_list(places), token)
    (seqs,) = tx.one(_GOING, ends)
    tx.run(END_GONE, ends)
    gone = set(msgspec.json.decode(seqs))
    return [place for seq, place in places.items() if seq not in gone]


_MAY_GO = """
    where seq in (select value from json_each(?1))
      and token = ?2
      and state = 20
      and waited = 0
      and runs = 0
      and remember = 0
      and joined = 0
      and not exists (select 1 from relevo_edges where parent = relevo_jobs.seq)
"""
_GOING = f"select json_group_array(seq) from relevo_jobs {_MAY_GO}"  # noqa: S608 - constants
END_GONE = f"delete from relevo_jobs {_MAY_GO}"  # noqa: S608 - constants


def _settle_any(tx: Tx, endings: Sequence[Ending], places: Sequence[int]) -> list[int]:
    """End runs in any way; answers the places of those that came too late."""
    held = _held(tx, [endings[place].lease for place in places])
    ours: list[Ending] = []
    late: list[int] = []
    waited: set[str] = set()
    for place in places:
        lease = endings[place].lease
        is_waited = held.pop((lease.ref, lease.token), None)  # gone: the same lease settles once
        if is_waited is None:
            late.append(place)
            continue
        ours.append(endings[place])
        if is_waited:
            waited.add(lease.id)
    write_lines(
        tx,
        [
            (one.lease.ref, OUTCOMES.get(one.state) or _again(one), failure_text(one.failure))
            for one in ours
            if one.state is not State.DONE and not one.released
        ],
    )
    _write_endings(tx, ours)
    never_began(tx, [one.lease.ref for one in ours if one.released])
    done = [one.lease for one in ours if one.state is State.DONE]
    bad = [one.lease.id for one in ours if one.state in (State.DEAD, State.CANCELLED)]
    if waited:
        flows.ended(
            tx,
            [lease.id for lease in done if lease.id in waited],
            [id_ for id_ in bad if id_ in waited],
        )
    remove(tx, [lease.ref for lease in done if not lease.keep])
    tx.woken.update({one.lease.queue for one in ours if one.state is State.SCHEDULED})
    return late


def _again(ending: Ending) -> str:
    return "retry" if ending.spend else "snooze"


def _unspent(ending: Ending) -> int:
    """How many attempts no longer count; all, when the turn of a recurring job is over."""
    if ending.spend:
        return 0
    return 1 if ending.result is None else ending.lease.attempt


def _write_endings(tx: Tx, endings: list[Ending]) -> None:
    for some in chunks(endings):
        values: list[object] = []
        for ending in some:
            failure = ending.failure
            values += (
                ending.lease.ref,
                CODES[ending.state],
                ending.delay if ending.state is State.SCHEDULED and not ending.released else None,
                _unspent(ending),
                failure_text(failure),
                text(failure.fingerprint)
                if failure
                else ""
                if ending.state is State.DEAD
                else None,
                ending.result,
                optional(ending.park),
                ending.planned and ending.state is State.SCHEDULED,
                ending.suspicion,
                ending.crashes,
            )
        tx.run(fill(_END, len(some)), [*values, -new_token(), tx.now])


_END = """
    with ending (
        seq, state, delay, unspent, failure, fingerprint, result, park, planned, suspicion, crashes
    ) as (
        values [?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?]
    ), mark (token, now) as (
        values (?, ?)
    )
    update relevo_jobs
    set state = ending.state,
        token = mark.token,
        attempt = attempt - ending.unspent,
        run_at = ifnull(mark.now + ending.delay, run_at),
        ended_at = iif(ending.state in (30, 70, 80), mark.now, ended_at),
        until_at = iif(ending.state = 30, mark.now + keep, until_at),
        failure = ifnull(ending.failure, relevo_jobs.failure),
        fingerprint = ifnull(ending.fingerprint, relevo_jobs.fingerprint),
        result = ifnull(ending.result, relevo_jobs.result),
        park = ending.park,
        turn = turn + ending.planned,
        suspicion = ending.suspicion,
        crashes = ending.crashes
    from ending, mark
    where relevo_jobs.seq = ending.seq
"""


def never_began(tx: Tx, seqs: Sequence[int]) -> None:
    """Take back that these jobs, ready again, have started, where no run of theirs has begun.

    Only unique="latest" asks: a newer job may replace such a one.
    """
    if seqs and any(row.latest for row in tx.known.queues.values()):
        tx.run(
            """
            update relevo_jobs
            set claimed_at = ?
            where seq in (select value from json_each(?))
              and forever = 2
              and runs = 0
            """,
            (NEVER, as_list(seqs)),
        )


def failure_text(failure: Failure | None) -> str | None:
    """A failure as its column holds it."""
    if failure is None:
        return None
    held = Failure(
        type=text(failure.type),
        message=text(failure.message),
        trace=text(failure.trace),
        fingerprint=text(failure.fingerprint),
    )
    return encode(held).decode()


def write_lines(tx: Tx, lines: Sequence[tuple[int, str, str | None]]) -> None:
    """Add a line of history to each job that ran: its seq, the outcome, the failure."""
    for some in chunks(lines):
        tx.run(
            fill(
                """
                with line (seq, outcome, failure) as (values [?, ?, ?])
                insert or replace into relevo_attempts
                    (job, slot, line, number, outcome, began_at, ended_at, worker, failure)
                select job.seq, job.runs % 50, job.runs, job.attempt, line.outcome, job.claimed_at,
                       ?, job.worker, line.failure
                from line
                cross join relevo_jobs as job on job.seq = line.seq
                """,
                len(some),
            ),
            [*(value for line in some for value in line), tx.now],
        )
    if lines:
        tx.run(
            """
            update relevo_jobs
            set runs = runs + 1
            where seq in (select value from json_each(?))
            """,
            (as_list(seq for seq, *_ in lines),),
        )


def remove(tx: Tx, seqs: Sequence[int]) -> None:
    """Take jobs out of the store, with what hangs on them; ids to be remembered are."""
    if not seqs:
        return
    these = (as_list(seqs),)
    remembered.remember_rows(tx, *these)
    tx.run("delete from relevo_joins where job in (select value from json_each(?))", these)
    tx.run("delete from relevo_attempts where job in (select value from json_each(?))", these)
    tx.run("delete from relevo_edges where parent in (select value from json_each(?))", these)
    tx.run("delete from relevo_groups where seq in (select value from json_each(?))", these)
    tx.run("delete from relevo_jobs where seq in (select value from json_each(?))", these)
