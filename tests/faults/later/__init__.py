"""Two versions of relevo that are still to come: the first adds to a store, the second takes away.

A process becomes one of them; on Redis it writes a field that is new to the layout, on PostgreSQL
it calls a function that is new. `python -m tests.faults.later 1 migrate` is the program of one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relevo.stores.postgres import schema as postgres
from relevo.stores.postgres.address import Address
from relevo.stores.redis import life, memory, wire
from relevo.stores.sqlite import schema as sqlite
from relevo.stores.versions import Step

HERE = Path(__file__).parent
ADDS, TAKES_AWAY = 9001, 9002
_POSTGRES, _SQLITE, _REDIS = postgres.FOLDERS, sqlite.FOLDERS, life.STEPS


def become(version: int) -> None:
    """Make this process one of the later version, until it ends."""
    for module, name, value in knowing(version):
        setattr(module, name, value)
    _call_what_is_new()


def knowing(version: int) -> list[tuple[Any, str, Any]]:
    """What a later version knows of the steps: module, name and value of each list of them."""
    numbers = range(1, version + 1)
    steps = [
        Step(ADDS, "9001 how many calls settled", "", 7),
        Step(TAKES_AWAY, "9002 only with that", "", ADDS),
    ]
    return [
        (postgres, "FOLDERS", (*_POSTGRES, *(HERE / "postgres" / str(n) for n in numbers))),
        (sqlite, "FOLDERS", (*_SQLITE, *(HERE / "sqlite" / str(n) for n in numbers))),
        *((module, "STEPS", [*_REDIS, *steps[:version]]) for module in (life, memory)),
    ]


def _call_what_is_new() -> None:
    plain = Address.sql

    def coloured(self: Address, text: str) -> str:
        return plain(self, text.replace("relevo.settle_jobs(", "relevo.settle_coloured_jobs("))

    Address.sql = coloured
    scripts = dict(wire._scripts())  # pyright: ignore[reportPrivateUsage]
    source = scripts["settle"].source
    first = b"local lost = {}\n"
    assert source.count(first) == 1
    counted = b"for n = 1, #KEYS do call('HINCRBY', KEYS[n], 'settled', 1) end\n"
    scripts["settle"] = wire.scripted(source.replace(first, counted + first))
    wire._scripts = lambda: scripts  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
