"""The samples of the documents do what the documents say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.reference import pages

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```console\n$ " in page.read_text()
]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")


def run(command: str, folder: Path) -> str:
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    done = subprocess.run(  # noqa: S602 - the page shows what a person types
        command,
        shell=True,
        cwd=folder,
        env=clean | {"PATH": tools, "COLUMNS": "200", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_s_samples_run_and_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    for kind, body in _FENCE.findall(page.read_text()):
        if kind == "python" and (name := _FILE.match(body)):
            (tmp_path / name[1]).write_text(body)
        elif kind == "console" and body.startswith("$ "):
            for step in re.split(r"^\$ ", body, flags=re.M)[1:]:
                command, _, shown = step.partition("\n")
                printed = run(command, tmp_path)
                for line in filter(None, shown.splitlines()):
                    assert line.strip() in printed, f"{command} printed:\n{printed}"


def test_the_quickstart_is_short() -> None:
    quickstart = next(body for kind, body in _FENCE.findall((ROOT / "README.md").read_text()))
    code = [line for line in quickstart.splitlines() if line.strip()]
    assert len(code) <= 20


@pytest.mark.parametrize("path", sorted(pages()), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_written_from_the_source_is_up_to_date(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `python -m tests.edges.reference`"
