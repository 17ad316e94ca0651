"""What holds for every test: the last line says so when the browser tests did not run."""

from __future__ import annotations

from typing import Any

import pytest

pytest_plugins = ["tests.matrix", "tests.scheduler"]

missing: list[str] = []


def note_missing(config: pytest.Config, what: str) -> None:
    """Remember what could not be tested; a worker of xdist tells whoever started it."""
    if hasattr(config, "workeroutput"):
        config.workeroutput["missing"] = what
    else:
        missing.append(what)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    told = getattr(node, "workeroutput", {}).get("missing")
    if told:
        missing.append(told)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    for what in dict.fromkeys(missing):
        writer = config.get_terminal_writer()
        writer.line()
        writer.line(f"!!! {what} !!!", red=True, bold=True)
