"""Which code may work on which tables: the one rule for all stores.

Each step of a store's tables (or keys) has a number, and says from which number on code may work
on what it leaves. Code is as old as the last step that it knows. A step that only adds leaves older
code at work. One that takes something away comes a version later, and is not taken while a worker
is alive that could not go on after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources.abc import Traversable
from typing import NamedTuple

import msgspec

from relevo.errors import SchemaMismatch
from relevo.store import Schema, WorkerInfo, WorkerState

_READABLE = re.compile(r"-- Readable from (\d{4}) on\.$", re.M)


class Step(NamedTuple):
    """One change of a store's tables, in one transaction."""

    number: int
    name: str
    sql: str
    readable_from: int  # the last step that the oldest code knows that may work on what this leaves


@cache
def steps_in(folders: tuple[Traversable, ...]) -> tuple[Step, ...]:
    """The steps in files such as 0024_colours.sql, in order.

    One that leaves older code at work says `-- Readable from 0022 on.` in its first line.
    """
    files = [file for each in folders for file in each.iterdir() if file.name.endswith(".sql")]
    return tuple(_step(file) for file in sorted(files, key=lambda file: file.name))


def _step(file: Traversable) -> Step:
    sql, number = file.read_text("utf-8"), int(file.name[:4])
    said = _READABLE.match(sql)
    return Step(number, file.name.removesuffix(".sql"), sql, int(said[1]) if said else number)


def judge(schema: Schema, where: str) -> None:
    """SchemaMismatch unless this code may work on these tables."""
    if not schema.number:
        raise SchemaMismatch(f"{where} has no tables yet: run `relevo migrate`")
    if schema.number < schema.known:
        raise SchemaMismatch(
            f"{where} is of version {schema.number} and this relevo needs {schema.known}: run "
            "`relevo migrate`"
        )
    judge_age(schema, where)


def judge_age(schema: Schema, where: str) -> None:
    """SchemaMismatch if these tables are only for code that is newer than this."""
    if schema.readable_from > schema.known:
        raise SchemaMismatch(
            f"{where} is of version {schema.number}, for relevo that knows version "
            f"{schema.readable_from} or later, and this one knows {schema.known}: upgrade relevo"
        )


def spare(workers: Iterable[bytes | str], step: Step) -> None:
    """SchemaMismatch if one of these workers, as they are stored, could not go on after a step."""
    for packed in workers:
        worker = msgspec.json.decode(packed, type=WorkerInfo)
        if worker.schema < step.readable_from and worker.state is not WorkerState.GONE:
            raise SchemaMismatch(
                f"the worker {worker.id} ({worker.version or 'an older relevo'}) is alive and "
                f"could not work after the step {step.name}: restart it with this relevo, or stop "
                "it (one that was killed counts as alive for two minutes), then `relevo migrate`"
            )
