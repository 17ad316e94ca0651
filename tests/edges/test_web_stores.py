"""People, sessions, tokens and numbers, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.desk import Role
from relevo.engine import Relevo
from relevo.errors import NotFoundError
from relevo.relay import Relayed
from relevo.store import Store
from relevo.testing import ManualClock
from relevo.web.metrics import Metrics
from relevo.web.people import People, is_marked, is_password
from tests.conformance.steps import add
from tests.conformance.steps import job as new_job


async def test_a_session_lives_while_it_is_used(store: Store, clock: ManualClock) -> None:
    """C13"""
    people = People(store, clock)
    used, idle, left = [await people.begin("ana", "scrypt$") for _ in range(3)]
    await people.end(left)
    for _ in range(3):
        clock.advance("5h")
        whose = await people.whose(used)
        assert whose is not None and whose[0] == "ana" and is_marked(used, "scrypt$", whose[1])
    assert not is_marked(used, "another", whose[1])
    assert await people.whose(idle) is None
    assert await people.whose(left) is None
    assert await people.whose(f"{used}x") is None


async def test_a_token_is_good_for_as_long_as_it_says(store: Store, clock: ManualClock) -> None:
    people = People(store, clock)
    token, _ = await people.add_token("ci", Role.OPERATOR, apps=("cars",), expires="1h", by="ann")
    forever, _ = await people.add_token("metrics", Role.VIEWER, by="ann")
    record = await people.bearer(token)
    assert record is not None and (record.role, record.apps) == (Role.OPERATOR, ("cars",))
    clock.advance("61m")
    assert await people.bearer(token) is None
    assert [each.name for each in await people.tokens()] == ["metrics"]
    await people.remove_token("metrics", by="ann")
    assert await people.bearer(forever) is None
    rows, _ = await store.audits()
    assert [row.verb for row in rows] == ["remove token", "add token", "add token"]


async def test_a_password_is_changed_and_a_person_seen(store: Store, clock: ManualClock) -> None:
    people = People(store, clock)
    await people.add("ana", "a password of ana", Role.OPERATOR, apps=("cars",), by="ann")
    await add(store, "cars:suppliers:book")
    assert await people.apps() == {"cars"}
    assert [each.seen_at for each in await people.all()] == [None]
    await people.saw("ana")
    [seen] = await people.all()
    await people.saw("ana")
    assert seen.seen_at and [each.seen_at for each in await people.all()] == [seen.seen_at]
    await people.change_password("ana", "another one of ana", by="ben")
    record = await people.person("ana")
    assert record is not None and (record.role, record.apps) == (Role.OPERATOR, ("cars",))
    assert await is_password("another one of ana", record.password)
    with pytest.raises(NotFoundError):
        await people.change_password("olli", "a password of olli", by="ben")
    rows, _ = await store.audits()
    assert [(row.who, row.verb) for row in rows] == [
        ("ben", "change password"),
        ("ann", "add person"),
    ]
    await people.remove("ana", by="ann")
    assert await store.notes("seen") == []


async def test_the_same_numbers_are_told(store: Store, clock: ManualClock) -> None:
    await add(store, "cars:suppliers:book")
    text = (await Metrics(Relevo(store, clock=clock)).text())[0].decode()
    assert 'relevo_jobs{queue="cars:suppliers:book",state="ready"} 1.0' in text
    assert f'store="{store.name}"' in text and "relevo_store_up 1.0" in text
    is_billed = store.name in ("redis", "cluster")
    assert ("relevo_store_commands_total" in text) is is_billed


async def test_the_outbox_is_told_of_while_the_store_is_away(tmp_path: Path) -> None:
    relevo = Relevo("redis://127.0.0.1:1/0", database=f"sqlite:///{tmp_path}/app.db")
    store = relevo.store
    assert isinstance(store, Relayed)
    await store.ledger.migrate()
    await store.ledger.open()
    await store.ledger.post([new_job()])

    text = (await Metrics(relevo).text())[0].decode()

    assert "relevo_store_up 0.0" in text and "relevo_outbox_waiting 1.0" in text
    assert 'relevo_events_total{what="trouble"}' in text
    assert "relevo_jobs{" not in text and "relevo_workers" not in text
    await store.ledger.close()
