"""What is sealed in the tables, found and replaced in place: for `relevo seal renew`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from relevo.store import SealedValue
from relevo.stores.sqlite.transaction import CANCELLED, DONE, RUNNING, Tx

# A run makes the ids of its follow-ups under the key of its payload: see Store.sealed_values().
_UNBEGUN = f"""
    and (
        state in ({DONE}, {CANCELLED})
        or state <> {RUNNING} and attempt = 0 and suspicion = 0 and (runs = 0 or turn > 0)
    )
"""


class Column(NamedTuple):
    """A column that may hold what is sealed."""

    table: str
    name: str
    key: tuple[str, ...] = ("seq",)
    only: str = ""


COLUMNS = (
    Column("relevo_jobs", "payload", only=_UNBEGUN),
    Column("relevo_jobs", "result"),
    Column("relevo_deliveries", "query"),
    Column("relevo_deliveries", "headers"),
    Column("relevo_deliveries", "body"),
    Column("relevo_deliveries", "answer"),
    Column("relevo_delivered", "answer", ("hash", "source", "generation")),
    Column("relevo_effects", "result"),
    Column("relevo_notes", "value", ("kind", "name")),
    Column("relevo_letters", "job"),
)


def sealed_values(
    connection: sqlite3.Connection, number: int, after: Sequence[Any] | None, limit: int
) -> list[SealedValue]:
    """Sealed values of one column, in the order of its rows."""
    column = COLUMNS[number]
    keys = ", ".join(column.key)
    marks = ", ".join("?" * len(column.key))
    begin = "" if after is None else f"and ({keys}) > ({marks})"
    rows = connection.execute(
        f"""
        select {column.name}, {keys}
        from {column.table}
        where instr(cast({column.name} as blob), cast('relevo-sealed' as blob)) > 0
            {begin} {column.only}
        order by {keys}
        limit ?
        """,  # noqa: S608 - names of ours, every value is bound
        (*(after or ()), limit),
    )
    return [SealedValue(place=(number, *key), data=_bytes(value)) for value, *key in rows]


def swap_values(tx: Tx, values: Sequence[tuple[SealedValue, bytes]]) -> int:
    """Replace values that are still as they were read."""
    swapped = 0
    for value, data in values:
        number: int = value.place[0]
        column, key = COLUMNS[number], value.place[1:]
        same = " and ".join(f"{name} = ?" for name in column.key)
        is_text = column.name == "query"
        swapped += tx.run(
            f"""
            update {column.table} set {column.name} = ?
            where {same} and {column.name} = ? {column.only}
            """,  # noqa: S608 - names of ours, every value is bound
            (_as(data, is_text), *key, _as(value.data, is_text)),
        )
    return swapped


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _as(data: bytes, is_text: bool) -> bytes | str:
    return data.decode() if is_text else data
