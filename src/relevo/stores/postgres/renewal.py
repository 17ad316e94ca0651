"""What is sealed in the tables, found and replaced in place: for `relevo seal renew`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, Protocol

from relevo.store import SealedValue

BLOCKS = 256
"""Blocks of a table that are read at once."""

# A run makes the ids of its follow-ups under the key of its payload: see Store.sealed_values().
_UNBEGUN = """
    and state <> 1 and attempt = 0 and coalesce(suspicion, 0) = 0
    and (coalesce(cardinality(history), 0) = 0 or coalesce(turn, 0) > 0)
"""


class Column(NamedTuple):
    """A column that may hold what is sealed."""

    table: str
    name: str
    only: str = ""
    type: str = "bytea"


COLUMNS = (
    Column("jobs", "payload", _UNBEGUN),
    Column("jobs", "result"),
    Column("ended", "payload", "and state in (5, 7)"),
    Column("ended", "result"),
    Column("deliveries", "query", type="text"),
    Column("deliveries", "headers"),
    Column("deliveries", "body"),
    Column("deliveries", "answer"),
    Column("delivered", "answer"),
    Column("effects", "result"),
    Column("notes", "value"),
    Column("letters", "job"),
)


class Asks(Protocol):
    """A store that asks its server."""

    async def ask(self, sql: str, *values: Any) -> list[Any]: ...


async def sealed_values(store: Asks) -> AsyncGenerator[list[SealedValue]]:
    """Sealed values, some blocks of a table at a time; those that change meanwhile come again."""
    for number, column in enumerate(COLUMNS):
        [size] = await store.ask(
            f"select pg_relation_size('relevo.{column.table}')"
            " / current_setting('block_size')::int as blocks"
        )
        mark = "'relevo-sealed'::bytea" if column.type == "bytea" else "'relevo-sealed'"
        for first in range(0, size["blocks"], BLOCKS):
            rows = await store.ask(
                f"""
                select ctid::text as place, {column.name} as value
                from relevo.{column.table}
                where ctid >= $1::text::tid and ctid < $2::text::tid
                    and position({mark} in {column.name}) > 0 {column.only}
                """,  # noqa: S608 - names of ours, every value is bound
                f"({first},0)",
                f"({first + BLOCKS},0)",
            )
            yield [
                SealedValue(place=(number, row["place"]), data=_bytes(row["value"])) for row in rows
            ]


async def swap_values(store: Asks, values: Sequence[tuple[SealedValue, bytes]]) -> int:
    """Replace values that are still as they were read, where they were read."""
    swapped = 0
    by_column: dict[int, list[tuple[SealedValue, bytes]]] = {}
    for value, data in values:
        by_column.setdefault(value.place[0], []).append((value, data))
    for number, mine in by_column.items():
        column = COLUMNS[number]
        is_text = column.type == "text"
        rows = await store.ask(
            f"""
            update relevo.{column.table} as t set {column.name} = v.new
            from unnest($1::text[], $2::{column.type}[], $3::{column.type}[]) as v (place, old, new)
            where t.ctid = v.place::tid and t.{column.name} = v.old {column.only}
            returning 1 as one
            """,  # noqa: S608 - names of ours, every value is bound
            [value.place[1] for value, _ in mine],
            [_as(value.data, is_text) for value, _ in mine],
            [_as(data, is_text) for _, data in mine],
        )
        swapped += len(rows)
    return swapped


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _as(data: bytes, is_text: bool) -> bytes | str:
    return data.decode() if is_text else data
