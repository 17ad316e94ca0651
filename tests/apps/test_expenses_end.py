"""Expenses from end to end: over HTTP, with duplicates, forgeries, media, faults, and by QStash."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from relevo import Relevo, SettingsError, sources
from relevo.apps import qstash
from relevo.apps.expenses import app, export, links, records, settings, webhooks
from relevo.apps.expenses.queues import Incoming, ProcessMessage
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.cli import run
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.simulators import World, whatsapp
from relevo.simulators import qstash as pretended
from relevo.simulators.traffic import expenses as traffic
from relevo.testing import ManualClock, assert_enqueued, deliver, drain, until, working

KEYS = ("sig_current_key_of_the_tests_0123456789", "sig_next_key_of_the_tests_0123456789abc")
PUBLIC = "https://expenses.example.com"
PROCESS = "/api/process-message"
LOCAL = {
    "QSTASH_TOKEN": "t",
    "QSTASH_CURRENT_SIGNING_KEY": KEYS[0],
    "QSTASH_NEXT_SIGNING_KEY": KEYS[1],
    "VERCEL_URL": "http://127.0.0.1:8700",
}


@asynccontextmanager
async def opened(
    folder: Path, *more: Any, clock: ManualClock | None = None
) -> AsyncGenerator[tuple[Relevo, str]]:
    url = f"sqlite:///{folder / 'expenses.db'}"
    async with (
        Relevo(url, apps=[app, *more], clock=clock) as relevo,
        serving(relevo.asgi(), listen("127.0.0.1", 0), grace=1) as base,
    ):
        yield relevo, base


async def cents(relevo: Relevo) -> dict[str, int]:
    async with relevo.transaction() as tx:
        found = await tx.execute(select(records.Expense.message_id, records.Expense.cents))
        return {row.message_id: row.cents for row in found}


async def replied(relevo: Relevo, count: int) -> bool:
    async with relevo.transaction() as tx:
        rows = await tx.scalars(select(records.Answer))
        return sum(row.wamid is not None for row in rows) == count


@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.soak)])
async def test_many_messages_with_everything_that_goes_wrong(
    world: World, tmp_path: Path, count: int
) -> None:
    """F44: each expense once, each reply once."""
    world.faults.add("whatsapp", "send", "lost", rate=0.1, times=3)
    world.faults.add("whatsapp", "send", "error", rate=0.1, times=4)
    world.faults.add("whatsapp", "media", "error", rate=0.2, times=3)
    world.faults.add("whatsapp", "download", "down", rate=0.2, times=3)
    world.faults.add("gemini", "generate", "error", rate=0.1, times=2)
    async with opened(tmp_path) as (relevo, base), working(relevo):
        world.target = base
        sent = await traffic.run(world, base, count, seed=3)
        await until(lambda: replied(relevo, count), timeout="60s", what="all replies")
        assert await cents(relevo) == sent.cents
        counts = Counter(entry.key for entry in world.ledger.find("whatsapp", "send"))
        assert counts == Counter(sent.replies)
        assert sent.duplicates > count // 10
        assert sent.forged > count // 40
        await world.courier.rest()


async def test_by_qstash_it_is_the_same(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real SDK, a server that speaks its protocol, both keys, and the same pipeline."""
    for name, value in (
        ("QSTASH_TOKEN", "a-token-of-the-tests"),
        ("QSTASH_CURRENT_SIGNING_KEY", KEYS[0]),
        ("QSTASH_NEXT_SIGNING_KEY", KEYS[1]),
        ("QSTASH_ALLOW", "127.0.0.1"),
        ("VERCEL_URL", PUBLIC),
    ):
        monkeypatch.setenv(name, value)
    listener = listen("127.0.0.1", 0)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setenv("QSTASH_URL", base)
    monkeypatch.setenv("QSTASH_REWRITE", f"{PUBLIC}={base}")
    url = f"sqlite:///{tmp_path / 'expenses.db'}"
    async with (
        Relevo(url, apps=[app, qstash.app]) as relevo,
        serving(relevo.asgi(), listener, grace=1),
        working(relevo),
    ):
        world.target = base
        sent = await traffic.run(world, base, 15, seed=5)
        await until(lambda: replied(relevo, 15), timeout="40s", what="15 replies")
        assert await cents(relevo) == sent.cents
        counts = Counter(entry.key for entry in world.ledger.find("whatsapp", "send"))
        assert counts == Counter(sent.replies)
        async with relevo.transaction() as tx:
            done = list(await tx.scalars(select(qstash.records.Message.state)))
        assert len(done) == 15
        await world.courier.rest()


async def test_a_publish_whose_answer_is_lost_and_a_message_that_comes_twice(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44."""
    for name, value in pretended.credentials().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("VERCEL_URL", PUBLIC)
    world.faults.add("qstash", "publish", "lost", times=1)
    world.faults.add("qstash", "publish", "duplicate", times=3)
    async with opened(tmp_path) as (relevo, base), working(relevo):
        world.target = base
        pretended.account(world).key = pretended.NEXT
        sent = await traffic.run(world, base, 5, seed=9)
        await until(lambda: replied(relevo, 5), timeout="40s", what="5 replies")
        assert await cents(relevo) == sent.cents
        assert world.ledger.count("qstash", "publish") == 5
        counts = Counter(entry.key for entry in world.ledger.find("whatsapp", "send"))
        assert counts == Counter(sent.replies)
        await world.courier.rest()


async def test_qstash_is_known_by_either_key_and_bound_to_our_url(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C05, F44: redelivered while running and after success, there is one order."""
    monkeypatch.setenv("QSTASH_CURRENT_SIGNING_KEY", KEYS[0])
    monkeypatch.setenv("QSTASH_NEXT_SIGNING_KEY", KEYS[1])
    monkeypatch.setenv("VERCEL_URL", "expenses.example.com")
    body = (
        b'{"id":"wamid.Q","kind":"text","sent_at":1,"phone_number_id":"1","wa_id":"5491100000001",'
        b'"text":"pan 500"}'
    )
    async with opened(tmp_path) as (relevo, _):
        mine = relevo.use(ExpensesSettings).process_url
        assert mine == PUBLIC + PROCESS

        async def call(key: str, url: str, id: str, sent: bytes = body) -> int:
            from relevo.pairs import Headers
            from relevo.webhook import Delivery

            made = Delivery(
                path=PROCESS, headers=Headers(), body=sent, received_at=relevo.clock.now()
            )
            signed = sources.qstash(key, key, url).scheme.sign(made, relevo.clock.now())
            token = signed.headers["upstash-signature"]
            headers = {"upstash-signature": token, "upstash-message-id": id}
            answer = await deliver(relevo, PROCESS, body=sent, headers=headers, sign=False)
            return answer.status

        assert await call("sig_another_key_of_the_tests_0123456789", mine, "m0") == 401
        assert await call(KEYS[0], "https://elsewhere.example.com" + PROCESS, "m0") == 401
        assert await call(KEYS[0], mine, "m1") == 200
        assert await call(KEYS[1], mine, "m1") == 200
        assert await call(KEYS[1], mine, "m2") == 200
        assert await call(KEYS[0], mine, "m3", b"{}") == 422
        assert await call(KEYS[0], mine, "m4", b"\xff") == 422
        await assert_enqueued(relevo, ProcessMessage, times=1)
        await drain(relevo)
        assert await call(KEYS[0], mine, "m5") == 200
        await drain(relevo)
        assert world.ledger.count("whatsapp", "send") == len(await cents(relevo)) == 1


async def test_without_keys_the_door_of_qstash_is_closed(world: World, tmp_path: Path) -> None:
    async with opened(tmp_path) as (relevo, _):
        made = Incoming(id="w", kind="text", sent_at=1, phone_number_id="1", wa_id="1", text="x 5")
        headers = {"upstash-message-id": "m", "upstash-signature": "a.b.c"}
        answer = await deliver(relevo, PROCESS, json=made, headers=headers, sign=False)
        assert answer.status == 401
        assert isinstance(webhooks.qstash(relevo.use).scheme, webhooks.Closed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"WHATSAPP_APP_SECRET": ""}, "WHATSAPP_APP_SECRET is missing"),
        ({"WHATSAPP_VERIFY_TOKEN": ""}, "WHATSAPP_VERIFY_TOKEN is missing"),
        ({"QSTASH_TOKEN": "t", "VERCEL_URL": "x.example"}, "QSTASH_CURRENT_SIGNING_KEY"),
        (
            {
                "QSTASH_TOKEN": "t",
                "QSTASH_CURRENT_SIGNING_KEY": "a",
                "QSTASH_NEXT_SIGNING_KEY": "b",
            },
            "VERCEL_URL",
        ),
        (LOCAL, "QSTASH_URL=http://127.0.0.1:8700 for relevo's own QStash"),
        (LOCAL | {"QSTASH_URL": "http://127.0.0.1:8700"}, "QSTASH_ALLOW=127.0.0.1 is missing"),
        (
            LOCAL | {"QSTASH_URL": "http://127.0.0.1:8700", "QSTASH_ALLOW": "localhost,10.0.0.0/8"},
            "QSTASH_ALLOW=127.0.0.1 is missing",
        ),
        ({"WHATSAPP_GRAPH_VERSION": "../me"}, "WHATSAPP_GRAPH_VERSION"),
        ({"EXPENSES_COUNTRY": "ZZ"}, "EXPENSES_COUNTRY"),
        ({"VERCEL_URL": "https://x.example/?a=1"}, "VERCEL_URL"),
    ],
    ids=range(10),
)
def test_what_is_missing_or_wrong_is_named(change: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.read(whatsapp.environment("http://127.0.0.1:1") | change)


@pytest.mark.parametrize(
    "more",
    [
        {"QSTASH_ALLOW": "127.0.0.1"},
        {"QSTASH_ALLOW": "10.0.0.0/8, 127.0.0.0/8"},
        {"QSTASH_ALLOW": "127.0.0.1:8700"},
        {"QSTASH_DEV": "1"},
        {"QSTASH_URL": "http://127.0.0.1:8080"},  # another server, which has rules of its own
        {"VERCEL_URL": "expenses.example.com"},
    ],
    ids=range(6),
)
def test_where_qstash_may_call_us_we_start(more: dict[str, str]) -> None:
    told = LOCAL | {"QSTASH_URL": "http://127.0.0.1:8700"} | more
    found = settings.read(whatsapp.environment("http://127.0.0.1:1") | told)
    assert found.qstash_token == "t"


async def test_a_link_opens_ones_own_month_for_a_day(world: World, tmp_path: Path) -> None:
    """C36"""
    async with opened(tmp_path) as (relevo, base):
        for text in ("pan 500", "uber 1.000", "=SUM(A1) 20 usd"):
            value = whatsapp.message(world, whatsapp.text(text))
            await deliver(relevo, "/api/webhook", body=whatsapp.envelope(value))
        value = whatsapp.message(world, whatsapp.text("exportar"))
        await deliver(relevo, "/api/webhook", body=whatsapp.envelope(value))
        await drain(relevo)
        link = next(
            "/my/" + entry.detail["text"].split("/my/")[1]
            for entry in world.ledger.find("whatsapp", "send")
            if "link=" in entry.detail["text"]
        )
        async with httpx2.AsyncClient(base_url=base) as client:
            page = await client.get(link)
            assert page.status_code == 200
            assert "ARS 1.500,00" in page.text
            assert "<svg" in page.text
            spanish = await client.get(f"{link}&lang=es")
            assert "Por categoría" in spanish.text
            got = await client.get(f"{link}&format=csv")
            cells = list(csv.reader(io.StringIO(got.text.removeprefix("\ufeff"))))
            assert len(cells) == 4
            assert all(not cell.startswith(("=", "+", "-", "@")) for row in cells for cell in row)
            assert any(cell.startswith("'=SUM(") for row in cells for cell in row)
            book = await client.get(f"{link}&format=xlsx")
            assert book.content[:2] == b"PK"
            assert (await client.get(f"{link}x")).status_code == 404
            assert (await client.get("/my/expenses")).status_code == 404
            people = await client.get("/expenses")  # on loopback and without a password
            assert "Ana" in people.text
            path = re.search(r"/expenses/[0-9a-f]{32}", people.text)
            assert path is not None
            assert "ARS 1.500,00" in (await client.get(path[0])).text
            assert (await client.get(f"{path[0]}?month=2020-01")).status_code == 200
            for month in ("9999-12", "0001-01", "soon"):
                odd = await client.get(f"{path[0]}?month={month}", headers={"accept": "text/html"})
                assert odd.status_code == 400
                assert "de los años 2000 a 2100" in odd.text  # as it was read last
            for month in ("2000-01", "2100-12"):
                assert (await client.get(f"{path[0]}?month={month}")).status_code == 200
            assert (await client.get("/expenses/nobody")).status_code == 404


async def test_a_person_changes_and_deletes_what_is_theirs_by_the_link(
    world: World, tmp_path: Path
) -> None:
    """C36"""
    async with opened(tmp_path) as (relevo, base), httpx2.AsyncClient(base_url=base) as client:
        for sender, text in (("5491100000001", "pan 500"), ("5491100000002", "vino 900")):
            value = whatsapp.message(world, whatsapp.text(text), sender=sender)
            await deliver(relevo, "/api/webhook", body=whatsapp.envelope(value))
            await drain(relevo)
        value = whatsapp.message(world, whatsapp.text("mis gastos"), sender="5491100000001")
        await deliver(relevo, "/api/webhook", body=whatsapp.envelope(value))
        await drain(relevo)
        link = "/my/" + world.ledger.find("whatsapp", "send")[-1].detail["text"].split("/my/")[1]
        page = (await client.get(link)).text
        assert "vino" not in page
        [edit] = re.findall(r'href="([^"]+edit=[0-9a-f]+)"', page)
        shown = (await client.get(html.unescape(edit))).text
        assert 'value="500,00"' in shown
        token = re.findall(r'name="csrf" value="(\w+)"', shown)[0]
        path = html.unescape(re.findall(r'action="([^"]+)"', shown)[0])
        fields = {
            "csrf": token,
            "amount": "1.250,50",
            "currency": "USD",
            "category": "health",
            "description": "<b>pan</b>",
            "day": "2026-03-01",
        }
        for wrong in (
            {"amount": "12,5,5"},
            {"amount": "-5"},
            {"amount": "0"},
            {"day": "2999-01-01"},
            {"day": "soon"},
            {"currency": "XXX"},
            {"category": "bribes"},
        ):
            refused = await client.post(path, data=fields | wrong)
            assert refused.status_code == 400, wrong
        forged = await client.post(path, data=fields | {"csrf": "0" * 40})
        assert forged.status_code == 403
        assert await cents_of(relevo) == {"pan": (50_000, "ARS"), "vino": (90_000, "ARS")}

        saved = await client.post(path, data=fields)
        assert saved.status_code == 303
        assert (await client.get(saved.headers["location"])).status_code == 200
        assert await cents_of(relevo) == {"<b>pan</b>": (125_050, "USD"), "vino": (90_000, "ARS")}
        march = (await client.get(f"{link}&month=2026-03")).text
        assert "USD 1.250,50" in march
        assert "&lt;b&gt;pan&lt;/b&gt;" in march

        async with relevo.transaction() as tx:
            of_another = await tx.scalar(
                select(records.Expense.id).where(records.Expense.description == "vino")
            )
        theirs = re.sub(r"/my/expenses/[0-9a-f]+", f"/my/expenses/{of_another}", path)
        assert (await client.post(theirs, data=fields)).status_code == 404
        unsigned = path.split("?")[0]
        assert (await client.post(unsigned, data=fields)).status_code == 404
        assert (await client.post(path, data=fields | {"act": "delete"})).status_code == 303
        assert await cents_of(relevo) == {"vino": (90_000, "ARS")}
        assert (await client.post(path, data=fields)).status_code == 404


async def cents_of(relevo: Relevo) -> dict[str, tuple[int, str]]:
    async with relevo.transaction() as tx:
        found = await tx.scalars(select(records.Expense))
        return {
            each.description: (each.cents, each.currency)
            for each in found
            if each.deleted_at is None
        }


async def test_staff_go_from_month_to_month_and_leave_none_out(
    world: World, tmp_path: Path
) -> None:
    async with opened(tmp_path) as (relevo, base), httpx2.AsyncClient(base_url=base) as client:
        path = await _page_of_ana(relevo, world, client)
        seen = ["2028-12"]
        for _ in range(12):
            page = await client.get(f"{path}?month={seen[-1]}")
            seen += re.findall(r'month=([0-9-]+)" rel="prev"', page.text)
    assert seen == [*(f"2028-{month:02}" for month in range(12, 0, -1)), "2027-12"]


async def test_staff_see_the_month_that_it_is_where_the_person_lives(
    world: World, tmp_path: Path, clock: ManualClock
) -> None:
    new_year = datetime(2027, 1, 1, 1, 30, tzinfo=UTC)  # and still December in Argentina
    opening = opened(tmp_path, clock=clock)
    async with opening as (relevo, base), httpx2.AsyncClient(base_url=base) as client:
        path = await _page_of_ana(relevo, world, client)
        clock.offset += new_year - clock.now()
        assert "December 2026" in (await client.get(path)).text
        clock.advance("2h")
        assert "January 2027" in (await client.get(path)).text


async def _page_of_ana(relevo: Relevo, world: World, client: httpx2.AsyncClient) -> str:
    value = whatsapp.message(world, whatsapp.text("pan 500"))
    await deliver(relevo, "/api/webhook", body=whatsapp.envelope(value))
    await drain(relevo)
    path = re.search(r"/expenses/[0-9a-f]{32}", (await client.get("/expenses")).text)
    assert path is not None
    return path[0]


async def test_staff_log_in_first(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", "a password of the tests")
    async with opened(tmp_path) as (_, base), httpx2.AsyncClient(base_url=base) as client:
        assert (await client.get("/expenses")).status_code == 401


def test_a_link_cannot_be_made_stretched_or_kept() -> None:
    now = datetime(2026, 3, 13, tzinfo=UTC)
    mine = links.Link("u", date(2026, 3, 1), date(2026, 4, 1))
    token = links.make(b"key", mine, now)
    assert links.read(b"key", token, now) == mine
    assert links.read(b"key", token, now + timedelta(hours=24)) is None
    assert links.read(b"other", token, now) is None
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert links.read(b"key", changed, now) in (None, mine if changed == token else None)
    for odd in ("", "x", "é" * 20, "A" * 600, "\ud800"):
        assert links.read(b"key", odd, now) is None


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "|x", "%x", "\r\n=1", "=cmd|' /C calc'!A0"]
)
def test_no_cell_is_a_formula(text: str) -> None:
    assert export.safe(text).startswith("'")


def test_plain_cells_stay_as_they_are() -> None:
    assert export.safe("café con Ana") == "café con Ana"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["read", "pan 500", "--json"], 0, '"amount": "500"'),
        (["read", "tacos 1,500", "--country", "MX", "--json"], 0, '"currency": "MXN"'),
        (["read", "pan -5", "--json"], 1, '"why": "number"'),
        (["read", "pan 5", "--country", "ZZ"], 2, ""),
        (["read", "borrar último 500", "--json"], 1, '"why": "undo"'),
    ],
    ids=range(5),
)
def test_a_person_can_ask_how_a_text_is_read(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["expenses", *words]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["say", "caf\udcff 502"], "not text in UTF-8"),  # as Python hands us bytes of a shell
        (["read", "caf\udcff 502"], "not text in UTF-8"),
        (["say", "pan 500", "--from", "abc"], "--from is a number in digits alone"),
        (["say", "pan 500", "--from", ""], "--from is a number in digits alone"),
        (["say", "pan 500", "--to", "http://[::1"], "--to is not an address"),
        (["say", "pan 500", "--to", "http://127.0.0.1:1\n"], "--to is not an address"),
        (["say", "pan 500", "--to", "localhost"], "--to is not an address"),
        (["month", "ana", "--month", "9999-12"], "of the years 2000 to 2100"),
        (["month", "ana", "--month", "0001-01"], "of the years 2000 to 2100"),
        (["month", "ana", "--month", "march"], "of the years 2000 to 2100"),
    ],
    ids=range(10),
)
def test_what_cannot_be_meant_is_refused_in_a_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["expenses", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
    assert err.count("\n") == 1
