"""The line that a delivery's key leaves for good, and the keys that wait for theirs.

A line lies where the hash of its key falls: fifty of them touch fifty pages, and each page goes
whole into the log. So a batch first leaves its keys in one row, in the order they came; their lines
are entered some thousand at a time, in the order of the hashes, so that a page takes many.

Everything here happens in a transaction that may write. Entering a line twice does no harm, and a
key may be remembered as fresh long after it has its line: whoever meets it looks at the lines too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from relevo.stores.sqlite.transaction import Known, Tx, as_list

WIDTH = 16  # bytes of a hash
NO_KEY = bytes(WIDTH)
MOST = 2_048  # keys that may wait for their lines
ROWS = 64  # and rows that they may lie in: who knows none of them reads them all


def learn(tx: Tx) -> None:
    """Remember the keys that other processes have left."""
    if tx.last_fresh <= (seen := tx.known.fresh_seen):
        return
    rows = tx.all("select no, first, hashes from relevo_fresh where no > ?", (seen,))
    for no, first, hashes in rows:
        _remember(tx, no, first, [hashes[at : at + WIDTH] for at in range(0, len(hashes), WIDTH)])


def leave(tx: Tx, first: int, hashes: Sequence[bytes | None]) -> None:
    """Note the keys of deliveries that lie one after the other."""
    known = [hash_ or NO_KEY for hash_ in hashes]
    no = tx.add("insert into relevo_fresh (first, hashes) values (?, ?)", (first, b"".join(known)))
    _remember(tx, no, first, known)


def have_room(known: Known, count: int) -> bool:
    """Whether a row of so many keys more may wait for their lines."""
    return known.fresh_rows < ROWS and len(known.fresh) + count <= MOST


def left(known: Known, first: int, hashes: Sequence[bytes], *, entered: bool) -> None:
    """Remember the keys of a row that was left at one stroke, all others entered first or not."""
    if entered:
        known.fresh, known.fresh_rows = {}, 0
    known.fresh_seen += 1
    known.fresh_rows += 1
    known.fresh.update(zip(hashes, range(first, first + len(hashes)), strict=True))


def _remember(tx: Tx, no: int, first: int, hashes: Sequence[bytes]) -> None:
    known = tx.known
    known.fresh_seen = no
    known.fresh_rows += 1
    fresh = known.fresh
    for seq, hash_ in enumerate(hashes, first):
        if fresh.setdefault(hash_, seq) != seq and hash_ != NO_KEY:
            enter(tx, [hash_])  # another source's, or of another generation
            fresh[hash_] = seq
    if len(fresh) > MOST or known.fresh_rows > ROWS:
        tx.late = enter_all


def enter(tx: Tx, hashes: Iterable[bytes]) -> None:
    """Enter the lines of those deliveries with these keys that wait for theirs."""
    fresh = tx.known.fresh
    if seqs := [fresh[hash_] for hash_ in hashes if hash_ in fresh]:
        tx.run(_ENTER_SOME, (as_list(seqs),))


def enter_now(tx: Tx, rows: Sequence[tuple[object, ...]]) -> None:
    """Enter lines that are at hand."""
    tx.connection.executemany(
        """
        insert into relevo_delivered (hash, source, generation, id, received_at, status, answer)
        values (?, ?, ?, ?, ?, ?, ?)
        on conflict (hash, source, generation) do nothing
        """,
        rows,
    )


def enter_all(tx: Tx) -> None:
    """Enter the lines that are missing."""
    tx.run(ENTER_ALL)
    tx.run("delete from relevo_fresh")
    tx.known.fresh = {}
    tx.known.fresh_rows = 0


_ENTER_SOME = """
    insert into relevo_delivered (hash, source, generation, id, received_at, status, answer)
    select hash, source, generation, id, received_at, status, answer
    from relevo_deliveries
    where seq in (select value from json_each(?))
      and hash is not null
      and answer is not null
    on conflict (hash, source, generation) do nothing
"""
ENTER_ALL = """
    insert into relevo_delivered (hash, source, generation, id, received_at, status, answer)
    select hash, source, generation, id, received_at, status, answer
    from relevo_fresh
    cross join relevo_deliveries on seq between first and first + length(hashes) / 16 - 1
    where hash is not null
      and answer is not null
    order by hash
    on conflict (hash, source, generation) do nothing
"""


def waiting(connection: sqlite3.Connection, hashes: Iterable[bytes]) -> list[int]:
    """The deliveries with one of these keys that had no line at this moment."""
    rows = connection.execute("select first, hashes from relevo_fresh").fetchall()
    found: list[int] = []
    for hash_ in hashes:
        for first, some in rows:
            at = some.find(hash_)
            while at >= 0:
                if at % WIDTH == 0:
                    found.append(first + at // WIDTH)
                at = some.find(hash_, at + 1)
    return found
