"""The demo: what it counts, and that its story ends well."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from relevo.cli.demo import table
from relevo.demo import Proof, Row, play
from relevo.testing import until
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


def test_a_proof_is_clean_only_when_nothing_is_lost_or_doubled() -> None:
    good = Row(delivered=10, duplicates=2, effects=8, expected=8)
    assert Proof({"cars": good}).is_clean
    assert not Proof({"cars": good, "hotel": Row(expected=1, lost=1)}).is_clean
    assert not Proof({"cars": good, "hotel": Row(expected=1, doubled=1)}).is_clean


def test_a_proof_for_machines_has_every_system_and_the_totals() -> None:
    proof = Proof({"cars": Row(delivered=3, held=1), "hotel": Row(delivered=4)}, seconds=1.5)
    shown = proof.as_json()
    assert set(shown["cars"]) == {
        *("delivered", "duplicates", "forged", "effects", "expected"),
        *("lost", "doubled", "dead", "held"),
    }
    assert (shown["totals"]["delivered"], shown["totals"]["held"]) == (7, 1)
    assert shown["seconds"] == 1.5
    assert table("the proof", proof).row_count == 3


@pytest.mark.soak
async def test_one_system_alone_loses_and_doubles_nothing() -> None:
    heard: list[str] = []
    proof = await play(apps=("razworks",), tell=lambda what, proof: heard.append(what))
    assert proof.is_clean
    assert proof.kills >= 1
    row = proof.systems["razworks"]
    assert row.effects + row.dead + row.held >= row.expected > 30
    assert heard[-1] == "the proof"


@contextmanager
def addresses(kind: str) -> Iterator[list[str]]:
    """Options that name servers of our own; none for the embedded store."""
    with ExitStack() as stack:
        options: list[str] = []
        if "redis" in kind:
            options += ["--store", stack.enter_context(RedisServer("appendfsync everysec")).url]
        if "postgres" in kind:
            server = PostgresServer().start()
            stack.callback(server.remove)
            options += ["--database" if "redis" in kind else "--store", server.url]
        yield options


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis", "redis and postgres"])
def test_all_five_by_the_command_line(kind: str) -> None:
    with addresses(kind) as options:
        command = [sys.executable, "-m", "relevo.cli", "demo", "--once", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    proof = json.loads(done.stdout)
    assert done.returncode == 0, proof
    totals = proof["totals"]
    assert totals["lost"] == totals["doubled"] == 0
    assert totals["effects"] > 380
    # Same seed, same story, whatever keeps it.
    assert (totals["delivered"], totals["duplicates"], totals["forged"]) == (385, 68, 15)


def test_a_store_that_does_not_answer_is_told_in_one_line() -> None:
    store = f"redis://127.0.0.1:{free_port()}/0"
    command = [sys.executable, "-m", "relevo.cli", "demo", "--once", "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("relevo: the store cannot be used: the Redis at 127.0.0.1:")
    assert "Traceback" not in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_whoever_breaks_it_off_leaves_nothing_behind(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "relevo.cli", "demo"]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
    try:
        await until(lambda: len(children.read_text().split()) >= 3, timeout="60s")
        started = [Path(f"/proc/{pid}") for pid in children.read_text().split()]
        demo.send_signal(number)
        assert demo.wait(30) == 130
    finally:
        demo.kill()
        demo.wait()
    assert not [process for process in started if process.exists()]
