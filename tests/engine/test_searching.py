"""Search finds the whole before the part: what is called so comes first, and alone."""

from __future__ import annotations

import json

import pytest

from relevo.desk import Desk, Found
from relevo.desk.searching import about, fit_of
from relevo.ids import new_id
from relevo.job import State
from relevo.store import Arrival, Effect, EffectState, Kept, Store
from tests.conformance.fresh import SQL_STORES, STORES
from tests.conformance.steps import OTHER, WORK, add, put
from tests.conformance.steps import job as new_job


@pytest.fixture(params=STORES)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


def keys(found: Found) -> list[str | None]:
    return [row.key for row in found.rows]


def other_keys(found: Found) -> set[str | None]:
    return {row.key for row in found.others}


async def order(store: Store, code: str, **fields: str) -> str:
    payload = json.dumps({"order": code, "customer": f"customer of {code}", **fields}).encode()
    return await add(store, payload=payload, key=f"ship:{code}")


async def test_an_order_is_told_without_those_whose_codes_begin_like_it(
    desk: Desk, store: Store
) -> None:
    mine = await order(store, "A-77")
    for code in ("A-770", "A-771"):
        await order(store, code)

    found = await desk.search("A-77")
    story = await desk.trace("A-77")

    assert keys(found) == ["ship:A-77"]
    assert found.rows[0].about == "customer of A-77"
    assert other_keys(found) == {"ship:A-770", "ship:A-771"}
    assert found.is_whole
    assert [job.id for job in story.jobs] == [mine]
    assert (story.fit, story.others, [row.key for row in story.rows]) == (
        "exact",
        2,
        ["ship:A-77"],
    )


async def test_a_key_is_found_before_the_newer_ones_that_contain_it(
    desk: Desk, store: Store
) -> None:
    mine = await add(store, key="G-8")
    await put(store, *(new_job(key=f"G-8{n}", payload=b'{"n":"G-8x"}') for n in range(250)))

    story = await desk.trace("G-8")

    assert [job.id for job in story.jobs] == [mine]
    assert story.found == ("key",)
    assert story.others >= 100


async def test_the_id_of_a_provider_is_found_before_those_that_contain_it(
    desk: Desk, store: Store
) -> None:
    mine = Kept(id=new_id(), endpoint="app:/hook", key="evt_1", body=b'{"id":"evt_1"}')
    others = [Kept(id=new_id(), endpoint="app:/hook", key=f"evt_1{n}") for n in range(3)]
    await store.receive([Arrival(kept) for kept in (mine, *others)])

    found = await desk.search("evt_1")
    story = await desk.trace("evt_1")

    assert keys(found) == ["evt_1"]
    assert other_keys(found) == {"evt_10", "evt_11", "evt_12"}
    assert [kept.id for kept in story.deliveries] == [mine.id]


async def test_a_word_is_found_before_a_part_and_a_value_before_a_word(
    desk: Desk, store: Store
) -> None:
    part = await add(store, payload=b'{"text":"unRES-9able"}')
    word = await add(store, OTHER, payload=b'{"text":"please cancel RES-9, soon"}')

    story = await desk.trace("RES-9")
    assert (story.fit, [job.id for job in story.jobs], story.others) == ("word", [word], 1)

    value = await add(store, payload=b'{"codes":[{"code":"RES-9"}]}')
    story = await desk.trace("RES-9")
    assert (story.fit, [job.id for job in story.jobs], story.others) == ("exact", [value], 2)

    story = await desk.trace("nRES-9")
    assert (story.fit, [job.id for job in story.jobs]) == ("part", [part])


async def test_of_several_that_only_contain_it_the_rows_are_told(desk: Desk, store: Store) -> None:
    for code in ("B-10", "B-11"):
        await order(store, code)

    story = await desk.trace("B-1")

    assert (story.fit, story.jobs, story.threads) == ("part", [], ())
    assert {row.key for row in story.rows} == {"ship:B-10", "ship:B-11"}


async def test_the_code_that_an_effect_gave_is_a_value(desk: Desk, store: Store) -> None:
    job = await add(store)
    effect = Effect(job=job, queue=WORK, name="book", key=f"{job}:book", thread=job)
    await store.intend([effect])
    done = Effect(
        job=job,
        queue=WORK,
        name="book",
        key=f"{job}:book",
        thread=job,
        state=EffectState.CONFIRMED,
        result=b'{"code":"CONF-1","seats":1701}',
    )
    assert await store.conclude([done]) == [True]
    await add(store, payload=b'{"code":"CONF-19"}')

    for text in ("CONF-1", "1701"):
        story = await desk.trace(text)
        assert [each.id for each in story.jobs] == [job]
        assert story.found == ("effect",)


async def test_who_sees_one_app_learns_nothing_of_the_others(store: Store) -> None:
    await order(store, "A-77")
    desk = Desk(store, apps={WORK.partition(":")[0] + "x"})

    assert await desk.search("A-77") == Found(rows=[], fit="part")


async def test_a_viewer_finds_only_what_a_mask_shows(store: Store) -> None:
    await add(store, payload=b'{"email":"ana.perez@shop.example","n":1}')
    viewer, operator = Desk(store, reveals=False), Desk(store)

    assert (await viewer.search("ana.perez@shop.example")).rows == []
    [row] = (await operator.search("ana.perez@shop.example")).rows
    assert row.about == "ana.perez@shop.example"
    [row] = (await operator.search("ana.perez@shop.example", is_masked=True)).rows
    assert row.about != "ana.perez@shop.example"


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_search_that_ends_before_the_end_says_so(
    desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.desk.searching.PATIENCE", -1.0)
    monkeypatch.setattr("relevo.stores.sqlite.pages.WALK", 5)
    monkeypatch.setattr("relevo.stores.postgres.people.SEARCHED", 5)
    await add(store, payload=b'{"code":"RES-1"}')
    await put(store, *(new_job() for _ in range(20)))

    found = await desk.search("RES-1")

    assert (found.rows, found.is_whole) == ([], False)
    assert State.READY in (await desk.queue(WORK)).counts


@pytest.mark.parametrize(
    ("data", "fit"),
    [
        (b'{"a":"A-77"}', "exact"),
        (b'{"a":["x",{"b":"A-77"}]}', "exact"),
        (b'"A-77"', "exact"),
        (b'{"a":"order A-77."}', "word"),
        (b'{"a":"A-770"}', "part"),
        (b'{"a":"xA-77"}', "part"),
        (b'{"a":"xA-77 A-77"}', "word"),
        (b'{"A-77":1}', "part"),
        (b"order=A-77&x=1", "word"),
        (b"\xff A-77", "word"),
        (b"", "part"),
    ],
)
def test_how_well_a_text_fits(data: bytes, fit: str) -> None:
    assert fit_of("A-77", data) == fit


def test_whom_a_payload_is_about() -> None:
    assert about(b'{"n":1,"email":"a@b","customer":"Ana"}') == "Ana"
    assert about(b'{"order_id":7}') == "7"
    for data in (b"", b"[]", b"x", b'{"n":1}', b'{"name":""}', b'{"user":true}'):
        assert about(data) is None
