"""Tables and the small words in them: ages, moments, states."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from relevo.cli.terminal import AsIs, clean
from relevo.clock import moment_if
from relevo.job import State
from relevo.store import Tally

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
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
    "blocked": "yellow",
    "gone": "red",
    "cancelled": "dim",
}
STATES = (State.READY, State.RUNNING, State.SCHEDULED, State.WAITING, State.PARKED, State.HELD)
"""The live states in the order in which people ask for them."""
WHOLE = ("id", "job", "queue", "group", "state")
"""Columns to copy from: a narrow terminal folds the others."""
GAP = 2
FOLDED = 12
"""So narrow may a column of words be folded."""


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, is_screen: bool = False
) -> Rows:
    """A plain table: words to the left, numbers to the right.

    A screen has to hold all rows, and leaves columns out that are empty instead of breaking them.
    """
    return Rows(columns, list(rows), is_screen=is_screen)


class Rows:
    """Rows as a table where there is room for one, and else as a few lines each."""

    def __init__(
        self, columns: Sequence[str], rows: list[Sequence[Any]], *, is_screen: bool = False
    ) -> None:
        self._columns = columns
        self._is_screen = is_screen
        self._rows = [[cell(value) for value in row] for row in rows]
        self._given = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows or self._least() <= options.max_width:
            yield self._table()
        elif self._is_screen:
            yield self._filled()._table()
        else:
            for given, cells in zip(self._given, self._rows, strict=True):
                yield from self._lines(given, cells, options.max_width - GAP)

    def _is_number(self, place: int) -> bool:
        return bool(self._given) and all(isinstance(row[place], int) for row in self._given)

    def _is_whole(self, place: int) -> bool:
        return place == 0 or self._columns[place] in WHOLE or self._is_number(place)

    def _least(self) -> int:
        """The width below which a column could no longer be read."""
        least = -GAP
        for place, name in enumerate(self._columns):
            longest = max(row[place].cell_len for row in self._rows)
            room = longest if self._is_whole(place) else min(longest, FOLDED)
            least += GAP + max(len(name), room)
        return least

    def _filled(self) -> Rows:
        """The same without the columns in which nobody has anything."""
        places = [
            place
            for place, name in enumerate(self._columns)
            if name in WHOLE or any(row[place] for row in self._given)
        ]
        rows: list[Sequence[Any]] = [[row[place] for place in places] for row in self._given]
        return Rows([self._columns[place] for place in places], rows)

    def _table(self) -> Table:
        from rich.table import Table

        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for place, name in enumerate(self._columns):
            made.add_column(
                name,
                justify="right" if self._is_number(place) else "left",
                no_wrap=self._is_whole(place),
                min_width=len(name),
                overflow="fold",
            )
        for row in self._rows:
            made.add_row(*row)
        return made

    def _lines(self, given: Sequence[Any], cells: Sequence[Text], width: int) -> RenderResult:
        from rich.padding import Padding
        from rich.text import Text

        lines = [Text()]
        for name, value, shown in zip(self._columns[1:], given[1:], cells[1:], strict=True):
            if value in (None, ""):
                continue
            pair = Text.assemble((f"{name} ", "dim"), shown)
            if lines[-1] and lines[-1].cell_len + GAP + pair.cell_len > width:
                lines.append(Text())
            lines[-1].append(" " * GAP if lines[-1] else "").append_text(pair)
        yield cells[0]
        yield Padding(Text("\n").join(lines), (0, 0, 0, GAP))


class About(int):
    """A number that is estimated, and shown as such."""


def done_of(tally: Tally) -> int:
    """The done jobs of a queue, which may be an estimate."""
    count = tally.counts.get(State.DONE, 0)
    return About(count) if tally.is_estimate else count


def cell(value: Any) -> Text:
    """One value as text: escaped, and coloured if it is a state."""
    from rich.text import Text

    if value is None:
        return Text("·", style="dim")
    if type(value) is About:
        return Text(f"about {value:,}")
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
    if not ms:
        return None
    when = moment_if(ms)
    return str(ms) if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


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
