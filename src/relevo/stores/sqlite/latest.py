"""unique="latest": of the jobs of one key that have never started, the newest runs.

Each command is a row of its own. Claims judge the due rows they meet: an older one is replaced, and
the newest waits while another job of its key has started and not ended. What ends that one lets it
go on (flows.ended, by `waited`).
"""

from __future__ import annotations

from collections.abc import Sequence

from relevo.stores.sqlite import flows
from relevo.stores.sqlite.transaction import NEVER, Tx, as_list, new_token

LATEST, REPLACED = 2, 3  # relevo_jobs.forever: REPLACED if a newer job of its key has started
RECHECK = 60_000  # milliseconds after which a job that waits behind another is looked at anyway


def sift(tx: Tx, seqs: Sequence[int]) -> list[int | None]:
    """What to give out in the place of each of these due jobs.

    An older job's place is taken by the newest of its key, where that may start now; None where
    nothing starts. What is not given out is not due any more.
    """
    rows = tx.all(_MET, (as_list(seqs), NEVER, tx.now))
    if not rows:
        return list(seqs)
    newest = sorted({newest for _, newest, *_ in rows})
    _replace(tx, newest)
    stands: dict[int, int | None] = {}
    blocked: dict[int, int] = {}
    for seq, first, going, is_due, is_alike in rows:
        if going is not None:
            blocked[first] = going
            stands[seq] = None
        else:
            stands[seq] = first if is_due and is_alike else None
    _put_off(tx, blocked)
    # What is there twice, for an older one and for itself, starts once.
    given: set[int] = set()
    answers: list[int | None] = []
    for seq in seqs:
        stand = stands.get(seq, seq)
        answers.append(None if stand in given else stand)
        if stand is not None:
            given.add(stand)
    _start(tx, [first for first in newest if first in given])
    return answers


# Those that have never started, with the newest of their key, and one that has started and has not
# ended. One that waits for its children may die with them: until they have ended it is no newest.
_MET = """
    select met.seq, newest.seq, (
               select min(going.seq)
               from relevo_jobs as going
               where going.key = met.key
                 and going.queue = met.queue
                 and going.state in (10, 20, 40, 50, 60)
                 and going.claimed_at <> ?2
           ),
           newest.state = 10 and newest.run_at <= ?3,
           newest.lane is met.lane
    from json_each(?1) as asked
    cross join relevo_jobs as met on met.seq = asked.value
    cross join relevo_jobs as newest on newest.seq = (
        select max(other.seq)
        from relevo_jobs as other
        where other.key = met.key
          and other.queue = met.queue
          and other.state = 10
          and other.forever = 2
          and other.claimed_at = ?2
    )
    where met.forever = 2
      and met.claimed_at = ?2
"""


def _replace(tx: Tx, newest: Sequence[int]) -> None:
    """End the older jobs that have never started."""
    rows = tx.all(
        """
        select old.seq, old.id, old.waited, newest.id
        from json_each(?) as asked
        cross join relevo_jobs as newest on newest.seq = asked.value
        cross join relevo_jobs as old on old.key = newest.key and old.queue = newest.queue
        where old.forever = 2
          and old.state in (10, 40)
          and old.claimed_at = ?
          and old.seq < newest.seq
        """,
        (as_list(newest), NEVER),
    )
    if not rows:
        return
    tx.connection.executemany(
        """
        update relevo_jobs
        set state = 80, token = ?, ended_at = ?, note = 'replaced by ' || ?
        where seq = ?
        """,
        [(-new_token(), tx.now, by, seq) for seq, _, _, by in rows],
    )
    flows.ended(tx, [], [id_ for _, id_, waited, _ in rows if waited])


def _put_off(tx: Tx, blocked: dict[int, int]) -> None:
    """Have the newest of a key wait for the end of the one that has started."""
    if not blocked:
        return
    tx.run(
        """
        update relevo_jobs
        set due_at = ifnull(due_at, run_at), run_at = ?
        where seq in (select value from json_each(?))
          and state = 10
          and run_at <= ?
        """,
        (tx.now + RECHECK, as_list(blocked), tx.now),
    )
    tx.run(
        "update relevo_jobs set waited = 1 where seq in (select value from json_each(?))",
        (as_list(blocked.values()),),
    )


def _start(tx: Tx, seqs: Sequence[int]) -> None:
    """Note that these start: what ended before them is not retried any more."""
    these = (as_list(seqs),)
    tx.run(
        """
        update relevo_jobs
        set forever = 3
        where seq in (
            select old.seq
            from json_each(?) as asked
            cross join relevo_jobs as newest on newest.seq = asked.value
            cross join relevo_jobs as old indexed by relevo_jobs_latest
                on old.key = newest.key and old.queue = newest.queue
            where old.forever = 2
              and old.state in (30, 70, 80)
              and old.seq < newest.seq
        )
        """,
        these,
    )
    tx.run(
        """
        update relevo_jobs
        set due_at = null
        where seq in (select value from json_each(?))
          and due_at is not null
        """,
        these,
    )
