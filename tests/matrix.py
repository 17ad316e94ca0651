"""The table of faults: which test proves which row on which store, and what it measured.

`pytest --matrix FILE` runs only the tests that name a fault (F09 in a name or a docstring), prints
a line for each fault and store, and writes the same to FILE. Lines that this run had no test for
stay as they were, so one row can be renewed alone. With `--collect-only` it tells what no test
proves.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest

KEY = "matrix"
ABOUT = "about"
UNMADE = "not tested"
ALL = "sqlite postgres redis cluster"
SERVERS = "postgres redis"
ANY = "any"
"""A fault that has nothing to do with the kind of store."""

ROWS: dict[str, tuple[str, str]] = {
    "F01": ("workers killed with -9, twenty in a minute", ALL),
    "F02": ("death before and after every call to the store", ALL),
    "F03": ("ingress killed under load, the provider retries", ALL),
    "F04": ("rescuers die; many rescue at once", ALL),
    "F05": ("SIGTERM with fifty running jobs", ALL),
    "F06": ("a handler blocks the event loop", ALL),
    "F07": ("a thread ignores its time limit", ALL),
    "F08": ("a handler raises anything", ALL),
    "F09": ("connections reset every second", SERVERS),
    "F10": ("the store in a black hole for 30 s", SERVERS),
    "F11": ("200 ms each way to the store", SERVERS),
    "F12": ("the server gone without a word", SERVERS),
    "F13": ("20 % of the packets lost", SERVERS),
    "F14": ("server killed; its backends terminated", "postgres"),
    "F15": ("a standby promoted, synchronous and not", "postgres"),
    "F16": ("no connections left; tables locked", "postgres"),
    "F17": ("deadlocks and serialisation failures", "postgres"),
    "F18": ("the file locked by another process", "sqlite"),
    "F19": ("the log grows under a reader", "sqlite"),
    "F20": ("disk full; log disk full", "sqlite postgres redis"),
    "F21": ("the file moved, replaced, damaged; the AOF's tail cut", "sqlite redis"),
    "F22": ("server killed and restarted five times", "redis"),
    "F23": ("fail-over by Sentinel", "redis"),
    "F24": ("a master killed, slots moved", "cluster"),
    "F25": ("memory full; keys evicted", "redis"),
    "F26": ("read-only, loading, busy, scripts flushed", "redis"),
    "F27": ("relay killed between carrying and marking", "redis cluster"),
    "F28": ("workers' clocks wrong by hours", ALL),
    "F29": ("summer time, leap second, 2038, year 9999", ANY),
    "F30": ("no file handles left", ALL),
    "F31": ("little memory, heavy payloads", ALL),
    "F32": ("a million ready, scheduled and done", "sqlite postgres redis"),
    "F33": ("a burst of 10,000 requests a second", ANY),
    "F34": ("one hot tenant among others", ALL),
    "F35": ("a provider down with 10,000 jobs, then back", ALL),
    "F36": ("the process that probes a provider killed", ALL),
    "F37": ("flows of a thousand children under kills", ALL),
    "F38": ("a person races a run; retry-all pressed twice", ALL),
    "F39": ("five keepers, clock jumps, death at the tick", ALL),
    "F40": ("rollback after enqueue; death among five listeners", ALL),
    "F41": ("a foreign producer while the bot is killed", "redis"),
    "F42": ("stream workers killed between call, mark and XACK", "redis"),
    "F43": ("paid twice; killed between charge and commit", ANY),
    "F44": ("QStash delivers again; the confirmation fails", ANY),
    "F45": ("old and new versions side by side", ALL),
    "F46": ("migrations killed at every statement, four at once", "sqlite postgres"),
    "F47": ("backup under load, restored", "sqlite postgres"),
    "F48": ("pruning a million while working", "sqlite postgres redis"),
    "F49": ("ten idle minutes of four workers", "redis"),
    "F50": ("model against store; half an hour of chaos", ALL),
}

_ROW = re.compile(r"(?<![a-z0-9])f(\d\d)(?![0-9])", re.IGNORECASE)
_LINE = re.compile(r"\| (F\d\d) \| [^|]* \| (\w+) \|")
_ORDER = [*ALL.split(), ANY]
_HEAD = ("", "fault", "store", "lost", "doubled", "recovery (s)", "result")

_LEGEND = (
    "The worst of the tests of a row is shown. *Lost* and *doubled* are counted in a ledger",
    "outside relevo; *recovery* is from the end of the fault, or from the death of a process,",
    "until work goes on. A dash: the row is proved without this number.",
)


class Recorder:
    """What a test measured, kept with its report so that it reaches whoever started the worker."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def record(
        self,
        row: str | None = None,
        *,
        store: str | None = None,
        lost: int | None = None,
        doubled: int | None = None,
        recovery: float | None = None,
        note: str = "",
    ) -> None:
        """Numbers for a row, or for those the test names; the worst of several is shown."""
        told = {"lost": lost, "doubled": doubled, "recovery": recovery}
        for one in [row] if row else rows_of(self._item):
            where = store or place_of(one, self._item)
            self._item.user_properties.append((KEY, (one, where, told, note)))


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Recorder:
    """Where a fault test writes down what it counted."""
    return Recorder(request.node)


def rows_of(item: pytest.Item) -> list[str]:
    """The faults that a test names, or else the one that its module is about."""
    text = f"{item.originalname if isinstance(item, pytest.Function) else item.name} "
    text += getattr(getattr(item, "obj", None), "__doc__", None) or ""
    found = [f"F{number}" for number in _ROW.findall(text)]
    about = getattr(getattr(item, "module", None), "__doc__", None) or ""
    if not found and (only := re.match(r"F\d\d(?=:)", about)):
        found = [only[0]]
    return [row for row in dict.fromkeys(found) if row in ROWS]


def place_of(row: str, item: pytest.Item) -> str:
    """The store that a test proves a row on; one that names none has the only one of the row."""
    stores = ROWS[row][1].split()
    store = store_of(item)
    return stores[0] if store == ANY and len(stores) == 1 else store


def store_of(item: pytest.Item) -> str:
    """The store that a test is about: its parameter or group, or what its name or file says."""
    said = [str(item.callspec.id)] if hasattr(item, "callspec") else []
    if group := item.get_closest_marker("xdist_group"):  # those of one server run together
        said += [str(one) for one in group.args]
    for text in (*said, item.name, item.path.stem):
        for name in ("cluster", "postgres", "redis", "sqlite"):
            if name in text:
                return name
    return ANY


@dataclass
class Cell:
    """What is known of one fault on one store."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    unmade: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)

    def told(self, numbers: dict[str, float | None], note: str) -> None:
        self.notes += [note] if note else []
        for name, value in numbers.items():
            if value is not None:
                self.worst[name] = max(value, self.worst.get(name, value))

    def words(self) -> tuple[str, str, str, str]:
        """Lost, doubled, recovery and result."""
        counts = [f"{self.worst[name]:g}" if name in self.worst else "–" for name in COUNTS]
        seconds = f"{self.worst['recovery']:.1f}" if "recovery" in self.worst else "–"
        if self.failed:
            result = f"**failed**: {', '.join(f'`{name}`' for name in self.failed)}"
        elif self.unmade:
            result = f"not tested: {'; '.join(dict.fromkeys(self.unmade))}"
        elif not self.passed:
            result = "**no test**"
        else:
            result = f"{self.passed} passed"
        return counts[0], counts[1], seconds, "; ".join([result, *dict.fromkeys(self.notes)])


COUNTS = ("lost", "doubled")


class Matrix:
    """Gathers reports and tells them, row by row."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)
        self._collected: list[tuple[str, str]] = []
        self._cells: defaultdict[tuple[str, str], Cell] = defaultdict(Cell)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left = [item for item in items if not rows_of(item)]
        items[:] = [item for item in items if rows_of(item)]
        config.hook.pytest_deselected(items=left)
        for item in items:
            about = [(row, place_of(row, item)) for row in rows_of(item)]
            self._collected += about
            item.user_properties.append((ABOUT, about))  # a worker of xdist sends it along

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = next(about for name, about in report.user_properties if name == ABOUT)
        unmade = [str(why) for name, why in report.user_properties if name == UNMADE]
        for row, store in about:
            cell = self._cells[row, store]
            if report.failed:
                cell.failed.append(report.nodeid.rpartition("::")[2].partition("@")[0])
            elif report.when == "teardown" and unmade:
                cell.unmade += unmade
            elif report.when == "call":
                cell.passed += report.passed
        if report.when == "teardown":
            for name, told in report.user_properties:
                if name == KEY:
                    row, store, numbers, note = told
                    self._cells[row, store].told(numbers, note)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.option.collectonly:
            for row, stores in unproved(self._collected).items():
                terminalreporter.write_line(f"{row} has no test on: {', '.join(stores)}")
            return
        lines = told(self._cells)
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
        kept = self._file.read_text() if self._file.exists() else ""
        words = " ".join(terminalreporter.config.invocation_params.args)
        self._file.write_text(page(merged(kept.splitlines(), lines), f"pytest {words}"))


def unproved(tests: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The stores that a fault names and no test proves it on."""
    seen = set(tests)
    missing = {
        row: [store for store in stores.split() if not any((row, s) in seen for s in (store, ANY))]
        for row, (_, stores) in ROWS.items()
    }
    missing |= {row: [] for row, (_, stores) in ROWS.items() if stores == ANY and _any(row, seen)}
    return {row: stores for row, stores in missing.items() if stores}


def _any(row: str, seen: set[tuple[str, str]]) -> bool:
    return any(one == row for one, _ in seen)


def told(cells: dict[tuple[str, str], Cell]) -> list[str]:
    """A line of the table for each fault and store, in the order of the faults."""
    return [
        "| " + " | ".join((row, ROWS[row][0], store, *cells[row, store].words())) + " |"
        for row, store in sorted(cells, key=lambda cell: (cell[0], _ORDER.index(cell[1])))
    ]


def merged(kept: list[str], new: list[str]) -> list[str]:
    """The new lines, and of the kept ones those whose fault and store were not looked at."""
    renewed = {found.groups() for line in new if (found := _LINE.match(line))}
    old = [line for line in kept if (found := _LINE.match(line)) and found.groups() not in renewed]

    def place(line: str) -> tuple[str, int]:
        found = _LINE.match(line)
        return (found[1], _ORDER.index(found[2])) if found else ("", 0)

    return sorted([*old, *new], key=place)


def page(lines: list[str], command: str) -> str:
    """The whole of the file; the command is that of the last run that renewed lines of it."""
    return "\n".join(_page(lines, command)) + "\n"


def _page(lines: list[str], command: str) -> Iterator[str]:
    yield "# The faults, row by row"
    yield ""
    yield f"relevo {version('relevo')}, {os.cpu_count()} cores, last renewed by:"
    yield ""
    yield f"    {command}"
    yield ""
    yield from _LEGEND
    yield ""
    yield "| " + " | ".join(_HEAD) + " |"
    yield "|" + " --- |" * len(_HEAD)
    yield from lines
    there = {found[1] for line in lines if (found := _LINE.match(line))}
    if missing := [row for row in ROWS if row not in there]:
        yield ""
        yield f"Not in this table yet: {', '.join(missing)}."


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", metavar="FILE", help="run the fault tests and write their table")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--matrix"):
        config.pluginmanager.register(Matrix(file), "faults")
