"""The groups flows, breakers, pollers, schedules and outbox, as people and scripts use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from relevo import App, Command, Context, Flow, Poll, Relevo
from relevo.cli.graph import drawn
from relevo.desk import Desk
from relevo.ids import new_id
from relevo.job import After, Failure, NewJob, State
from relevo.outcome import behind
from relevo.store import Effect, Filter, SqlStore, Store
from relevo.stores import open_store
from relevo.testing import drain
from tests.conformance.steps import add, end, put, take
from tests.conformance.steps import job as new_job
from tests.edges.box import Box, is_one_line, state_of
from tests.servers.redis import RedisServer

CANARY = "canary-hunter22"
EMAIL = "ana.perez@example.com"
MENDED: set[str] = set()
"""What can be read after all."""


class Read(Command, queue="test:cortex:read", attempts=1):
    what: str


class Share(Command, queue="test:cortex:share", attempts=1, key="{what}", unique="unfinished"):
    what: str


class Sum(Command, queue="test:cortex:sum", attempts=1):
    n: int = 0


async def read(order: Read) -> str:
    if order.what.startswith("bad") and order.what not in MENDED:
        raise ValueError("cannot read it")
    return order.what


async def add_up(order: Sum) -> None:
    pass


Work = Callable[[Relevo], Coroutine[Any, Any, Any]]


def engine(box: Box, work: Work) -> Any:
    """Do something with an engine on the box's store."""

    async def whole() -> Any:
        app = App("test", workers=[read, add_up])
        async with Relevo(box.url, apps=[app]) as relevo:
            return await work(relevo)

    return asyncio.run(whole())


def started(box: Box, flow: Flow, *, key: str | None = None, work: bool = True) -> str:
    async def whole(relevo: Relevo) -> str:
        id = (await relevo.start(flow, key=key)).id
        if work:
            await drain(relevo)
        return id

    return engine(box, whole)


def small(what: str = "bad") -> Flow:
    flow = Flow("cortex")
    first = flow.add(Read("first"), name="first")
    both = [
        flow.add(Read("a"), name="a", after=[first]),
        flow.add(Read(what), name="b", after=[first]),
    ]
    flow.add(Sum(), name="sum", after=both)
    return flow


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


# flows


def test_a_flow_is_drawn_with_shared_nodes_marked(box: Box) -> None:
    id = started(box, small(), key="42")

    text = lines(box("flows", "show", "42").out)

    assert text[text.index("") + 1 :] == [
        "sum  dead  Sum",
        "├─ a  done  Read",
        "│  └─ first  done  Read, shared",
        "└─ b  dead  Read, ValueError: cannot read it",
        "   └─ first  done  Read, shared, drawn above",
    ]
    shown = box("flows", "show", id, "--json").json
    assert (shown["id"], shown["key"], shown["state"]) == (id, "cortex/42", "dead")
    assert shown["counts"] == {"done": 2, "dead": 2}
    assert {node["node"]: node["layer"] for node in shown["nodes"]} == {
        "first": 0,
        "a": 1,
        "b": 1,
        "sum": 2,
    }


def test_a_node_that_ended_well_shows_no_error_of_before(box: Box) -> None:
    started(box, small("bad at first"), key="42")
    MENDED.add("bad at first")
    assert box("flows", "retry", "42").code == 0
    engine(box, drain)

    text = lines(box("flows", "show", "42").out)

    assert "└─ b  done  Read" in text
    assert "cannot read it" not in "\n".join(text)


def test_a_thousand_equal_nodes_take_a_few_lines(box: Box) -> None:
    flow = Flow("wide")
    many = [
        flow.add(Read("bad" if n % 250 == 0 else "a"), name=f"r{n}", on_failure="continue")
        for n in range(1_000)
    ]
    flow.add(Sum(), name="sum", after=many)
    started(box, flow, key="1")

    text = lines(box("flows", "show", "wide/1").out)

    assert text[text.index("") + 1 :] == [
        "sum  done  Sum",
        "├─ 4 × Read  dead  each: r0 … r750, may fail, ValueError: cannot read it",
        "└─ 996 × Read  done  each: r1 … r999, may fail",
    ]
    assert len(box("flows", "show", "wide/1", "--json").json["nodes"]) == 1_001
    told = lines(box("flows", "explain", "wide/1").out)
    assert len(told) == 2
    assert "4 × r0 …" in told[1]


def test_a_chain_of_a_thousand_takes_a_line(box: Box) -> None:
    flow = Flow("deep")
    node = None
    for n in range(1_000):
        node = flow.add(Sum(n), name=f"s{n}", after=[node] if node else [])
    id = started(box, flow, work=False)

    text = lines(box("flows", "show", id).out)

    assert text[-2:] == ["999 × Sum  waiting  one after the other: s999 … s1", "└─ s0  ready  Sum"]


async def test_a_drawing_ends_however_wild_the_flow_is(tmp_path: Path) -> None:
    """A ladder whose every rung differs: no folding helps, and depth is cut."""
    store = open_store(f"sqlite:///{tmp_path / 'relevo.db'}")
    await store.migrate()
    await store.open()
    flow, below = new_id(), ()
    for n in range(600):
        one = new_job(f"app:module:q{n % 7}", kind=f"K{n}", flow=flow, node=f"n{n}", after=below)
        two = new_job(kind=f"K{n}", flow=flow, node=f"m{n}", after=below)
        await put(store, one, two)
        below = (After(one.id), After(two.id))
    text = [str(line) for line in drawn(await Desk(store).flow(flow))]
    await store.close()

    assert 50 < len(text) <= 501
    assert any("--json has" in line for line in text)


def test_states_are_coloured_on_a_terminal_only(box: Box) -> None:
    id = started(box, small())
    assert "\x1b" not in box("flows", "show", id).out
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard")
    for line in drawn(box.do(lambda store: Desk(store).flow(id))):
        console.print(line)
    assert "\x1b[31mdead\x1b[0m" in screen.getvalue()


def test_a_node_that_joined_another_flows_job_is_shown(box: Box) -> None:
    ids: list[str] = []
    for name in ("one", "two"):
        flow = Flow(name)
        flow.add(Sum(), name="sum", after=[flow.add(Share("a"), name=f"{name}-share")])
        ids.append(started(box, flow, work=False))

    assert "joined" not in box("flows", "show", ids[0]).out
    row = lines(box("flows", "show", ids[1]).out)[-1].split()
    [joined] = box("flows", "show", ids[1], "--json").json["joined"]

    assert row == ["two-share", "sum", "ready", joined["id"], ids[0]]
    assert (joined["node"], joined["flow"]) == ("two-share", ids[0])
    reasons = box("flows", "explain", ids[1], "--json").json["reasons"]
    assert reasons[0]["waits_for"] == ["two-share"]


def test_flows_are_listed(box: Box) -> None:
    dead, ready = started(box, small()), started(box, small("b"), key="7", work=False)

    rows = box("flows", "ls", "--json").json["flows"]

    assert [(row["id"], row["state"], row["key"]) for row in rows] == [
        (ready, "ready", "cortex/7"),
        (dead, "dead", None),
    ]
    assert rows[0]["counts"] == {"ready": 1, "waiting": 3}
    [row] = box("flows", "ls", "--unfinished", "--json").json["flows"]
    assert row["id"] == ready
    first = box("flows", "ls", "--limit", "1", "--json").json
    assert [row["id"] for row in first["flows"]] == [ready]
    second = box("flows", "ls", "--limit", "1", "--cursor", first["cursor"], "--json").json
    assert [row["id"] for row in second["flows"]] == [dead]
    text = box("flows", "ls", "--limit", "1")
    assert ready in text.out
    assert "there may be more: --cursor" in text.err


def test_a_flow_is_explained(box: Box) -> None:
    id = started(box, small(), key="42")

    text = box("flows", "explain", "42").out
    told = {row["node"]: row for row in box("flows", "explain", id, "--json").json["reasons"]}

    assert "ValueError: cannot read it" in text
    assert f"relevo flows retry {id}" in text
    assert told["sum"]["waits_for"] == ["b"]
    done = started(box, small("fine"))
    assert "every node ended well" in box("flows", "explain", done).out


def test_a_flow_is_cancelled_and_retried(box: Box) -> None:
    id = started(box, small("b"), work=False)

    answer = box("flows", "cancel", id, "--note", "not today", "--json")
    assert answer.code == 0
    assert answer.json == {"id": id, "changed": ["sum", "a", "b", "first"], "refused": []}
    again = box("flows", "cancel", id)
    assert (again.code, "nothing of it" in again.out) == (1, True)
    assert "4 nodes retried: first, a, b, sum" in box("flows", "retry", id).out
    assert "not today" in box("audit", "ls").out
    engine(box, drain)
    assert box("flows", "show", id, "--json").json["state"] == "done"
    assert box("flows", "retry", id).code == 1


def test_a_single_node_is_retried(box: Box) -> None:
    id = started(box, small())
    answer = box("flows", "retry", id, "--node", "b", "--json")
    assert answer.json == {"id": id, "changed": ["b"], "refused": []}
    assert box("flows", "retry", id, "--node", "nobody").code == 1


def test_a_flow_s_payloads_are_masked(box: Box) -> None:
    """C20"""
    secret = json.dumps({"password": CANARY, "email": EMAIL}).encode()

    async def work(store: Store) -> str:
        flow = new_id()
        await put(store, new_job(flow=flow, node="one", payload=secret))
        [lease] = await take(store)
        said = Failure(type="Boom", message=f"no mailbox {EMAIL}", trace=f"at {EMAIL}")
        await end(store, lease, State.DEAD, failure=said)
        return flow

    flow = box.do(work)
    for args in (("flows", "show", flow), ("flows", "explain", flow), ("flows", "ls")):
        for form in ((), ("--json",)):
            answer = box(*args, *form)
            assert CANARY not in answer.out + answer.err
            assert EMAIL not in answer.out + answer.err
    assert CANARY in box("flows", "show", flow, "--reveal", "--json").out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("flows", "show", "nothing"), 1),
        (("flows", "explain", "01a1e1ae0000700080000000000000ff"), 1),
        (("flows", "cancel", "../../etc/passwd"), 1),
        (("flows", "ls", "--cursor", "tampered"), 2),
        (("breakers", "show", "nobody"), 1),
        (("breakers", "close", "nobody"), 1),
        (("breakers", "open", ""), 2),
        (("pollers", "run", "nobody"), 1),
        (("pollers", "show", "nobody"), 1),
        (("schedules", "pause", "nobody"), 1),
        (("outbox", "ls", "--store", "redis://127.0.0.1:1/0"), 2),
        (("outbox", "ls", "--database", "mysql://x:y@z/a", "--store", "redis://127.0.0.1:1/0"), 2),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else str(value),
)
def test_what_is_not_there_is_one_line(box: Box, args: tuple[str, ...], code: int) -> None:
    answer = box(*args)
    assert answer.code == code, answer
    assert is_one_line(answer), answer


# breakers


def test_breakers_are_turned_by_hand(box: Box) -> None:
    assert box("breakers", "ls", "--json").json == []
    assert (
        box("breakers", "open", "supplier:28", "--note", "they are down")
        .out.strip()
        .endswith("is open")
    )

    async def park(store: Store) -> str:
        id = await add(store)
        [lease] = await take(store)
        await end(store, lease, State.PARKED, park=behind("supplier:28"))
        return id

    id = box.do(park)
    [row] = box("breakers", "ls", "--json").json
    assert (row["name"], row["parked"], row["circuit"]["state"]) == ("supplier:28", 1, "open")
    assert datetime.fromisoformat(row["circuit"]["until"]).tzinfo is not None
    assert "they are down" in box("breakers", "show", "supplier:28").out
    assert "one job tries" in box("breakers", "probe", "supplier:28").out
    assert box("breakers", "close", "supplier:28", "--json").json["circuit"]["state"] == "closed"
    assert state_of(box, id) in (State.READY, State.SCHEDULED)
    assert "supplier:28" in box("breakers", "ls").out
    verbs = [row["verb"] for row in box("audit", "ls", "--json").json["audits"]]
    assert verbs == ["breaker close", "breaker probe", "breaker open"]


# pollers and schedules


def test_pollers_are_listed_paused_and_run(box: Box) -> None:
    box.environment["RELEVO_LOG_LEVEL"] = "error"
    _ensure(box)

    [row] = box("pollers", "ls", "--json").json
    assert (row["name"], row["function"], row["is_paused"]) == ("rates:1", "shop.poll_rates", False)
    assert box("pollers", "pause", "rates:1", "--json").json["changed"] is True
    assert "was paused already" in box("pollers", "pause", "rates:1").out
    assert "paused" in box("pollers", "ls").out
    assert box("pollers", "run", "rates:1").code == 1
    assert "rates:1 is on" in box("pollers", "resume", "rates:1").out
    assert "was not paused" in box("pollers", "resume", "rates:1").out
    assert "due now" in box("pollers", "run", "rates:1").out
    assert box("pollers", "show", "rates:1", "--json").json["queue"] == "shop:pollers:poll-rates"
    assert "shop.poll_rates" in box("pollers", "show", "rates:1").out


def test_pollers_show_what_they_put_aside_and_whether_they_are_alive(box: Box) -> None:
    box.environment["RELEVO_LOG_LEVEL"] = "error"
    app = App("bots")

    @app.poller("bot:1", every="1h")
    async def pull(poll: Poll, ctx: Context) -> None:
        await poll.bad(b"\xff{", "it is no JSON")

    async def turn() -> None:
        async with Relevo(box.url, apps=[app]) as relevo:
            await drain(relevo, until=lambda: has_dead(relevo))

    async def has_dead(relevo: Relevo) -> bool:
        return await relevo.store.count(Filter(states=frozenset({State.DEAD}))) > 0

    asyncio.run(turn())

    [row] = box("pollers", "ls", "--json").json
    assert (row["name"], row["bad"], row["is_silent"]) == ("bot:1", 1, False)
    assert "alive" in box("pollers", "ls").out
    shown = box("pollers", "show", "bot:1", "--json").json
    [item] = shown["bad_items"]
    assert item["reason"] == "it is no JSON"
    assert item["job"] in box("pollers", "show", "bot:1").out
    assert "BadItem: it is no JSON" in box("dead", "ls").out
    assert box("dead", "discard", item["job"], "--note", "seen", "--yes").code == 0
    assert box("pollers", "show", "bot:1", "--json").json["bad_items"] == []


def test_schedules_show_their_next_ticks_in_their_zone(box: Box) -> None:
    _ensure(box)

    [row] = box("schedules", "ls", "--app", "shop:app", "--json").json
    assert (row["name"], row["cron"], row["tz"]) == (
        "shop.remind",
        "0 6 * * *",
        "America/Mexico_City",
    )
    ticks = [datetime.fromisoformat(tick) for tick in row["ticks"]]
    assert len(ticks) == 3
    assert {(tick.hour, tick.minute, tick.tzname()) for tick in ticks} == {(6, 0, "UTC-06:00")}
    text = box("schedules", "ls", "--app", "shop").out
    assert "06:00 -0600" in text
    assert (
        "0 6 * * * America/Mexico_City"
        in box("schedules", "show", "shop.remind", "--app", "shop").out
    )
    assert box("schedules", "ls", "--json").json[0]["cron"] is None
    assert "due now" in box("schedules", "run", "shop.remind").out
    assert "is paused" in box("schedules", "pause", "shop.remind").out
    assert box("schedules", "resume", "shop.remind").code == 0


def _ensure(box: Box) -> None:
    """Store the jobs of the box's pollers and schedules."""
    from relevo.cli.loading import load

    async def whole() -> None:
        async with Relevo(box.url, apps=load(["shop:app"])) as relevo:
            await relevo.recurring.ensure()

    asyncio.run(whole())


# limits


def test_limits_and_breakers_are_shown_where_the_app_is_named(box: Box) -> None:
    (box.folder / "cars.py").write_text(
        "from relevo import App, Command, per_key\n"
        "app = App('cars')\n"
        "class Book(Command, queue='cars:suppliers:book', limit=per_key('s:{s}', 4), rate='60/m',\n"
        "           breaker='supplier:{s}'):\n"
        "    s: int\n"
        "class Tell(Command, queue='cars:guests:tell', fair='g:{g}'):\n"
        "    g: int\n"
        "class Log(Command, queue='cars:guests:log', ordered='g:{g}', limit=2):\n"
        "    g: int\n"
        "@app.worker\n"
        "async def book(order: Book) -> None: ...\n"
        "@app.worker\n"
        "async def tell(order: Tell) -> None: ...\n"
        "@app.worker\n"
        "async def log(order: Log) -> None: ...\n"
    )
    box.do(lambda store: add(store, "cars:suppliers:book"))

    rows = {row["takes"]: row for row in box("map", "--app", "cars:app", "--json").json}
    assert rows["Book"]["limits"] == "4 at once per s:{s}, 60/m"
    assert rows["Book"]["breaker"] == "supplier:{s}"
    assert rows["Tell"]["limits"] == "in turns per g:{g}"
    assert rows["Log"]["limits"] == "2 at once, in order per g:{g}"
    [row] = box("queues", "ls", "--app", "cars:app", "--json").json
    assert row["limits"] == "4 at once per s:{s}, 60/m"
    assert "4 at once per s:{s}, 60/m" in box("queues", "ls", "--app", "cars:app").out
    assert "limits" not in box("queues", "ls").out


def test_doctor_warns_of_a_window_that_is_shorter_than_the_backoff(box: Box) -> None:
    (box.folder / "slow_cars.py").write_text(
        "from relevo import App, Breaker, Command, exponential\n"
        "app = App('cars')\n"
        "slow = exponential('1m', cap='10m')\n"
        "class Book(Command, queue='cars:suppliers:book', attempts=6, backoff=slow,\n"
        "           breaker='supplier:{s}'):\n"
        "    s: int\n"
        "class Ask(Command, queue='cars:suppliers:ask', attempts=6, backoff=slow,\n"
        "          breaker=Breaker('supplier:{s}', window='10m')):\n"
        "    s: int\n"
        "@app.worker\n"
        "async def book(order: Book) -> None: ...\n"
        "@app.worker\n"
        "async def ask(order: Ask) -> None: ...\n"
    )

    told = {row["subject"]: row for row in box("doctor", "--app", "slow_cars:app", "--json").json}
    assert told["cars:suppliers:book"]["level"] == "warning"
    assert "window of 60 s is shorter than the backoff" in told["cars:suppliers:book"]["message"]
    assert "cars:suppliers:ask" not in told


def test_a_broken_app_does_not_hide_the_queues(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_APPS", "nowhere:app")
    answer = box("queues", "ls", "--json")
    assert answer.code == 0
    assert "no limits are shown" in answer.err
    assert box("queues", "ls", "--app", "nowhere:app").code == 2


# the outbox


AWAY = "redis://127.0.0.1:1/0"


def posted(box: Box, *jobs: NewJob, carried: int = 0) -> str:
    """Letters in a database of their own; answers its address."""
    url = f"sqlite:///{box.folder / 'app.db'}"

    async def whole() -> None:
        store = cast("SqlStore", open_store(url))
        await store.migrate()
        await store.open()
        await store.post(jobs)
        await store.mark_carried([job.id for job in jobs[:carried]])
        await store.close()

    asyncio.run(whole())
    return url


def test_letters_are_listed_while_the_store_is_away(box: Box) -> None:
    secret = json.dumps({"password": CANARY, "email": EMAIL}).encode()
    one, two = new_job(key="a", payload=secret), new_job(key="b")
    url = posted(box, one, two, carried=1)
    args = ("outbox", "ls", "--store", AWAY, "--database", url)

    shown = box(*args, "--json")

    assert shown.code == 0, shown
    assert [letter["job"]["id"] for letter in shown.json["waiting"]] == [two.id]
    assert [letter["job"]["id"] for letter in shown.json["carried"]] == [one.id]
    assert shown.json["lag"] >= 0
    assert CANARY not in shown.out
    text = box(*args)
    assert one.id in text.out
    assert "1 to be carried, the oldest for" in text.err
    assert CANARY in box(*args, "--reveal", "--json").out


def test_a_database_needs_no_outbox(box: Box) -> None:
    answer = box("outbox", "ls", "--json")
    assert (answer.code, answer.json["waiting"]) == (0, [])
    assert "no outbox is needed" in answer.err


@pytest.mark.xdist_group("redis")
def test_effects_and_tables_are_those_of_the_database_beside(box: Box) -> None:
    with RedisServer() as server:
        url = f"sqlite:///{box.folder / 'app.db'}"
        beside = ("--store", server.url, "--database", url)
        assert any("outbox" in step for step in box("migrate", *beside, "--json").json["steps"])
        effect = Effect(job=new_id(), queue="a:b:c", name="book", key="k", run="r1")

        async def intend() -> None:
            store = open_store(url)
            await store.open()
            await store.intend([effect])
            await store.close()

        asyncio.run(intend())
        [row] = box("effects", "ls", *beside, "--json").json["effects"]
        assert row["job"] == effect.job
        subjects = {row["subject"] for row in box("doctor", *beside, "--json").json}
        assert "outbox" in subjects


# the budget


def budget(box: Box, *args: str) -> dict[str, str]:
    [row] = [row for row in box("doctor", *args, "--json").json if row["subject"] == "budget"]
    return row


def test_a_budget_means_nothing_to_a_store_that_does_not_bill(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_BUDGET", "10/day")
    assert "does not count commands" in budget(box)["message"]
    assert box("doctor").code == 0


@pytest.mark.xdist_group("redis")
def test_doctor_reckons_what_workers_cost(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as server:
        at = ("--store", server.url)
        assert "commands a day; if they are billed" in budget(box, *at)["message"]

        monkeypatch.setenv("RELEVO_BUDGET", "10k/day")
        told = budget(box, *at)
        assert told["level"] == "ok"
        assert "of 10,000 commands a day, 4," in told["message"]

        monkeypatch.setenv("RELEVO_BUDGET", "100/day")
        answer = box("doctor", *at)
        assert answer.code == 1
        assert "Raise it to" in answer.out
        refused = box("work", "--app", "shop:app", *at)
        assert (refused.code, "Raise it to" in refused.err) == (2, True)


@pytest.mark.xdist_group("redis")
def test_doctor_counts_what_pollers_ask(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key polled every second: 86,400 turns a day."""
    with RedisServer() as server:
        monkeypatch.setenv("RELEVO_BUDGET", "10k/day")
        box.url = server.url
        _ensure(box)
        told = budget(box, "--store", server.url, "--app", "shop:app")

    assert told["level"] == "error"
    assert "432,000 to pollers: that is too much" in told["message"]
    assert "times slower with every=" in told["message"]


def grouped(box: Box, *rows: int, close: bool = True) -> str:
    async def whole(relevo: Relevo) -> str:
        group = await relevo.group("import:1", then=Sum())
        await group.add_many([Read(f"row {n}") for n in rows])
        if close:
            await group.close()
        return group.id

    return engine(box, whole)


def test_groups_are_listed_shown_and_cancelled(box: Box) -> None:
    id = grouped(box, 1, 2)
    [row] = box("groups", "ls", "--json").json["groups"]
    assert (row["id"], row["name"], row["members"], row["live"]) == (id, "import:1", 2, 2)
    assert "import:1" in box("groups", "ls").out
    for name in ("import:1", id):
        shown = box("groups", "show", name).out
        assert "0 done, 0 dead, 0 cancelled" in shown
        assert f"{id} in test:cortex:sum, waiting" in " ".join(shown.split())
    assert "3 jobs cancelled" in box("groups", "cancel", "import:1").out
    assert box("groups", "show", id, "--json").json["cancelled"] == 2
    assert box("groups", "show", id, "--json").json["state"] == "cancelled"
    assert box("groups", "cancel", id).code != 0
    assert box("groups", "show", "import:2").code != 0
