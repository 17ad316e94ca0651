"""C23: relevo forget, as people and scripts use it."""

from __future__ import annotations

import re

import pytest

from relevo.job import State
from relevo.store import Store
from tests.conformance.steps import WORK
from tests.conformance.test_receive import kept
from tests.edges.box import Answer, Box, is_one_line, made
from tests.edges.test_cli import at_terminal
from tests.engine.test_canary import mentions

EVA = "canary-eva"
NOTE = ("--note", "they asked for it")


def stored(box: Box) -> list[str]:
    """A delivery of a person, a job that is done, and one in another thread that is held."""

    async def deliver(store: Store) -> str:
        from relevo.store import Arrival

        came = kept(EVA, thread="t-1")
        await store.receive([Arrival(came)])
        return came.id

    payload = f'{{"name":"{EVA}"}}'.encode()
    return [
        box.do(deliver),
        made(box, State.DONE, payload=payload, thread="t-1"),
        made(box, State.HELD, payload=payload, thread="t-2"),
    ]


def left(box: Box) -> int:
    return box.do(lambda store: mentions(store, EVA))


def plain(answer: Answer) -> str:
    return re.sub(r"\s+", " ", answer.out)


def test_a_dry_run_tells_what_would_go_and_what_would_not(box: Box) -> None:
    _, _, held = stored(box)
    before = left(box)

    answer = box("forget", "--text", EVA, "--dry-run")
    told = box("forget", "--text", EVA, "--dry-run", "--json").json

    assert answer.code == 0
    assert "1 delivery and 1 job in 1 thread would be erased" in plain(answer)
    assert "1 thread left alone" in plain(answer)
    assert f"{WORK} 1" in plain(answer)
    assert f"job {held} of {WORK} is held" in plain(answer)
    assert f"relevo jobs cancel {held}" in plain(answer)
    assert (told["is_dry"], told["deliveries"], told["jobs"]) == (True, 1, {WORK: 1})
    assert told["left_alone"][0]["jobs"] == [held]
    assert left(box) == before
    assert box("audit", "ls", "--json").json["audits"] == []


def test_what_has_ended_is_erased_and_written_down(box: Box) -> None:
    _, _, held = stored(box)

    some = box("forget", "--text", EVA, *NOTE, "--yes", "--json")
    assert (some.code, some.json["left"]) == (1, 1)  # a script shall see that it is not all
    assert box("jobs", "cancel", held).code == 0
    answer = box("forget", "--text", EVA, *NOTE, "--yes")

    assert answer.code == 0
    assert "0 deliveries and 1 job in 1 thread erased; in the audit as" in plain(answer)
    assert left(box) == 0
    rows = [row for row in box("audit", "ls", "--json").json["audits"] if row["verb"] == "forget"]
    assert [row["note"] for row in rows] == [NOTE[1]] * 2
    assert rows[1]["target"] == some.json["act"]
    again = box("forget", "--text", EVA, *NOTE, "--yes")
    assert (again.code, again.out.strip()) == (1, "nothing matched")


@pytest.mark.parametrize("how", [("--key", EVA), ("--thread", "t-1")], ids=["key", "thread"])
def test_key_and_thread_lead_to_the_same(box: Box, how: tuple[str, str]) -> None:
    came, done, _ = stored(box)

    answer = box("forget", *how, *NOTE, "--yes", "--json")

    assert answer.code == 0
    assert (answer.json["deliveries"], answer.json["jobs"]) == (1, {WORK: 1})
    assert box("deliveries", "show", came).code == 1
    assert box("jobs", "show", done).code == 1


def test_a_person_at_a_terminal_is_asked_first(box: Box) -> None:
    stored(box)
    before = left(box)
    args = ("forget", "--key", EVA, *NOTE)

    code, seen = at_terminal(box, *args, until="[y/N]", typed="n\n")
    assert code == 1
    assert "Erase all of this for good?" in seen
    assert "1 delivery and 1 job" in re.sub(r"\s+", " ", seen)
    assert left(box) == before
    code, seen = at_terminal(box, *args, until="[y/N]", typed="y\n")
    assert code == 0
    assert "erased" in seen


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "one of key, thread and text"),
        (("--key", "a", "--text", "abcde"), "one of key, thread and text"),
        (("--text", "eva"), "text has 4 to 500"),
        (("--key", ""), "key has 1 to 500"),
    ],
)
def test_b63_a_mistake_is_one_line(box: Box, args: tuple[str, ...], complaint: str) -> None:
    answer = box("forget", *args, *NOTE, "--yes")

    assert answer.code == 2
    assert is_one_line(answer)
    assert complaint in answer.err


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "say why"),
        (("--note", f"{EVA} asked"), "without naming them"),
        ((*NOTE,), "add --yes"),
        ((*NOTE, "--json"), "add --yes"),
    ],
)
def test_nothing_goes_without_a_reason_and_a_yes(
    box: Box, args: tuple[str, ...], complaint: str
) -> None:
    stored(box)
    before = left(box)

    answer = box("forget", "--key", EVA, *args)

    assert answer.code == 2
    assert complaint in answer.err
    assert left(box) == before
