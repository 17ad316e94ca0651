"""The tables of what is proved: which tests prove which row, where, and what they measured.

`pytest --matrix FILE` runs only the tests that name a row of tests/rows.py (F09 in a name or a
docstring), prints a line for each row and store, and writes the same to FILE. Lines that this run
had no test for stay as they were, so one row can be renewed alone. With `--collect-only` it tells
what no test proves.

`--kept FILE` writes each result down as it comes and runs again only what has not passed: who was
interrupted goes on, and what failed beside others is tried alone. The tables are then those of all
results that are kept. First comes what nothing is known of yet; after `--minutes` nothing new is
begun.
"""

from __future__ import annotations

import ast
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.rows import ANY, FAULTS
from tests.tables import TITLES, Result, cells_of, merged, page, place, told, unproved

KEY = "matrix"
ABOUT = "about"
UNMADE = "not tested"

_FAULT = re.compile(r"(?<![a-z0-9])f(\d\d)(?![0-9])", re.IGNORECASE)
_OTHER = re.compile(r"(?<![A-Za-z0-9_])[BC]\d\d(?![0-9])")  # _b64 is no row
_NAMED = re.compile(r"test_([bc]\d\d)_(?:(to_|and_)?([bc]\d\d)_)?")


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
        """Numbers for a row, or for those faults that the test names; the worst is shown."""
        told = {"lost": lost, "doubled": doubled, "recovery": recovery}
        for one in [row] if row else [one for one in rows_of(self._item) if one in FAULTS]:
            where = store or place_of(one, self._item)
            self._item.user_properties.append((KEY, (one, where, told, note)))


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> Recorder:
    """Where a fault test writes down what it counted."""
    return Recorder(request.node)


@pytest.fixture
def unmade(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Say what this machine does not let us make; it is told at the end of the run."""
    return lambda why: request.node.user_properties.append((UNMADE, why))


def rows_named(name: str, said: str, about: str) -> list[str]:
    """The rows in a test's name and docstring, or else the one that its module is about."""
    found = [f"F{number}" for number in _FAULT.findall(f"{name} {said}")]
    found += [*_named(name), *_OTHER.findall(said)]
    if not found and (only := re.match(r"[FBC]\d\d(?=:)", about)):
        found = [only[0]]
    return [row for row in dict.fromkeys(found) if row in TITLES]


def _named(name: str) -> Iterator[str]:
    """test_b41_…, test_b41_b43_…, test_b20_to_b24_…"""
    if (found := _NAMED.match(name.lower())) is None:
        return
    first, word, last = (said and said.upper() for said in found.groups())
    for row in TITLES:
        if row in (first, last) or (word == "TO_" and first < row < last):
            yield row


def rows_of(item: pytest.Item) -> list[str]:
    """The rows that a test proves."""
    name = item.originalname if isinstance(item, pytest.Function) else item.name
    said = getattr(getattr(item, "obj", None), "__doc__", None) or ""
    about = getattr(getattr(item, "module", None), "__doc__", None) or ""
    return rows_named(name, said, about)


def rows_in(folder: Path) -> set[str]:
    """The rows that the tests of a folder name, by their source alone."""
    found: set[str] = set()
    for file in folder.rglob("test_*.py"):
        tree = ast.parse(file.read_text())
        about = ast.get_docstring(tree) or ""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_test = node.name.startswith("test_")
                said = ast.get_docstring(node) or ""
                found |= {*rows_named(node.name, said, about)} if is_test else set()
    return found


def place_of(row: str, item: pytest.Item) -> str:
    """The store that a test proves a fault on, or the file that proves another row."""
    if row not in FAULTS:
        return item.path.relative_to(item.config.rootpath / "tests").as_posix()
    stores = FAULTS[row][1].split()
    store = store_of(item)
    return stores[0] if store == ANY and len(stores) == 1 else store


def store_of(item: pytest.Item) -> str:
    """The store that a test is about: its parameter or group, or what its name or file says."""
    ids = str(item.callspec.id).split("-") if hasattr(item, "callspec") else []
    said = ["-".join(WRAPPED.get(id, id) for id in ids)]
    if group := item.get_closest_marker("xdist_group"):  # those of one server run together
        said += [str(one) for one in group.args]
    for text in (*said, item.name, item.path.stem):
        for name in ("cluster", "postgres", "redis", "sqlite"):
            if name in text:
                return name
    return ANY


WRAPPED = {"sealed": "sqlite", "relayed": "redis"}
"""What holds the jobs of a wrapped store."""

Wanted: TypeAlias = tuple[list[tuple[str, str]], pytest.Item]


class Matrix:
    """Gathers results and tells them, row by row."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = Path(config.getoption("--matrix"))
        kept = config.getoption("--kept")
        self._kept = Path(kept) if kept else None
        self._is_worker = hasattr(config, "workerinput")
        self._collected: dict[str, list[tuple[str, str]]] = {}
        self._length = getattr(config, "workerinput", {}).get(KEY)
        self._results = self._read()
        self._open: dict[str, Result] = {}
        self._session: pytest.Session | None = None
        self._end = time.monotonic() + 60 * config.getoption("--minutes")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def _read(self) -> dict[str, Result]:
        """What earlier runs have kept; a worker that replaces another reads what that one read."""
        if self._kept is None or not self._kept.exists():
            self._length = 0
            return {}
        written = self._kept.read_bytes()[: self._length]
        self._length = len(written)
        found = [Result(**json.loads(line)) for line in written.splitlines()]
        for one in found:
            one.about = [(row, where) for row, where in one.about]  # JSON has no tuples
        return {one.test: one for one in found}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[KEY] = self._length

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        wanted: list[Wanted] = []
        left: list[pytest.Item] = []
        for item in items:
            if not (rows := rows_of(item)):
                left.append(item)
                continue
            test, about = _test_of(item), [(row, place_of(row, item)) for row in rows]
            self._collected[test] = about
            known = self._results.get(test)
            if known is not None and known.outcome != "failed":
                left.append(item)
                continue
            item.user_properties.append((ABOUT, (test, about)))  # a worker of xdist sends it along
            wanted.append((about, item))
        items[:] = [item for _, item in (self._ordered(wanted) if self._kept else wanted)]
        config.hook.pytest_deselected(items=left)

    def _ordered(self, wanted: list[Wanted]) -> list[Wanted]:
        """Row by row, the first test of every row and store before the second of any."""
        passed = [one for one in self._results.values() if one.outcome == "passed"]
        seen = Counter(cell for one in passed for cell in _cells(one.about))
        ranks: dict[str, int] = {}
        for about, item in wanted:
            ranks[item.nodeid] = min(seen[cell] for cell in _cells(about))
            seen.update(_cells(about))
        return sorted(wanted, key=lambda one: (ranks[one[1].nodeid], place(*one[0][0])))

    def pytest_runtest_logfinish(self) -> None:
        if self._session is not None and time.monotonic() > self._end:
            self._session.shouldstop = "the time is over; what is left comes with the next run"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._is_worker:
            return
        said = [value for name, value in report.user_properties if name == ABOUT]
        test, about = said[0] if said else _crashed(report.nodeid)
        result = self._open.setdefault(test, Result(test, [(row, where) for row, where in about]))
        result.seconds = round(result.seconds + report.duration, 2)
        if report.failed or result.outcome in ("", "passed"):
            result.outcome = report.outcome  # what went wrong or was skipped stays so
        if report.skipped and isinstance(report.longrepr, tuple):
            result.unmade.append(report.longrepr[2].removeprefix("Skipped: "))
        if report.when == "teardown" or not said:
            result.unmade += [str(why) for name, why in report.user_properties if name == UNMADE]
            result.told = [value for name, value in report.user_properties if name == KEY]
            self._keep(self._open.pop(test))

    def _keep(self, result: Result) -> None:
        self._results[result.test] = result
        if self._kept is not None:
            with self._kept.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.option.collectonly:
            about = [each for one in self._collected.values() for each in one]
            for row, stores in unproved(about).items():
                where = f" on: {', '.join(stores)}" if stores != [ANY] else ""
                terminalreporter.write_line(f"{row} has no test{where}")
            return
        lines = told(cells_of(self._results.values()))
        terminalreporter.section("rows")
        for line in lines:
            terminalreporter.write_line(line)
        kept = self._file.read_text() if self._file.exists() and self._kept is None else ""
        words = " ".join(terminalreporter.config.invocation_params.args)
        command = f"pytest {words}" if self._kept is None else _soak()
        self._file.write_text(page(merged(kept.splitlines(), lines), command))


def _test_of(item: pytest.Item) -> str:
    """What a test is called, however it is run: loadgroup appends the group's name."""
    group = item.get_closest_marker("xdist_group")
    name = (group.args[0] if group.args else group.kwargs.get("name", "")) if group else ""
    return item.nodeid.removesuffix(f"@{name}") if name else item.nodeid


def _crashed(nodeid: str) -> tuple[str, list[tuple[str, str]]]:
    """A test that took its worker with it; only its name is left to go by."""
    test = re.sub(r"@[a-z]+$", "", nodeid)
    rows = rows_named(test.rpartition("::")[2], "", "")
    return test, [(row, ANY) for row in rows if row in FAULTS]


def _cells(about: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is to be known: a fault on each store it names, any other row once."""
    return [(row, where if FAULTS.get(row, ("", ANY))[1] != ANY else ANY) for row, where in about]


def _soak() -> str:
    settings = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name[:5] == "SOAK_"]
    return " ".join(["make soak", *settings])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, why in report.user_properties:
            if name == UNMADE:
                terminalreporter.write_line(f"NOT TESTED {report.nodeid}: {why}", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", metavar="FILE", help="run what names a row; write the tables")
    parser.addoption("--kept", metavar="FILE", help="keep results here, and go on from them")
    parser.addoption("--minutes", type=float, default=float("inf"), help="begin nothing after them")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--matrix"):
        config.pluginmanager.register(Matrix(config), "rows")
