"""The demo: what it counts, and that its story ends well."""

import json
import subprocess
import sys

import pytest

from relevo.cli.demo import table
from relevo.demo import Proof, Row, play


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


@pytest.mark.soak
def test_all_five_by_the_command_line() -> None:
    command = [sys.executable, "-m", "relevo.cli", "demo", "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    proof = json.loads(done.stdout)
    assert done.returncode == 0, proof
    assert proof["totals"]["lost"] == proof["totals"]["doubled"] == 0
    assert proof["totals"]["effects"] > 380
