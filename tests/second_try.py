"""The second try of what failed beside other tests: `pytest --last-failed --second-try FILE`.

What passes only now is printed, and fails the run unless FILE has it with a reason, one a line:
`tests/x.py::test_name  why`. A parameter in brackets is left out. `--unlisted N` lets a run pass in
which N tests that FILE does not have needed a second try.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("flaky.txt")


def known(path: Path) -> dict[str, str]:
    """The tests of a list, and why each may need a second try."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return {test: reason.strip() for test, _, reason in found}


class SecondTry:
    """Counts what passed now."""

    def __init__(self, path: Path, unlisted: int) -> None:
        self.known = known(path)
        self.unlisted = unlisted
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)

    @property
    def unknown(self) -> list[str]:
        return [test for test in self.passed if not self.known.get(test.partition("[")[0])]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self.unknown) > self.unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.passed:
            return
        terminalreporter.section("passed only at the second try")
        for test in self.passed:
            reason = self.known.get(test.partition("[")[0])
            terminalreporter.line(f"{test}: {reason or 'UNKNOWN'}")
        if self.unknown:
            terminalreporter.line(
                f"Find the cause of what is UNKNOWN, or add it to {LIST.name} with a reason."
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--second-try", type=Path, metavar="FILE", help="see tests/second_try.py")
    parser.addoption("--unlisted", type=int, default=0, metavar="N", help="see tests/second_try.py")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--second-try")
    if path is not None:
        config.pluginmanager.register(SecondTry(path, config.getoption("--unlisted")))
