"""Ids that are answered without a row of their own: the row is gone, or another job stands for it.

Ids are packed: there may be one for each follow-up of the last months.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from relevo.stores.sqlite.transaction import Tx, as_list, chunks, fill, text

DONE = 30
_HEX = re.compile("[0-9a-f]{32}", re.ASCII)


def packed(id: str) -> bytes | str:
    """An id as its column holds it: sixteen bytes, or the text that is no id of relevo's."""
    return bytes.fromhex(id) if _HEX.fullmatch(id) else text(id)


def all_packed(ids: Sequence[str]) -> bytes | None:
    """Ids in one value, sixteen bytes each; None if one is no id of relevo's."""
    return bytes.fromhex("".join(ids)) if all(map(_HEX.fullmatch, ids)) else None


def known(tx: Tx, ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Of the ids that are remembered: the job that stands for each, and the state it is in."""
    asked = {packed(id): id for id in ids}
    found: dict[str, str] = {}
    for some in chunks(list(asked)):
        rows = tx.all(
            fill(
                """
                with asked (id) as (values [?])
                select asked.id, known.stands
                from asked
                cross join relevo_remembered as known on known.id = asked.id
                where known.until_at > ?
                """,
                len(some),
            ),
            [*some, tx.now],
        )
        found.update({asked[id]: asked[id] if stands is None else stands for id, stands in rows})
    if not found:
        return {}
    states = dict(
        tx.all(
            "select id, state from relevo_jobs where id in (select value from json_each(?))",
            (as_list(set(found.values())),),
        )
    )
    return {id: (stands, states.get(stands, DONE)) for id, stands in found.items()}


def remember(tx: Tx, rows: Sequence[tuple[str, str | None, int]]) -> None:
    """Have ids answered by the jobs that stand for them (None: by themselves), for so long."""
    for some in chunks(rows):
        values: list[object] = []
        for id, stands, length in some:
            values += (packed(id), stands, tx.now + length)
        tx.run(
            fill(
                """
                insert or replace into relevo_remembered (id, stands, until_at)
                values [?, ?, ?]
                """,
                len(some),
            ),
            values,
        )


def remember_rows(tx: Tx, seqs: str) -> None:
    """Remember the ids of jobs that are about to be removed, if that was asked for."""
    rows = tx.all(
        """
        select id, null, remember
        from relevo_jobs
        where seq in (select value from json_each(?))
          and remember > 0
        """,
        (seqs,),
    )
    remember(tx, rows)


def prune(tx: Tx, limit: int) -> int:
    """Forget ids whose time is over; answers how many."""
    return tx.run(
        """
        delete from relevo_remembered
        where id in (select id from relevo_remembered where until_at <= ? limit ?)
        """,
        (tx.now, limit),
    )
