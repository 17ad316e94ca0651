"""The tables of what is proved, from results to a page."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version

from tests.rows import ALL, ANY, FAULTS, INPUTS, SECURITY

COUNTS = ("lost", "doubled")
TITLES = {row: title for row, (title, _) in FAULTS.items()} | INPUTS | SECURITY
_LINE = re.compile(r"\| ([FBC]\d\d) \| [^|]* \| ([^|]+) \|")
_ORDER = [*ALL.split(), ANY]

_PARTS = (
    ("Faults", "F", ("", "fault", "store", "lost", "doubled", "recovery (s)", "result")),
    ("Bad input", "B", ("", "input", "tests", "result")),
    ("Strangers", "C", ("", "kept by", "tests", "result")),
)
_LEGEND = (
    "The worst of the tests of a row is shown. *Lost* and *doubled* are counted in a ledger",
    "outside relevo; *recovery* is from the end of the fault, or from the death of a process,",
    "until work goes on. A dash: the row is proved without this number.",
)


@dataclass
class Result:
    """How a test ended, what it is about, and what it told."""

    test: str
    about: list[tuple[str, str]]
    outcome: str = ""
    unmade: list[str] = field(default_factory=list)
    told: list[tuple[str, str, dict[str, float | None], str]] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Cell:
    """What is known of one fault on one store, or of another row."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    unmade: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    def add(self, result: Result) -> None:
        name = result.test.rpartition("::")[2]
        self.failed += [name] if result.outcome == "failed" else []
        self.unmade += result.unmade
        self.passed += result.outcome == "passed" and not result.unmade

    def told(self, numbers: dict[str, float | None], note: str) -> None:
        self.notes += [note] if note else []
        for name, value in numbers.items():
            if value is not None:
                self.worst[name] = max(value, self.worst.get(name, value))

    def result(self) -> str:
        if self.failed:
            said = [f"**failed**: {', '.join(f'`{name}`' for name in self.failed)}"]
        else:
            said = [f"{self.passed} passed"] if self.passed else []
            said += [f"not tested: {'; '.join(dict.fromkeys(self.unmade))}"] if self.unmade else []
        return "; ".join([*(said or ["**no test**"]), *dict.fromkeys(self.notes)])

    def words(self, row: str) -> tuple[str, ...]:
        if row not in FAULTS:
            return ", ".join(f"`{file}`" for file in sorted(self.files)), self.result()
        counts = [f"{self.worst[name]:g}" if name in self.worst else "–" for name in COUNTS]
        seconds = f"{self.worst['recovery']:.1f}" if "recovery" in self.worst else "–"
        return counts[0], counts[1], seconds, self.result()


def place(row: str, where: str = ANY) -> tuple[int, str, int]:
    return "FBC".index(row[0]), row, _ORDER.index(where) if where in _ORDER else 0


def unproved(tests: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The stores that a fault names and no test proves it on; other rows that no test proves."""
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for row, where in tests:
        seen[row].add(where)
    missing = {
        row: [store for store in stores.split() if not {store, ANY} & seen[row]]
        for row, (_, stores) in FAULTS.items()
    }
    missing |= {row: [ANY] for row in TITLES if not seen[row]}
    missing |= {row: [] for row, (_, stores) in FAULTS.items() if stores == ANY and seen[row]}
    return {row: stores for row, stores in missing.items() if stores}


def cells_of(results: Iterable[Result]) -> dict[tuple[str, str], Cell]:
    """Every fault by its store, every other row as one."""
    cells: defaultdict[tuple[str, str], Cell] = defaultdict(Cell)
    for result in results:
        for row, where in result.about:
            cell = cells[row, where if row in FAULTS else ANY]
            cell.add(result)
            cell.files.add(where)
        for row, where, numbers, note in result.told:
            cells[row, where if row in FAULTS else ANY].told(numbers, note)
    return cells


def told(cells: dict[tuple[str, str], Cell]) -> list[str]:
    """A line of the tables for each row and store, in the order of the rows."""
    lines: list[str] = []
    for row, store in sorted(cells, key=lambda cell: place(*cell)):
        where = [store] if row in FAULTS else []
        words = (row, TITLES[row], *where, *cells[row, store].words(row))
        lines.append("| " + " | ".join(words) + " |")
    return lines


def merged(kept: list[str], new: list[str]) -> list[str]:
    """The new lines, and of the kept ones those whose row and store were not looked at."""

    def key(line: str) -> tuple[str, str] | None:
        if (found := _LINE.match(line)) is None:
            return None
        return found[1], found[2] if found[1] in FAULTS else ANY

    renewed = {key(line) for line in new}
    old = [line for line in kept if (found := key(line)) and found not in renewed]
    return sorted([*old, *new], key=lambda line: place(*(key(line) or ("F00", ANY))))


def page(lines: list[str], command: str) -> str:
    """The whole of the file; the command is that of the last run that renewed lines of it."""
    return "\n".join(_page(lines, command)) + "\n"


def _page(lines: list[str], command: str) -> Iterator[str]:
    yield "# What is proved, row by row"
    yield ""
    yield f"relevo {version('relevo')}, {os.cpu_count()} cores, last renewed by:"
    yield ""
    yield f"    {command}"
    yield ""
    yield from _LEGEND
    for title, letter, head in _PARTS:
        yield ""
        yield f"## {title}"
        yield ""
        yield "| " + " | ".join(head) + " |"
        yield "|" + " --- |" * len(head)
        yield from [line for line in lines if line.startswith(f"| {letter}")]
    there = {found[1] for line in lines if (found := _LINE.match(line))}
    if missing := [row for row in TITLES if row not in there]:
        yield ""
        yield f"Not in these tables yet: {', '.join(missing)}."
