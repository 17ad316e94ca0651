"""relevo up, serve and deliveries: a door in a process of its own, and what people see of it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo.store import Store
from tests.conformance.test_delivery_states import fail
from tests.conformance.test_receive import SOURCE
from tests.edges.box import Box, ended, is_one_line, until

DOOR = """
from relevo import App, Command, Context, Delivery, Intake, site, sources

app = App("shop")

class Save(Command, queue="shop:events:save"):
    id: str
    email: str = ""

@app.worker
async def save(order: Save) -> str:
    return order.id

signed = sources.github("a secret of the tests")

@app.webhook("/hooks/shop", source=signed, key=lambda d: d.json["id"])
async def hook(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Save(delivery.json["id"], delivery.json.get("email", "")))

class Pay(Command, queue="shop:cards:pay", key="pay:{id}", unique="forever"):
    id: str

@app.worker
async def pay(order: Pay, ctx: Context) -> None:
    await ctx.once("pay", lambda key: "P-1", repeatable=True)

@app.webhook("/hooks/paid", source=signed, key=lambda d: d.json["id"])
async def paid(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Pay(delivery.json["id"]))
"""


@pytest.fixture
def door(box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    (box.folder / "door.py").write_text(DOOR)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in {"RELEVO_APPS": "door:app", "RELEVO_PORT": port}.items():
        monkeypatch.setenv(name, value)
        box.environment[name] = value
    # The command line runs in this process, which may have imported another test's door.
    monkeypatch.delitem(sys.modules, "door", raising=False)
    yield box
    sys.modules.pop("door", None)


@pytest.fixture
def up(door: Box) -> Iterator[subprocess.Popen[bytes]]:
    with door.start("up") as process:
        try:
            until(lambda: _answers(door), process)
            yield process
        finally:
            process.kill()


def _answers(door: Box) -> bool:
    url = f"http://127.0.0.1:{door.environment['RELEVO_PORT']}/ready"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def body(door: Box, text: str) -> str:
    path = door.folder / "body.json"
    path.write_text(text)
    return str(path)


def test_a_replay_tells_that_a_job_with_a_known_key_does_not_run_again(
    door: Box, up: subprocess.Popen[bytes]
) -> None:
    file = body(door, '{"id": "evt_1"}')
    assert door("deliveries", "send", "/hooks/paid", "--body", file).code == 0
    [came] = door("deliveries", "ls", "--json").json["deliveries"]
    id = str(came["id"])
    until(lambda: "confirmed" in door("effects", "ls").out, up)

    asks = ("deliveries", "replay", id)
    known = "a job whose unique key is known already is not made again"
    dry = door(*asks, "--dry-run").out
    assert known in dry
    assert "1 confirmed, and not made again" in dry
    dry = door(*asks, "--dry-run", "--repeat-effects").out
    assert "1 confirmed, and made twice where their jobs run again" in dry
    many = ("deliveries", "replay", "--state", "accepted")
    dry = door(*many, "--dry-run").out
    assert "1 effect confirmed, and not made again; made twice with --repeat-effects" in dry
    assert "shop:cards:pay" in dry
    dry = door(*many, "--dry-run", "--repeat-effects", "--json").json
    [pay] = dry["effects"]
    assert (pay["name"], pay["count"], pay["deliveries"]) == ("pay", 1, 1)
    again = door(*asks, "--repeat-effects", "--yes").out
    told = re.search(rf"{known}: see `relevo deliveries show (\w+)`", again)
    assert told is not None
    assert "which had ended" in door("deliveries", "show", told[1]).out


def test_a_delivery_is_sent_seen_and_let_in_again(door: Box, up: subprocess.Popen[bytes]) -> None:
    """The whole round of verbs, and one audit row for the one that changed something (C06, C37)."""
    file = body(door, '{"id":"evt_1","email":"ana@example.com"}')
    sent = door("deliveries", "send", "/hooks/shop", "--body", file, "--json")
    assert (sent.code, sent.json["status"], sent.json["answer"]) == (0, 200, {"ok": True})
    assert door("deliveries", "send", "/hooks/shop", "--body", file).code == 0
    unsigned = urllib.request.Request(
        f"http://127.0.0.1:{door.environment['RELEVO_PORT']}/hooks/shop",
        b"{}",
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(unsigned)  # noqa: S310 - our own address

    def listed() -> list[dict[str, object]]:
        return door("deliveries", "ls", "--json").json["deliveries"]

    until(lambda: len(listed()) == 2, up)
    refused, came = sorted(listed(), key=lambda one: str(one["state"]), reverse=True)
    assert (came["key"], came["repeats"], came["endpoint"]) == ("evt_1", 1, "shop:/hooks/shop")
    assert refused["state"] == "refused"
    id, bad = str(came["id"]), str(refused["id"])

    assert "ana@example.com" not in door("deliveries", "show", id).out
    assert "ana@example.com" in door("deliveries", "show", id, "--reveal").out
    dry = door("deliveries", "replay", id, "--dry-run", "--json").json
    assert (dry["is_dry"], dry["generation"]) == (True, 1)
    assert [order["queue"] for order in dry["orders"]] == ["shop:events:save"]
    assert "ana@example.com" not in json.dumps(dry)
    orders = door("deliveries", "replay", id, "--dry-run", "--reveal").out
    assert '{"id":"evt_1"' in orders  # as it would be stored, to be read by other tools
    assert len(listed()) == 2
    assert door("deliveries", "replay", id).code != 0  # nobody to ask
    again = door("deliveries", "replay", id, "--yes", "--note", "lost mail", "--json").json
    assert again["generation"] == 1
    assert door("deliveries", "replay", bad, "--yes").code == 1
    audits = door("audit", "ls", "--json").json["audits"]
    assert [(row["verb"], row["target"], row["note"]) for row in audits] == [
        ("replay", id, "lost mail")
    ]

    for anything in ("evt_1", id):
        story = door("trace", anything, "--json").json
        assert story["deliveries"][0]["id"] == id
        assert story["jobs"][0]["cause"] == id
    told = door("trace", id).out
    assert "POST shop:/hooks/shop" in told
    assert "came again once, 20" in told
    why = door("deliveries", "verify", bad)
    assert why.code == 1
    assert "X-Hub-Signature-256" in why.out
    assert door("deliveries", "verify", id).code == 0
    wrong = door(
        "deliveries", "verify", "--path", "/hooks/shop", "--body", file, "-H",
        "X-Hub-Signature-256: sha256=" + "0" * 64,
    )  # fmt: skip
    assert wrong.code == 1
    assert "wrong secret" in wrong.out

    unread = body(door, '{"no JSON')
    assert door("deliveries", "send", "/hooks/shop", "--body", unread, "--json").code == 1
    until(lambda: len(listed()) == 4, up)
    [odd] = [one for one in listed() if one["status"] == 400]
    right = door("deliveries", "verify", str(odd["id"]))
    assert (right.code, right.out.startswith("the signature is right; ")) == (0, True)

    job = str(again["orders"][0]["id"])
    until(lambda: "done" in door("jobs", "show", job, "--json").out, up)
    up.send_signal(signal.SIGTERM)
    assert ended(up).code == 0


def test_serve_takes_deliveries_and_leaves_the_jobs_to_others(door: Box) -> None:
    process = door.start("serve")
    try:
        until(lambda: _answers(door), process)
        file = body(door, '{"id":"evt_1"}')
        assert door("deliveries", "send", "/hooks/shop", "--body", file).code == 0
        [queue] = door("queues", "ls", "--json").json
        assert queue["counts"]["ready"] == 1
        process.send_signal(signal.SIGINT)
        assert ended(process).code == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "args",
    [
        ("deliveries", "send", "/hooks/nowhere"),
        ("deliveries", "send", "/hooks/shop", "--to", "ftp://x"),
        ("deliveries", "send", "/hooks/shop", "--to", "http://[::1"),
        ("deliveries", "send", "/hooks/shop", "--body", "nowhere.json"),
        ("deliveries", "show", "0" * 32),
        ("deliveries", "replay", "0" * 32, "--yes"),
        ("deliveries", "verify"),
        ("deliveries", "ls", "--cursor", "abc"),
        ("up", "nowhere:app"),
        ("serve", "--host", "192.0.2.1"),
    ],
    ids=" ".join,
)
def test_b63_a_mistake_is_one_line(door: Box, args: tuple[str, ...]) -> None:
    answer = door(*args)

    assert answer.code in (1, 2, 3)
    assert is_one_line(answer)


@pytest.mark.parametrize("verb", ["show", "replay", "verify"])
def test_what_is_no_delivery_s_id_is_not_called_a_job_s(door: Box, verb: str) -> None:
    answer = door("deliveries", verb, "zz")

    assert answer.code == 1
    assert answer.err.startswith("relevo: 'zz' is not a delivery's id")


def test_the_map_begins_with_the_doors(door: Box) -> None:
    rows = door("map", "--json").json

    assert (rows[0]["role"], rows[0]["takes"]) == ("webhook", "POST /hooks/shop")
    assert rows[0]["function"] == "door.hook"
    assert "POST /hooks/shop" in door("map").out


def test_what_waits_in_the_spool_is_said(door: Box, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "relevo-spool.db") as db:
        db.execute("create table spool (id integer primary key autoincrement, data blob)")
        db.execute("insert into spool (data) values (x'00')")
    db.close()

    assert door("deliveries", "ls", "--json").json["spooled"] == 1
    assert "1 deliveries wait in the spool" in re.sub(r"\s+", " ", door("doctor").out)


def test_deliveries_that_failed_are_grouped_and_handled_after_the_fix(door: Box) -> None:
    """By endpoint and error; asked for, gone on after those that fail again, and written down."""
    source = door.folder / "door.py"
    head = "async def hook(delivery: Delivery, ctx: Intake) -> None:\n"
    source.write_text(source.read_text().replace(head, BROKEN))
    process = door.start("up")
    try:
        until(lambda: _answers(door), process)
        for number in range(4):
            file = body(door, f'{{"id":"evt_{number}"}}')
            sent = door("deliveries", "send", "/hooks/shop", "--body", file, "--json")
            assert sent.json["status"] == 200
    finally:
        process.kill()
        process.communicate()
    [group] = door("deliveries", "failed", "--json").json["groups"]
    assert (group["count"], group["endpoint"]) == (4, "shop:/hooks/shop")
    assert group["error"] == "RuntimeError: no stock of evt_3"
    told = door("deliveries", "ls", "--by-error", "--since", "1h").out
    assert "RuntimeError: no stock" in told
    listed = door("deliveries", "ls", "--state", "failed", "--since", "1h", "--json").json
    assert len(listed["deliveries"]) == 4
    assert not door("deliveries", "ls", "--since", "2030-01-01", "--json").json["deliveries"]
    shown = door("deliveries", "show", group["sample"]).out
    assert "run again by" in shown
    assert "scheduled, attempt 0 of 100, next in" in shown

    found = door("doctor", "--json").json
    [warned] = [one for one in found if "deliveries failed" in one["message"]]
    assert not [one for one in found if "no app here knows the queue" in one["message"]]
    assert (warned["level"], warned["subject"]) == ("warning", "shop:/hooks/shop")
    assert warned["message"].startswith("4 deliveries failed, the oldest ")
    assert ": RuntimeError: no stock of evt_3. Mend the function" in warned["message"]

    (door.folder / "fixed").touch()
    many = ("deliveries", "replay", "--state", "failed", "--endpoint", "shop:/hooks/shop")
    assert door(*many, "--since", "nonsense", "--yes").code == 2
    assert door("deliveries", "replay").code == 2
    assert door("deliveries", "replay", group["sample"], "--since", "1h", "--yes").code == 2
    dry = door(*many, "--since", "2h", "--dry-run", "--json").json
    assert [one["key"] for one in dry["deliveries"]] == [f"evt_{number}" for number in range(4)]
    assert door(*many, "--error", "no such words", "--yes").code == 1
    assert door(*many, "--since", "2h").code == 2  # nobody to ask
    first = door(*many, "--error", "no stock", "--limit", "2", "--yes", "--json")
    assert (first.code, first.json["handled"], first.json["failed"]) == (0, 2, 0)
    rest = door(*many, "--since", "2h", "--until", "0s", "--yes", "--note", "mended")
    assert rest.code == 1, (rest, dry, first)  # one stays broken
    assert "1 of 2 handled, 1 failed again, 0 skipped" in rest.out
    assert "RuntimeError: no stock of evt_3" in rest.out
    audits = door("audit", "ls", "--json").json["audits"]
    assert [row["verb"] for row in audits[:2]] == ["replay many", "replay"]
    assert audits[0]["note"].startswith("mended; state failed, endpoint shop:/hooks/shop, since")
    assert door("jobs", "ls", "--queue", "shop:events:save", "--json").json["jobs"]


BROKEN = """async def hook(delivery: Delivery, ctx: Intake) -> None:
    from pathlib import Path

    id = delivery.json["id"]
    if id == "evt_3" or not (Path(__file__).parent / "fixed").exists():
        raise RuntimeError(f"no stock of {id}")
"""


async def test_doctor_has_one_line_for_the_many_errors_of_an_endpoint(
    store: Store, box: Box
) -> None:
    for number in range(9):
        reason = f"its function failed: {'Key' if number % 3 else 'Value'}Error: {'x' * number}"
        await fail(store, f"k{number}", reason=reason)

    answer = await asyncio.to_thread(box, "doctor", "--store", store.dsn, "--json")
    [told] = [one["message"] for one in answer.json if "failed, the oldest" in one["message"]]
    assert told.startswith("9 deliveries failed, the oldest ")
    assert ": 9 errors, the most frequent (1): " in told
    assert f"replay --state failed --endpoint {SOURCE}`" in told
