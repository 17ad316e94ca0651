"""relevo hotel: bots, flag, a message pushed by hand, the dead list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.apps.hotel import app
from relevo.cli import run
from relevo.simulators.beds24 import environment
from tests.apps.test_hotel import entry as hello
from tests.apps.test_hotel import turn


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RELEVO_STORE_URL", f"sqlite:///{tmp_path / 'hotel.db'}")
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert run(["hotel", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


async def take_turn(folder: Path) -> None:
    async with Relevo(f"sqlite:///{folder / 'hotel.db'}", apps=[app]) as relevo:
        await turn(relevo)


def test_a_bot_is_looked_after_from_the_command_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    told(capsys, "push", "hotel999", "¿Hay cochera?", "--message", "m-1")
    told(capsys, "push", "hotel999", "{broken", "--raw")
    rows = told(capsys, "bots", code=1)
    assert [(row["hotel"], row["state"], row["waiting"]) for row in rows] == [
        ("hotel999", "silent", 2),
        ("hotel1", "silent", 0),
        ("hotel2", "silent", 0),
    ]
    asyncio.run(take_turn(folder))
    [first, *_] = told(capsys, "bots", code=1)
    assert (first["state"], first["waiting"], first["dead"]) == ("alive", 0, 1)
    [entry] = told(capsys, "dead", "hotel999", "--reveal")
    assert entry["entry"] == "{broken"
    assert told(capsys, "dead", "hotel999")[0]["entry"] is None
    told(capsys, "retry", "hotel999", entry["id"])
    assert run(["hotel", "retry", "hotel999", entry["id"]]) == 1
    assert told(capsys, "dead", "hotel999") == []
    told(capsys, "push", "hotel999", '{"eventType":"x"}', "--raw")
    asyncio.run(take_turn(folder))
    assert len(told(capsys, "dead", "hotel999")) == 2
    change = '{"eventType":"guest_message"}'
    left = told(capsys, "edit", "hotel999", "--all", "--entry", change, code=1)
    assert left["requeued"] == 0
    assert len(left["left"]) == 2
    mended = ["edit", "hotel999", entry["id"], "--whole", "--entry"]
    assert told(capsys, *mended, hello("m-2").decode())["requeued"] == 1
    assert told(capsys, "retry", "hotel999", "--all")["requeued"] == 1
    asyncio.run(take_turn(folder))
    [stays] = told(capsys, "dead", "hotel999")
    assert "the eventType x" in stays["reason"]
    rest = json.dumps({**json.loads(hello("m-3")), "receivedAt": ""})
    assert told(capsys, "edit", "hotel999", "--all", "--entry", rest)["requeued"] == 1
    told(capsys, "off", "hotel999")
    [first, *_] = told(capsys, "bots", code=1)
    assert (first["state"], first["enabled"], first["waiting"]) == ("paused", False, 1)
    told(capsys, "on", "hotel999")
    capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        ["push", "nope"],
        ["off", "dead:hotel999"],
        ["retry", "hotel999", "x"],
        ["dead", "*"],
        ["retry", "hotel999"],
        ["retry", "hotel999", "x", "--all"],
        ["edit", "hotel999", "--all", "--whole", "--entry", "{}"],
        ["edit", "hotel999", "0" * 32, "--entry", "{}"],
    ],
    ids=range(8),
)
def test_a_mistake_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(["hotel", *words]) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Traceback" not in said
