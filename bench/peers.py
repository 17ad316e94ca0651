"""Other queues beside us: the same number of no-op jobs, one worker process, at least once.

Each peer has an environment of its own, made on demand in the user's cache from peers.txt: a
virtual one, or a folder of node modules.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Aim, Row, apart
from bench.throughput import by_callers
from bench.work import Kept, drain, fill

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "peers"
HERE = Path(__file__).parent
FAST = frozenset({"bullmq", "huey", "pgqueuer", "repid"})
"""Who drains thousands a second: long runs for them and for us, so that no start is measured."""

MOST, MOST_OF_SLOW = 40_000, 10_000
PATIENCE = 240.0
THREEFOLD = Aim("ratio", ">=", 3.0)


def known(store: str) -> dict[str, list[str]]:
    """The peers of a store and what each needs."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (HERE / "peers.txt").read_text().splitlines():
        if line.startswith("#"):
            section = line.removeprefix("#").strip()
        elif line and section == store:
            found[re.split(r"[\[=@]", line)[0]] = line.split()
    return found


def environment(name: str, packages: list[str]) -> Path:
    """A folder with these packages; made if it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relevo-bench"
    mark = hashlib.blake2s(" ".join(packages).encode(), digest_size=4).hexdigest()
    folder = cache / f"{name}-{mark}"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        if _is_node(packages):
            _quietly(["npm", "install", "--silent", "--prefix", str(folder), *packages])
        else:
            uv = [sys.executable, "-m", "uv"]
            _quietly([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
            python = str(folder / "bin" / "python")
            _quietly([*uv, "pip", "install", "--quiet", "--python", python, *packages])
        (folder / "ready").touch()
    return folder


def _is_node(packages: list[str]) -> bool:
    return "@" in packages[0]


def _quietly(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise RuntimeError(f"there is no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"ended with {done.returncode}")
    return done.stdout


def peer(place: Place, name: str, packages: list[str], jobs: int) -> dict[str, float]:
    """Its figures."""
    folder = environment(name, packages)
    program = str(HERE / "peer" / f"on_{name.replace('-', '_')}")
    if _is_node(packages):
        command = ["node", f"{program}.mjs", str(folder)]
    else:
        command = [str(folder / "bin" / "python"), f"{program}.py"]
    with place.bare() as url:
        said = _quietly([*command, url, str(jobs)])
    return json.loads(said.strip().splitlines()[-1])


def measure(place: Place, jobs: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table: ours beside each peer, best first, and who could not run and why.

    A peer is held against what we had by turns with it: minutes of one machine differ by a third.
    """
    jobs = min(jobs, MOST)

    def ours() -> dict[str, float]:
        with place.fresh() as url:
            enqueue = apart(by_callers, url, jobs).rate
        with place.fresh() as url:
            apart(fill, url, Kept, jobs)
            # As with the others: from the first job on, to the last that is settled.
            return {"enqueue": enqueue, "drain": drain(url, jobs).rate(warm=1 / jobs)}

    peers = known(place.name)
    figures: dict[str, list[dict[str, float]]] = {}
    absent: dict[str, str] = {}
    own: dict[str, list[dict[str, float]]] = {}
    counts = {name: jobs if name in FAST else min(jobs, MOST_OF_SLOW) for name in peers}
    for name, packages in peers.items():
        for _ in range(rounds if name in FAST else 1):
            say(f"relevo and {name}")
            own.setdefault(name, []).append(ours())
            try:
                figures.setdefault(name, []).append(peer(place, name, packages, counts[name]))
            except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
                absent[name] = str(error)
                break
    for verb, what in (
        ("drain", f"drain of {jobs:,}, history on"),
        ("enqueue", "enqueue, 100 callers"),
    ):
        rows = [
            Row(
                section=SECTION,
                name=what,
                unit="jobs/s",
                ours=[one[verb] for one in own[name]],
                other=[one[verb] for one in theirs],
                against=re.sub(r"==|@", " ", peers[name][0]),
                note="" if counts[name] == jobs else f"{name} had {counts[name]:,} jobs",
            )
            for name, theirs in figures.items()
            if name not in absent
        ]
        rows.sort(key=lambda row: -(row.reference or 0))
        for row in rows[:1]:
            row.aim = THREEFOLD
        yield from rows
    for name, reason in absent.items():
        yield Row(section=SECTION, name=f"{name} could not run", unit="", ours=[0.0], note=reason)
