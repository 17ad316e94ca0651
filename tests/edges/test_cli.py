"""The program as people and scripts use it, on a real SQLite file with real jobs."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo import Breaker
from relevo.breaker import Breakers
from relevo.cli import _program  # pyright: ignore[reportPrivateUsage] - its own tree of verbs
from relevo.clock import SystemClock
from relevo.events import Subscriber, Subscribers, with_subscriber
from relevo.ids import new_id
from relevo.job import After, Before, State, Suspicion
from relevo.message import EVENTS
from relevo.store import Effect, EffectState, Filter, Gate, Loss, QueueMode, Store, WorkerInfo
from relevo.stores import open_store
from relevo.storetime import StoreTime
from relevo.testing import ManualClock
from tests.conformance.steps import BOOM, OTHER, WORK, add, end, look, put, take_id, take_one
from tests.conformance.steps import job as new_job
from tests.edges.box import SHOP, Answer, Box, added, ended, is_one_line, made, state_of, until

CANARY = "canary-hunter22"
EMAIL = "ana.perez@example.com"
SECRETS = json.dumps({"password": CANARY, "email": EMAIL, "code": "RES-7K2M"}).encode()

GROUPS = (
    *(
        "jobs",
        "queues",
        "dead",
        "effects",
        "flows",
        "groups",
        "breakers",
        "workers",
        "pollers",
        "schedules",
    ),
    *("outbox", "audit", "database", "events"),
)


def held(box: Box) -> str:
    async def work(store: Store) -> str:
        id = await add(store, payload=SECRETS)
        lease = await take_id(store, id)
        effect = Effect(job=id, queue=WORK, name="book", key=f"{id}:book", run="r1", thread=id)
        await store.intend([effect])
        unknown = msgspec.structs.replace(effect, state=EffectState.UNKNOWN, result=SECRETS)
        await store.conclude([unknown])
        await end(store, lease, State.HELD, failure=BOOM)
        return id

    return box.do(work)


# the call itself


@pytest.mark.parametrize("app", ["cars", "expenses", "subscriptions"])
def test_an_app_is_looked_at_without_its_providers_secrets(box: Box, app: str) -> None:
    """Without tables it says what to do."""
    answer = box(app, "ls")

    assert answer.code == 3
    assert is_one_line(answer)
    assert "run `relevo migrate`" in answer.err


def test_a_shell_takes_over_the_simulators_settings(box: Box) -> None:
    told = box("simulators", "--json").json

    script = f"{box('simulators').out}\nenv -0"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    kept = dict(each.split("=", 1) for each in done.stdout.split("\0") if each)
    assert "HOTEL_IDS" in told
    assert told.items() <= kept.items()


def test_help_names_every_group(box: Box) -> None:
    answer = box("--help")
    assert answer.code == 0
    for name in (*GROUPS, "work", "migrate", "doctor", "map", "trace", "top", "settings"):
        assert f"  {name}" in answer.out


def verbs(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from verbs(below, *path, name)
    if not hasattr(command, "commands"):
        yield " ".join(path), command


def test_every_verb_speaks_json_and_explains_what_it_takes() -> None:
    every = dict(verbs(_program()))
    assert len(every) > 70
    for name, verb in every.items():
        assert verb.help, name
        assert any("--json" in each.opts for each in verb.params), name
        assert [each.name for each in verb.params if not getattr(each, "help", None)] == [], name


def test_the_program_alone_shows_its_help(box: Box) -> None:
    for args in ((), ("jobs",)):
        answer = box(*args)
        assert answer.code == 2
        assert "Usage: relevo" in answer.err


NOBODY = "01a1e1ae0000700080000000000000ff"  # an id like any other, the same in every process


@pytest.mark.parametrize(
    "args",
    [
        ("jobs", "ls", "--nope"),
        ("nope",),
        ("jobs", "nope"),
        ("jobs", "show"),
        ("jobs", "ls", "--queue", "*"),
        ("jobs", "ls", "--state", "sleeping"),
        ("jobs", "ls", "--limit", "many"),
        ("jobs", "ls", "--cursor", "tampered"),
        ("jobs", "ls", "--text", "x" * 10_000),
        ("queues", "pause", "*"),
        ("queues", "show", "../../etc/passwd"),
        ("dead", "retry"),
        ("dead", "retry", "--all", "--queue", WORK),
        ("dead", "discard", "--all"),
        ("dead", "discard", "--all", "--note", " "),
        ("effects", "confirm", "0" * 32, "book"),
        ("effects", "confirm", "0" * 32, "book", "--result", "{"),
        ("trace", "x"),
        ("top", "--every", "often"),
        ("work",),
        ("work", "--app", "nowhere:app"),
        ("work", "--app", "shop:nothing"),
        ("work", "--app", "shop:SendMail"),
        ("work", "--app", "../shop:app"),
        ("work", "--app", "shop:app", "--queue", "*"),
        ("work", "--app", "shop:app", "--queue", "shop:mail:nothing"),
        ("work", "--app", "shop:app", "--concurrency", "0"),
        ("--store", "mysql://root:" + CANARY + "@localhost/db", "jobs", "ls"),
        ("--store", "", "--store", "postgresql://root:" + CANARY + "@[half", "jobs", "ls"),
        ("jobs", "ls", "--" + CANARY, "postgresql://root:" + CANARY + "@host/db"),
    ],
    ids=lambda args: " ".join(args)[:40],
)
def test_a_wrong_call_is_one_line_and_2(box: Box, args: tuple[str, ...]) -> None:
    """B63"""
    made(box, State.DEAD)
    answer = box(*args)
    assert answer.code == 2, answer
    assert is_one_line(answer), answer
    assert CANARY not in answer.err.replace("--" + CANARY, "")


@pytest.mark.parametrize(
    "args",
    [
        ("jobs", "show", NOBODY),
        ("jobs", "show", "x"),
        ("jobs", "retry", NOBODY),
        ("dead", "show", "no-such-group"),
        ("dead", "retry", "--group", "no-such-group", "--yes"),
        ("dead", "retry", "--all", "--dry-run"),
        ("effects", "show", NOBODY, "book"),
        ("trace", "RES-NONE"),
    ],
    ids=lambda args: " ".join(args)[:20],
)
def test_nothing_found_is_1(box: Box, args: tuple[str, ...]) -> None:
    assert box(*args).code == 1


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/at/all.db",
        f"postgresql://root:{CANARY}@127.0.0.1:1/db",
        f"postgresql://root:{CANARY}%40x@127.0.0.1:1/db",
        f"redis://:{CANARY}@127.0.0.1:1/0",
        f"redis://:half@{CANARY}@127.0.0.1:1/0",
    ],
)
def test_a_store_that_is_away_is_3_and_its_password_hidden(box: Box, url: str) -> None:
    """B63"""
    answer = box("jobs", "ls", "--store", url)
    assert answer.code == 3
    assert is_one_line(answer)
    assert CANARY not in answer.err


def test_shared_options_may_stand_anywhere(box: Box) -> None:
    elsewhere = f"sqlite:///{box.folder / 'other.db'}"
    assert box("migrate", "--store", elsewhere).code == 0
    id = added(box)
    for args in (
        ("--json", "jobs", "ls"),
        ("jobs", "--json", "ls"),
        ("jobs", "ls", "--json"),
        ("--store", elsewhere, "jobs", "ls", "--json", "--store", box.url),
    ):
        assert [job["id"] for job in box(*args).json["jobs"]] == [id]
    assert box("--store", elsewhere, "--json", "jobs", "ls").json["jobs"] == []


def test_a_closed_pipe_ends_quietly(box: Box) -> None:
    """B63"""

    async def many(store: Store) -> None:
        await put(store, *(new_job(payload=b'"' + b"x" * 2_000 + b'"') for _ in range(200)))

    box.do(many)
    process = box.start("jobs", "ls", "--limit", "200", "--json")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    answer = ended(process)
    assert answer.code == 1
    assert answer.err == ""


@pytest.mark.parametrize("args", [("queues", "ls"), ("jobs", "ls", "--json"), ("--help",)])
def test_output_that_cannot_be_written_is_one_line(box: Box, args: tuple[str, ...]) -> None:
    added(box)
    with Path("/dev/full").open("wb") as full:
        answer = ended(box.start(*args, stdout=full))
    assert answer.code == 1
    assert answer.err == "relevo: cannot write the output: No space left on device\n"


def test_an_interrupt_while_importing_ends_quietly(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "relevo.cli.terminal":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "relevo.cli.terminal", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert box("serve") == (130, "", "")


def test_closed_streams_do_no_harm(box: Box) -> None:
    """B63"""
    id = made(box, State.DEAD)
    command = f"exec {sys.executable} -m relevo.cli jobs retry {id} <&- >&- 2>&-"
    process = subprocess.Popen(["sh", "-c", command], cwd=box.folder, env=box.environment)
    assert process.wait(30) == 0
    assert state_of(box, id) is State.READY


def test_binary_on_standard_input_is_refused(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """B63"""
    id = made(box, State.DEAD)
    for args in (("jobs", "retry", "-"), ("jobs", "edit", id, "--payload", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00\x80")))
        answer = box(*args)
        assert answer.code == 2
        assert is_one_line(answer)
    assert state_of(box, id) is State.DEAD


def test_no_terminal_no_colour(box: Box) -> None:
    made(box, State.DEAD)
    for args in (("jobs", "ls"), ("queues", "ls"), ("dead", "ls"), ("top",)):
        assert "\x1b" not in box(*args).out


def test_what_jobs_carry_cannot_drive_the_terminal(box: Box) -> None:
    """C22"""
    turned = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    evil = "\x1b]0;owned\x07\x9b31m[red]bold[/red]\nrow" + turned
    id = added(box, key=evil)
    made(box, State.DEAD, queue=OTHER)
    for args in (("jobs", "ls"), ("jobs", "show", id), ("trace", id), ("jobs", "ls", "--json")):
        answer = box(*args)
        assert answer.code == 0
        assert not {"\x1b", "\x07", "\x9b", *turned} & set(answer.out)
        assert "[red]" in answer.out
    assert box("jobs", "show", id, "--json").json["job"]["key"] == evil


def test_a_queue_s_name_is_printed_as_it_is(box: Box) -> None:
    """`:hotel:` and `:email:` are pictures to who prints for people."""
    for queue in ("hotel:hotel:answer", "shop:email:send"):
        for verb in ("pause", "resume", "drain"):
            assert queue in box("queues", verb, queue).out


# secrets


def test_no_verb_shows_a_secret_unless_told_to(box: Box) -> None:
    """C20: a canary in payload, result and effect; every verb that could print it."""
    id = held(box)
    dead = added(box, queue=OTHER, payload=SECRETS)
    done = added(box, queue="app:module:third", payload=SECRETS)
    said = msgspec.structs.replace(BOOM, message=f"no mailbox {EMAIL}", trace=f"at {EMAIL}")

    async def finish(store: Store) -> None:
        lease = await take_id(store, done, "app:module:third")
        await end(store, lease, result=SECRETS)
        lease = await take_id(store, dead, OTHER)
        await end(store, lease, State.DEAD, failure=said)

    box.do(finish)
    for args in (
        ("jobs", "ls"),
        ("jobs", "show", id),
        ("jobs", "show", done),
        ("dead", "ls"),
        ("dead", "show", BOOM.fingerprint),
        ("dead", "show", dead),
        ("effects", "ls"),
        ("effects", "show", id, "book"),
        ("trace", "RES-7K2M"),
        ("trace", id),
        ("jobs", "edit", dead, "--priority", "low"),
        ("queues", "show", WORK),
        ("audit", "ls"),
        ("top", "--once"),
        ("doctor",),
    ):
        for form in ((), ("--json",)):
            answer = box(*args, *form)
            assert answer.code == 0, answer
            assert CANARY not in answer.out + answer.err, args
            assert EMAIL not in answer.out + answer.err, args
    assert CANARY in box("jobs", "show", dead, "--reveal").out
    assert EMAIL in box("effects", "show", id, "book", "--reveal", "--json").out


# jobs


def test_jobs_are_listed_newest_first_and_by_filter(box: Box) -> None:
    async def some(store: Store) -> list[str]:
        return await put(
            store,
            new_job(key="a", payload=b'{"code":"RES-1"}'),
            new_job(OTHER, lane="l1"),
            new_job(delay=60_000),
        )

    first, second, third = box.do(some)

    def ids(*args: str) -> list[str]:
        return [job["id"] for job in box("jobs", "ls", "--json", *args).json["jobs"]]

    assert ids() == [third, second, first]
    assert ids("--queue", OTHER) == [second]
    assert ids("--state", "scheduled") == [third]
    assert ids("--state", "scheduled", "--state", "ready", "--queue", WORK) == [third, first]
    assert ids("--key", "a") == [first]
    assert ids("--lane", "l1") == [second]
    assert ids("--text", "RES-1") == [first]
    assert ids("--kind", "Nothing") == []
    page = box("jobs", "ls", "--limit", "2", "--json").json
    assert ids("--limit", "2", "--cursor", page["cursor"]) == [first]
    table = box("jobs", "ls")
    assert first in table.out
    assert "scheduled" in table.out


def test_a_job_is_shown_whole(box: Box) -> None:
    id = made(box, State.DEAD)

    shown = box("jobs", "show", id.upper(), "--json").json

    assert shown["job"]["payload"] == {"n": 1}
    assert shown["job"]["history"][0]["outcome"] == "dead"
    assert shown["effects"] == []
    text = box("jobs", "show", id).out
    for word in (id, WORK, "dead", "it went boom", BOOM.fingerprint, '{"n":1}'):
        assert word in text


def test_jobs_are_retried_and_what_is_not_is_told(box: Box) -> None:
    dead, running = made(box, State.DEAD), made(box, State.RUNNING, queue=OTHER)

    answer = box("jobs", "retry", dead, running, "--note", "fixed", "--json")

    assert answer.code == 1
    assert answer.json == {"changed": [dead], "refused": {running: "running"}}
    assert state_of(box, dead) is State.READY
    text = box("jobs", "retry", running)
    assert text.code == 1
    assert "is running: not changed" in text.err


def test_ids_can_be_piped_in(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [made(box, State.DEAD), made(box, State.DEAD)]
    typed = io.TextIOWrapper(io.BytesIO("\n".join(ids).encode()))
    monkeypatch.setattr(sys, "stdin", typed)

    assert box("jobs", "retry", "-", "--json").json == {"changed": ids, "refused": {}}


def test_a_job_is_cancelled(box: Box) -> None:
    id = added(box)
    assert box("jobs", "cancel", id).code == 0
    assert state_of(box, id) is State.CANCELLED
    assert box("jobs", "cancel", id).code == 1


def test_a_job_is_edited_and_retried(box: Box) -> None:
    id = made(box, State.DEAD, payload=SECRETS.replace(b"password", b"pass_hint"))

    answer = box(
        *("jobs", "edit", id, "--payload", '{"n":2}', "--priority", "high", "--attempts", "7"),
        *("--run-at", "1h", "--note", "typo", "--json", "--unchecked", "--whole"),
    )

    assert answer.code == 0
    assert answer.json["payload"] == {"n": 2}
    assert (answer.json["priority"], answer.json["attempts"]) == (0, 7)
    assert box("dead", "undo", id, "--json").json["attempts"] != 7
    assert "no edit to take back" in box("dead", "undo", id).err
    edited = box("dead", "edit", id, "--attempts", "3", "--retry")
    assert edited.code == 0 and "ready" in edited.out and "jobs undo" in edited.out
    assert "Traceback" not in edited.out
    assert state_of(box, id) is State.READY


@pytest.mark.parametrize(
    "change",
    [
        ("--payload", "{"),
        ("--payload", '{"password":"' + CANARY + '"}'),
        ("--priority", "urgent"),
        ("--attempts", "0"),
        ("--run-at", "yesterday"),
        ("--run-at", "2030-01-01T00:00:00"),
        (),
    ],
    ids=str,
)
def test_a_bad_edit_is_refused(box: Box, change: tuple[str, ...]) -> None:
    """B61"""
    id = made(box, State.DEAD)
    before = box.do(lambda store: look(store, id))
    answer = box("jobs", "edit", id, *change)
    assert answer.code == 2
    assert is_one_line(answer)
    assert CANARY not in answer.err
    assert box.do(lambda store: look(store, id)) == before


# queues


def test_queues_are_listed_paused_and_resumed(box: Box) -> None:
    added(box)

    assert box("queues", "pause", WORK, "--note", "deploy", "--json").json == [
        {"queue": WORK, "mode": "paused", "changed": True}
    ]
    assert "was paused already" in box("queues", "pause", WORK).out
    [row] = box("queues", "ls", "--json").json
    assert (row["queue"], row["mode"], row["counts"]["ready"]) == (WORK, "paused", 1)
    assert WORK in box("queues", "ls").out
    assert box("queues", "show", WORK, "--json").json["queue"]["mode"] == "paused"
    assert "nobody" in box("queues", "show", WORK).out
    assert box("queues", "resume", WORK).code == 0
    rows = box("audit", "ls", "--target", WORK, "--json").json["audits"]
    assert [row["note"] for row in rows] == ["", "deploy"]
    assert "deploy" in box("audit", "ls").out


def test_a_drain_waits_until_the_queue_is_empty(box: Box) -> None:
    id = added(box)
    process = box.start("queues", "drain", WORK, "--json")

    async def finish(store: Store) -> None:
        deadline = time.monotonic() + 30
        while (await store.tally())[0].mode is not QueueMode.DRAINING:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await end(store, await take_id(store, id))

    box.do(finish)
    answer = ended(process)
    assert answer.code == 0, answer
    assert answer.json == {"queue": WORK, "mode": "draining", "changed": True, "left": 0}
    assert box("queues", "drain", OTHER, "--no-wait", "--json").json["left"] is None


# dead letters


def test_dead_letters_are_grouped_and_shown(box: Box) -> None:
    ids = [made(box, State.DEAD) for _ in range(3)]

    [group] = box("dead", "ls", "--json").json
    assert (group["fingerprint"], group["count"], group["type"]) == (BOOM.fingerprint, 3, "Boom")
    assert box("dead", "ls", "--queue", OTHER, "--json").json == []
    assert "it went boom" in box("dead", "ls").out
    shown = box("dead", "show", BOOM.fingerprint, "--json").json["jobs"]
    assert {job["id"] for job in shown} == {*ids}
    assert ids[0] in box("dead", "show", BOOM.fingerprint).out
    assert ids[0] in box("dead", "show", ids[0]).out


@pytest.mark.parametrize(
    "which", [("--group", BOOM.fingerprint), ("--queue", WORK), ("--all",)], ids=str
)
def test_dead_letters_are_retried_in_bulk(box: Box, which: tuple[str, ...]) -> None:
    ids = [made(box, State.DEAD) for _ in range(3)]

    assert box("dead", "retry", *which, "--dry-run", "--json").json == {"matched": 3}
    refused = box("dead", "retry", *which)
    assert (refused.code, is_one_line(refused)) == (2, True)
    assert "add --yes" in refused.err
    assert [state_of(box, id) for id in ids] == [State.DEAD] * 3

    answer = box("dead", "retry", *which, "--yes", "--rate", "100/s", "--json")

    assert answer.code == 0
    assert answer.json == {
        "total": 3,
        "changed": 3,
        "refused": 0,
        "stopped": "",
        "outlived": 0,
    }
    assert box("jobs", "ls", "--state", "dead", "--json").json["jobs"] == []


def test_a_canary_without_an_outcome_stops_the_rest(box: Box) -> None:
    for _ in range(3):
        made(box, State.DEAD)

    answer = box("dead", "retry", "--all", "--canary", "1", "--patience", "50ms", "--yes")

    assert answer.code == 1
    assert "stopped: 1 of 1 canaries" in answer.err
    assert "1 of 3 retried" in answer.out


def test_dead_letters_are_retried_by_id(box: Box) -> None:
    id = made(box, State.DEAD)
    assert box("dead", "retry", id, "--dry-run").code == 0
    assert state_of(box, id) is State.DEAD
    assert box("dead", "retry", id, "--json").json == {"changed": [id], "refused": {}}


def test_dead_letters_are_discarded_with_a_note(box: Box) -> None:
    one, two, three = (made(box, State.DEAD) for _ in range(3))

    assert box("dead", "discard", one, "--note", "guest gone").code == 0
    assert box("dead", "discard", "--all", "--note", "old supplier").code == 2
    answer = box("dead", "discard", "--all", "--note", "old supplier", "--yes", "--json")

    assert answer.json["changed"] == 2
    assert {state_of(box, id) for id in (one, two, three)} == {State.CANCELLED}
    assert box("jobs", "show", two, "--json").json["job"]["note"] == "old supplier"


def at_terminal(box: Box, *args: str, until: str, typed: str = "") -> tuple[int, str]:
    """Run the program on a terminal; once `until` is seen, type something or else interrupt."""
    ours, theirs = pty.openpty()
    process = box.start(*args, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen, is_answered = "", False
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline and select.select([ours], [], [], 30)[0]:
            try:
                seen += os.read(ours, 65_536).decode(errors="replace")
            except OSError:  # how Linux says that the other side has closed
                break
            if until in seen and not is_answered:
                is_answered = True
                if typed:
                    os.write(ours, typed.encode())
                else:
                    process.send_signal(signal.SIGINT)
        assert is_answered, seen
        return process.wait(30), seen
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def test_a_person_at_a_terminal_is_asked(box: Box) -> None:
    ids = [made(box, State.DEAD) for _ in range(2)]
    args = ("dead", "discard", "--all", "--note", "old")

    code, seen = at_terminal(box, *args, until="[y/N]", typed="n\n")
    assert code == 1
    assert "Discard 2 dead letters?" in seen
    assert "nothing was changed" in seen
    assert {state_of(box, id) for id in ids} == {State.DEAD}
    code, seen = at_terminal(box, *args, until="[y/N]", typed="y\n")
    assert code == 0
    assert "2 of 2 discarded" in seen
    assert {state_of(box, id) for id in ids} == {State.CANCELLED}


@pytest.mark.parametrize("columns", ["0", "1", "20"])
def test_a_terminal_of_an_absurd_width_shows_every_column(box: Box, columns: str) -> None:
    added(box)
    box.environment["COLUMNS"] = columns
    _, seen = at_terminal(box, "--no-color", "queues", "ls", until="oldest", typed="\n")
    assert WORK in seen
    for name in ("mode", "ready", "dead", "done"):
        assert name in seen


def test_a_terminal_too_narrow_for_a_table_shows_every_row_whole(box: Box) -> None:
    queue = "shop:suppliers-of-everything:order-and-confirm"
    id = made(box, State.DEAD, queue=queue, key="order-20418")
    box.environment["COLUMNS"] = "80"
    for verb, texts in (
        ("queues", (f"{queue}\r\n", "dead 1", "done 0")),
        ("jobs", (f"{id}\r\n", f"queue {queue}", "state dead", "key order-20418")),
    ):
        _, seen = at_terminal(box, verb, "ls", until="dead", typed="\n")
        plain = re.sub(r"\x1b\[[\d;]*m", "", seen)
        assert [text for text in texts if text not in plain] == [], plain


def test_top_keeps_a_line_a_queue_on_a_narrow_terminal(box: Box) -> None:
    queue = "shop:suppliers-of-everything:order-and-confirm"
    made(box, State.DEAD, queue=queue)
    box.environment["COLUMNS"] = "80"
    _, seen = at_terminal(box, "top", "--once", until=queue, typed="\n")
    plain = re.sub(r"\x1b\[[\d;]*m", "", seen)
    assert re.search(r"queue +mode +dead *\r\n", plain), plain
    assert re.search(rf"{queue} +open +1 *\r\n", plain), plain


def test_top_is_live_on_a_terminal_until_ctrl_c(box: Box) -> None:
    added(box)
    code, seen = at_terminal(box, "top", "--every", "200ms", until=WORK)
    assert code == 0
    assert "Traceback" not in seen
    assert "\x1b[" in seen


# effects


def test_effects_are_listed_and_decided(box: Box) -> None:
    id, other = held(box), held(box)

    listed = box("effects", "ls", "--state", "unknown", "--json").json["effects"]
    assert {effect["job"] for effect in listed} == {id, other}
    assert box("effects", "ls", "--state", "confirmed", "--json").json["effects"] == []
    assert box("effects", "ls", "--job", id, "--json").json["effects"][0]["name"] == "book"
    assert id in box("effects", "ls").out

    answer = box("effects", "confirm", id, "book", "--code", "12345", "--note", "rang", "--json")
    assert answer.code == 0
    assert answer.json == {"effect": "book", "state": "confirmed", "retried": True}
    assert box("effects", "show", id, "book", "--json").json["result"] == "12345"
    assert state_of(box, id) is State.READY

    assert "failed" in box("effects", "deny", other, "book").out
    assert state_of(box, other) is State.READY
    assert box("effects", "deny", id, "book").code == 1


# the whole


def test_a_story_is_told(box: Box) -> None:
    id = held(box)
    story = box("trace", "RES-7K2M", "--json").json
    assert story["threads"] == [id]
    assert [job["id"] for job in story["jobs"]] == [id]
    assert story["effects"][0]["name"] == "book"
    text = box("trace", id).out
    for word in (id, WORK, "held", "run 1", "effect book"):
        assert word in text


def test_the_map_lists_workers_and_listeners(box: Box) -> None:
    rows = box("map", "--app", "shop:app", "--json").json
    assert [(row["role"], row["takes"], row["queue"]) for row in rows] == [
        ("worker", "SendMail", "shop:mail:send"),
        ("listener", "order.paid as shop.thank", "shop:listeners:thank"),
        ("poller", "rates:{shop} every 1s", "shop:pollers:poll-rates"),
        ("schedule", "0 6 * * * America/Mexico_City", "shop:schedules:remind"),
    ]
    assert "shop:mail:send" in box("map", "--app", "shop").out
    assert box("map").code == 1


def test_workers_are_listed(box: Box) -> None:
    worker = WorkerInfo(id="w1", host="h", pid=1, queues=[WORK], concurrency=5)
    added(box)
    box.do(lambda store: store.beat(worker, 60_000))
    box.do(lambda store: take_one(store))

    [row] = box("workers", "ls", "--json").json
    assert (row["id"], row["queues"], row["running"], row["state"]) == ("w1", [WORK], 1, "ok")
    assert "w1" in box("workers", "ls").out


def test_a_worker_is_forgotten_unless_it_is_alive(box: Box) -> None:
    """F61"""
    worker = WorkerInfo(id="w1", host="h", pid=1, queues=[WORK], concurrency=5)
    box.do(lambda store: store.beat(worker, 60_000))
    refused = box("workers", "forget", "w1")
    assert refused.code == 1 and "w1 is alive" in refused.err
    box.do(lambda store: store.silence(["w1"], is_gone=True))
    assert box("workers", "ls", "--json").json[0]["state"] == "gone"

    assert box("workers", "forget", "w1", "--note", "scaled down").code == 0

    assert box("workers", "ls", "--json").json == []
    assert box("workers", "forget", "w1").code == 1
    [line] = box("audit", "ls", "--json").json["audits"]
    assert (line["verb"], line["target"], line["note"]) == ("forget worker", "w1", "scaled down")


def test_parked_jobs_miss_no_worker(box: Box) -> None:
    async def park(store: Store) -> str:
        id = await add(store)
        assert await end(store, await take_id(store, id), State.PARKED, park="breaker:b")
        return id

    box.do(park)
    rows = box("doctor", "--json").json
    assert not [row for row in rows if "no worker" in row["message"]]

    added(box)
    [row] = [row for row in box("doctor", "--json").json if "no worker" in row["message"]]
    assert row["message"].startswith("1 job to do and no worker")


def test_a_job_that_crashed_its_worker_shows_how_often(box: Box) -> None:
    async def crash(store: Store) -> str:
        id = await add(store, attempts=3)
        lease = await take_id(store, id)
        assert await store.isolate([lease]) == [True]
        loss = Loss(id=id, failure=BOOM, suspicion=Suspicion.ALONE)
        assert len(await store.rescue(worker="w1", losses=[loss])) == 1
        return id

    id = box.do(crash)
    out = " ".join(box("jobs", "show", id).out.split())
    assert "crashes 1 of 3: its process died while nothing ran beside it" in out
    assert box("jobs", "show", id, "--json").json["job"]["crashes"] == 1
    assert "crashes" not in box("jobs", "show", added(box)).out


def test_an_implied_breaker_says_that_it_is_one(box: Box) -> None:
    async def fail(store: Store) -> None:
        breakers = Breakers(store, StoreTime(store, SystemClock()))
        assert await breakers.failed(WORK, None, "j1", "503", is_last=True)
        assert await breakers.failed("supplier:28", Breaker("b"), "j2", "503", is_last=True)

    box.do(fail)
    rows = {row["name"]: row["circuit"] for row in box("breakers", "ls", "--json").json}
    assert {name: each["is_implied"] for name, each in rows.items()} == {
        WORK: True,
        "supplier:28": False,
    }
    assert "open, implied" in box("breakers", "ls").out
    assert "its commands have no breaker=" in box("breakers", "show", WORK).out
    assert "implied" not in box("breakers", "show", "supplier:28").out
    said = {row["subject"]: row["message"] for row in box("doctor", "--json").json}
    assert said[WORK].startswith("its implied breaker is open, 0 jobs parked: ")
    assert said["supplier:28"].startswith("its breaker is open, 0 jobs parked: ")


def test_top_shows_queues_and_workers_once(box: Box) -> None:
    added(box)
    made(box, State.DEAD, queue=OTHER)

    shown = box("top", "--once", "--json").json

    rows = {row["queue"]: row for row in shown["queues"]}
    assert rows[WORK]["ready"] == 1
    assert rows[OTHER]["dead"] == 1
    assert shown["workers"] == []
    assert WORK in box("top", "--once").out


def test_migrate_names_its_steps_and_has_none_the_second_time(box: Box) -> None:
    url = f"sqlite:///{box.folder / 'fresh.db'}"
    first = box("migrate", "--store", url, "--json")
    assert first.code == 0
    assert first.json["steps"]
    assert box("migrate", "--store", url, "--json").json["steps"] == []
    assert "up to date" in box("migrate", "--store", url).out


def test_doctor_names_the_groups_that_nobody_closed(box: Box) -> None:
    async def open_groups(store: Store) -> None:
        clock = ManualClock()
        clock.offset = timedelta(hours=-2)
        early = open_store(box.url, clock=clock)
        await early.open()
        for name in ("forgotten", "busy", "closed"):
            id = new_id()
            then = new_job(id=id, node=name, after=(After(id, "tally"),))
            await put(early, then)
            if name == "busy":
                await put(early, new_job(before=(Before(id, WORK, "tally"),)))
            if name == "closed":
                await early.set_gate([id], Gate.CLOSED)
        await early.close()
        id = new_id()
        await put(store, new_job(id=id, node="young", after=(After(id, "tally"),)))

    box.do(open_groups)
    said = [row for row in box("doctor", "--json").json if "the group" in row["message"]]
    assert [(row["level"], row["subject"]) for row in said] == [("warning", WORK)]
    assert "'forgotten' is open since" in said[0]["message"]
    id = said[0]["message"].partition("relevo groups cancel ")[2].rstrip("`")
    assert box("groups", "cancel", id).code == 0
    assert "the group" not in box("doctor").out


def test_doctor_is_content_with_a_healthy_store(box: Box) -> None:
    answer = box("doctor", "--app", "shop:app", "--json")
    assert answer.code == 0, answer
    assert {row["level"] for row in answer.json} <= {"ok", "warning"}
    assert box("doctor").code == 0


def test_doctor_tells_how_often_each_imported_client_calls(box: Box) -> None:
    for name in ("httpx", "stripe"):
        importlib.import_module(name)
    said = {row["subject"]: row["message"] for row in box("doctor", "--json").json}
    assert said["httpx"].startswith("makes 1 try")
    assert "stripe.max_network_retries = 0" in said["stripe"]


def test_doctor_finds_what_is_wrong(box: Box) -> None:
    held(box)
    added(box)
    box("queues", "pause", OTHER)
    box("breakers", "open", "supplier:28", "--note", "they announced it")
    box("breakers", "open", "supplier:7")
    box("breakers", "close", "supplier:7")
    rows = box("doctor", "--json").json
    found = {(row["level"], row["subject"]) for row in rows}
    assert ("warning", WORK) in found
    assert ("warning", "supplier:28") in found
    assert "supplier:7" not in {row["subject"] for row in rows}
    [told] = [row["message"] for row in rows if row["subject"] == "supplier:28"]
    assert told.startswith("its breaker is open, 0 jobs parked: ")
    assert told.endswith("See `relevo breakers show supplier:28`")

    broken = box("doctor", "--app", "nowhere:app", "--json")
    assert broken.code == 1
    assert ("error", "apps") in {(row["level"], row["subject"]) for row in broken.json}

    away = box("doctor", "--store", "sqlite:////nowhere/at/all.db", "--json")
    assert away.code == 3
    assert ("error", "store") in {(row["level"], row["subject"]) for row in away.json}


def test_wrong_settings_are_named_all_at_once(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """B64"""
    monkeypatch.setenv("RELEVO_STOER_URL", f"postgresql://root:{CANARY}@host/db")
    monkeypatch.setenv("RELEVO_CONCURRENCY", CANARY)
    for args in (("jobs", "ls"), ("work", "--app", "shop:app"), ("doctor",), ("settings",)):
        answer = box(*args)
        assert answer.code == (1 if args[0] in ("doctor", "settings") else 2)
        for name in ("RELEVO_STOER_URL", "RELEVO_CONCURRENCY"):
            assert name in answer.out + answer.err
        assert CANARY not in answer.out + answer.err


def test_a_backup_is_a_store_of_its_own(box: Box) -> None:
    id = added(box)
    copy = box.folder / "copy.db"

    assert box("database", "backup", str(copy), "--json").json["bytes"] == copy.stat().st_size

    listed = box("jobs", "ls", "--json", "--store", f"sqlite:///{copy}").json["jobs"]
    assert [job["id"] for job in listed] == [id]
    again = box("database", "backup", str(copy))
    assert (again.code, is_one_line(again)) == (2, True)


def test_settings_are_listed(box: Box) -> None:
    answer = box("settings", "--json")
    assert answer.code == 0
    assert "RELEVO_STORE_URL" in answer.out
    assert "RELEVO_STORE_URL" in box("settings").out


def test_the_store_is_measured_and_nothing_is_left(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.cli.bench.PINGS", 5)
    before = {path.name for path in box.folder.iterdir()}

    found = box("bench", "--jobs", "1000", "--json").json

    assert (found["store"], found["jobs"]) == ("sqlite", 1_000)
    assert found["enqueued_a_second"] > 0 and found["run_a_second"] > 0
    assert 0 < found["started_after_ms_p50"] <= found["started_after_ms_p99"]
    assert {path.name for path in box.folder.iterdir()} == before
    assert box("queues", "ls", "--json").json == []
    answer = box("bench", "--jobs", "1000")
    assert "started within" in answer.out and "1,000 jobs" in answer.err


async def test_a_server_is_measured_as_it_is(store: Store) -> None:
    program = [sys.executable, "-m", "relevo.cli", "bench", "--jobs", "1000", "--json"]
    process = await asyncio.create_subprocess_exec(
        *program, "--store", store.dsn, stdout=subprocess.PIPE
    )

    out, _ = await process.communicate()

    assert (process.returncode, json.loads(out)["store"]) == (0, store.name)
    assert await store.count(Filter()) == 0


# with fewer packages

BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Missing())
from relevo.cli import main
main()
"""


def test_no_more_is_needed_than_the_readme_says(box: Box) -> None:
    """With `relevo[cli]` alone the engine works; what does not says what to install."""
    metadata = importlib.metadata.metadata("relevo")
    core = {"msgspec", "cronsim", "tzdata", "typer", "rich"}
    optional = {
        re.split(r"[ ;<>=\[]", line)[0].replace("-", "_")
        for line in metadata.get_all("Requires-Dist") or []
    }
    missing = optional - core - {"relevo"} | {"prometheus_client", "google"}
    assert {"httpx2", "starlette", "sqlalchemy", "redis", "fastapi"} <= missing
    program = BARE.format(missing=missing)

    def called(*args: str) -> Answer:
        return ended(
            subprocess.Popen(
                [sys.executable, "-c", program, *args],
                cwd=box.folder,
                env=box.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )

    [done] = enqueue(box, "o1")
    assert called("--help").code == 0
    assert called("work", "--app", "shop:app", "--until-empty").code == 0
    assert state_of(box, done) is State.DONE
    for wanted in (("up", "shop:app"), ("expenses", "ls"), ("jobs", "ls", "--store", "redis://x")):
        answer = called(*wanted)
        assert (answer.code, is_one_line(answer)) == (2, True)
        assert "pip install 'relevo[" in answer.err


# work


def enqueue(box: Box, *orders: str, **fields: Any) -> list[str]:
    async def work(store: Store) -> list[str]:
        jobs = [
            new_job(
                "shop:mail:send",
                kind="SendMail",
                attempts=1,
                payload=json.dumps({"order": order, **fields}).encode(),
            )
            for order in orders
        ]
        return await put(store, *jobs)

    return box.do(work)


def test_who_names_no_app_is_told_which_come_along(box: Box) -> None:
    answer = box("up", "--simulators", "--simulators-port", "0")
    assert answer.code == 2
    assert "(cars, expenses, hotel, qstash, razworks, subscriptions)" in answer.err


def test_work_serves_until_the_queues_are_empty(box: Box) -> None:
    done, broken = enqueue(box, "o1")[0], enqueue(box, "o2", fail=True)[0]
    later = added(box, queue="shop:mail:send", delay=3_600_000)

    answer = ended(box.start("work", "--app", "shop:app", "--until-empty", "--json"))

    assert answer.code == 0, answer
    assert '"message": "serving shop:listeners:thank, shop:mail:send, ' in answer.err
    assert answer.json["left"]["dead"] == 1
    assert answer.json["left"]["scheduled"] >= 1  # and the poller and the schedule, which never end
    assert box("jobs", "show", done, "--json").json["job"]["result"] == "sent o1"
    shown = box("jobs", "show", broken, "--json").json["job"]
    assert shown["failure"]["message"] == "no such mailbox"
    assert state_of(box, later) is State.SCHEDULED


def test_the_first_signal_lets_running_jobs_end(box: Box) -> None:
    [id] = enqueue(box, "o1", seconds=1)
    box.environment["RELEVO_APPS"] = "shop:app"
    process = box.start("work", "--queue", "shop:mail:send", "--concurrency", "2")
    until((box.folder / "began").exists, process)

    process.send_signal(signal.SIGTERM)
    answer = ended(process)

    assert answer.code == 0, answer
    assert "stopping politely" in answer.err
    assert state_of(box, id) is State.DONE


def test_the_second_signal_ends_at_once(box: Box) -> None:
    enqueue(box, "o1", seconds=60)
    process = box.start("work", "--app", "shop:app")
    assert process.stderr is not None
    until((box.folder / "began").exists, process)

    process.send_signal(signal.SIGINT)
    seen = b""
    while b"stopping politely" not in seen:
        seen += process.stderr.readline()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)

    assert process.wait(30) == 130
    assert time.monotonic() - began < 5
    process.communicate()


def test_an_app_that_breaks_while_loading_is_one_line(box: Box) -> None:
    (box.folder / "broken.py").write_text("import json\n\nraise RuntimeError('half\\nbuilt')\n")
    answer = box("work", "--app", "broken:app")
    assert answer.code == 2
    assert is_one_line(answer)
    assert "RuntimeError: half built (broken.py:3)" in answer.err


def test_an_app_that_relevo_refuses_is_told_by_its_own_line(box: Box) -> None:
    (box.folder / "hasty.py").write_text(
        "from relevo import App, Context, Poll\n\napp = App('hasty')\n\n"
        "@app.poller('news', every='10ms')\n"
        "async def pull(poll: Poll, ctx: Context) -> None: ...\n"
    )
    answer = box("work", "--app", "hasty:app")

    assert answer.code == 2
    assert "(hasty.py:5)" in answer.err


def test_counting_and_looking_agree(box: Box) -> None:
    """What a script reads is what the store holds."""
    for _ in range(2):
        made(box, State.DEAD)
    count = box.do(lambda store: store.count(Filter(states=frozenset({State.DEAD}))))
    [row] = box("queues", "ls", "--json").json
    assert row["counts"]["dead"] == count == len(box("jobs", "ls", "--json").json["jobs"])


def test_c17_an_edit_is_held_against_the_command_whose_app_is_here(box: Box) -> None:
    (box.folder / "shop.py").write_text(SHOP)
    mail = {"queue": "shop:mail:send", "kind": "SendMail", "payload": b'{"order":"1"}'}
    id = added(box, delay=3_600_000, **mail)

    async def payload(store: Store) -> bytes:
        return (await look(store, id)).payload

    for verb in ("jobs", "dead"):
        edit = (verb, "edit", id, "--payload")
        refused = box(*edit, '{"order": 5}', "--app", "shop:app")
        assert refused.code != 0 and "order" in refused.err
        assert box.do(payload) == b'{"order":"1"}'
    assert box("dead", "edit", id, "--payload", '{"order":"2"}', "--app", "shop:app").err == ""
    unknown = ("dead", "edit", id, "--payload", '{"order":"3"}')
    refused = box(*unknown)
    assert refused.code != 0 and "cannot be checked" in refused.err
    assert box(*unknown, "--unchecked").code == 0
    assert box.do(payload) == b'{"order":"3"}'


# events


async def _publish(store: Store) -> str:
    """An event, and two that subscribe to it: one here, one in a program that does not run."""
    subscribers = Subscribers(store)
    for app, queue in (("shop", "shop:listeners:thank"), ("mail", "mail:listeners:receipt")):
        name = f"{app}.{queue.rpartition(':')[2]}"
        new = Subscriber(name=name, queue=queue, attempts=3, keep=60_000, registered_at=1)
        await subscribers.change("order.paid", with_subscriber(new))
    await store.insert([new_job(EVENTS, kind="order.paid", payload=b'{"order":"o1"}')])
    [event] = (await store.page(Filter(queue=EVENTS))).jobs
    return event.id


def test_events_and_their_subscribers_are_shown_and_one_is_taken_off(box: Box) -> None:
    event = box.do(_publish)
    [row] = box("events", "ls", "--json").json["events"]
    assert (row["event"]["id"], row["event"]["kind"]) == (event, "order.paid")
    assert "not yet spread" in box("events", "ls").out

    answer = ended(box.start("work", "--app", "shop:app", "--until-empty", "--json"))
    assert answer.code == 0, answer
    assert answer.json["unserved"] == {"mail:listeners:receipt": 1}

    shown = box("events", "show", event, "--json").json
    assert {each["subscriber"]: each["state"] for each in shown["given"]} == {
        "mail.receipt": "ready",
        "shop.thank": "done",
    }
    assert "1 ready" in box("events", "ls", "--event", "order.paid").out
    assert box("events", "ls", "--event", "order.shipped", "--json").json["events"] == []
    seen = {each["name"]: each for each in box("events", "subscribers", "--json").json}
    assert (seen["mail.receipt"]["waiting"], seen["mail.receipt"]["is_served"]) == (1, False)
    told = [each["message"] for each in box("doctor", "--json").json]
    assert any("relevo events unsubscribe order.paid mail.receipt" in each for each in told)

    refused = box("events", "unsubscribe", "order.paid", "nothing", "--yes")
    assert refused.code == 1 and "relevo events subscribers" in refused.err
    gone = box("events", "unsubscribe", "order.paid", "mail.receipt", "--yes", "--note", "moved")
    assert "1 job still in mail:listeners:receipt" in gone.out
    assert [each["name"] for each in box("events", "subscribers", "--json").json] == ["shop.thank"]
    assert "unsubscribe" in box("audit", "ls").out


def test_a_subscriber_is_not_taken_off_while_a_worker_serves_it(box: Box) -> None:
    box.do(_publish)
    worker = WorkerInfo(id="w1", host="h", pid=1, queues=["mail:listeners:receipt"], concurrency=5)
    box.do(lambda store: store.beat(worker, 60_000))

    refused = box("events", "unsubscribe", "order.paid", "mail.receipt", "--yes")
    assert refused.code == 1
    assert "deploy it without this listener first" in refused.err
    assert len(box("events", "subscribers", "--json").json) == 2


def test_work_does_not_say_that_all_is_done_while_another_program_has_not_run(box: Box) -> None:
    box.do(_publish)
    answer = ended(box.start("work", "--app", "shop:app", "--until-empty"))
    assert "all done" not in answer.out
    assert "no running worker serves 1 job in mail:listeners:receipt" in answer.out
