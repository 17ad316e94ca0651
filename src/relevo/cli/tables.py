"""Tables and the small words in them: ages, moments, states."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from relevo.cli.terminal import AsIs, clean
from relevo.clock import moment
from relevo.job import State

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COLOURS = {
    "done": "green",
    "confirmed": "green",
    "ok": "green",
    "running": "cyan",
    "ready": "blue",
    "scheduled": "blue",
    "closed": "green",
    "half_open": "yellow",
    "dead": "red",
    "error": "red",
    "refused": "red",
    "held": "magenta",
    "unknown": "magenta",
    "parked": "yellow",
    "paused": "yellow",
    "draining": "yellow",
    "warning": "yellow",
    "silent": "yellow",
    "cancelled": "dim",
}
STATES = (State.READY, State.RUNNING, State.SCHEDULED, State.WAITING, State.PARKED, State.HELD)
"""The live states in the order in which people ask for them."""
WHOLE = ("id", "job", "queue", "group", "state")
"""Columns to copy from: a narrow terminal folds the others."""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table: words to the left, numbers to the right."""
    from rich.table import Table

    every = list(rows)
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        is_number = bool(every) and all(isinstance(row[place], int) for row in every)
        made.add_column(name, justify="right" if is_number else "left", no_wrap=name in WHOLE)
    for row in every:
        made.add_row(*map(cell, row))
    return made


def cell(value: Any) -> Text:
    """One value as text: escaped, and coloured if it is a state."""
    from rich.text import Text

    if value is None:
        return Text("·", style="dim")
    text = (
        f"{value:,}" if type(value) is int else clean(value if type(value) is AsIs else str(value))
    )
    return Text(text, style=COLOURS.get(text, ""))


def fields(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, one pair a line; what is empty is left out."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value not in (None, "", (), []):
            made.add_row(name, cell(value))
    return made


def ago(ms: int | None) -> str | None:
    """How long since a moment of the store, or until it."""
    if not ms:
        return None
    seconds = time.time() - ms / 1000
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in its largest unit, with a second one while that tells something."""
    if seconds < 60:
        return f"{seconds:.0f}s"
    for size, unit, smaller, name in (
        (60, "m", 1, "s"),
        (3_600, "h", 60, "m"),
        (86_400, "d", 3_600, "h"),
    ):
        if seconds < size * (60 if size < 3_600 else 24) or unit == "d":
            rest = int(seconds % size // smaller)
            whole = int(seconds // size)
            return f"{whole}{unit}{rest}{name}" if rest and whole < 10 else f"{whole}{unit}"
    return ""


def at(ms: int | None) -> str | None:
    """A moment as this machine's clock on the wall would show it."""
    return moment(ms).astimezone().strftime("%Y-%m-%d %H:%M:%S %z") if ms else None


def data(value: bytes | None) -> str | None:
    """A payload or result, which is masked unless the person asked for it as it is."""
    return None if value is None else AsIs(value.decode(errors="replace"))


def counted(n: int, one: str, more: str = "") -> str:
    """So many of something: '1 job', '2 jobs', '2 deliveries'."""
    return f"{n:,} {one if n == 1 else more or one + 's'}"


def short(text: str | None, most: int = 60) -> str | None:
    """The first line, cut."""
    if text is None:
        return None
    line = " ".join(text.split())
    return type(text)(line if len(line) <= most else line[: most - 1] + "…")
