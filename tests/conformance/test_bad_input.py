"""Whatever people and providers write is kept as text, found as text, and harms nothing."""

from __future__ import annotations

import time

import pytest

from relevo.errors import RelevoError
from relevo.ids import new_id
from relevo.job import After, Failure, Inserted, State, Verdict
from relevo.store import (
    Audit,
    By,
    Edit,
    Effect,
    EffectState,
    Filter,
    Note,
    QueueMode,
    Store,
    WorkerInfo,
)
from tests.conformance.steps import (
    ANN,
    HOUR,
    WORK,
    add,
    audit_of,
    count,
    end,
    insert,
    job,
    look,
    make,
    put,
    state,
    take,
    take_id,
    take_one,
)

STRANGE = [
    pytest.param("' OR 1=1--", id="quote"),
    pytest.param('"; drop table jobs;--', id="semicolon"),
    pytest.param("100%_\\sure", id="wildcards"),
    pytest.param("{tag}:*?[a-z]", id="glob"),
    pytest.param("a\nb\r\tc", id="lines"),
    pytest.param("nul\x00nul", id="nul"),
    pytest.param("lone\ud800surrogate", id="surrogate"),
    pytest.param("ñ 日本 🏨 \u202e \u0301", id="unicode"),
    pytest.param("\x1b[31m\x7f\x01", id="control"),
    pytest.param("$1 ? :name %s %(x)s {} ${x}", id="placeholders"),
    pytest.param("x" * 2_000, id="long"),
    pytest.param(" ", id="space"),
    pytest.param("null", id="null"),
    pytest.param("[]", id="brackets"),
]

ALIKE = [
    *("a\x00b", "a\\0b", "a\\x00b", "a\\u0000b", "a\ufffdb", "ab", "a b", "a?b", "a\\b", "a"),
    *("\ud800", "\\ud800", "\udc00", "\\udc00", "\ufffd", "?", "\ud800\ud800", "\U00010000"),
    *("\\", "\\\\", "\x00", "\\0", "\\\\0", "\u00e9", "e\u0301", "A", "a ", "B", "b"),
]
"""Texts that an engine must not confuse, however it writes down what it cannot hold."""

CURSORS = [
    *("", "x", "0", "-1", "99999999999999999999999", "' OR 1=1--", "\x00", "\ud800", "é" * 500),
    *("1:2:3", "e30=", "AAAA", "null", "0" * 32, "1" * 10_000, "[1,2]", "nan", "1e400"),
]


def is_shown(shown: str | None, text: str) -> bool:
    """The same text; one that no engine can hold (NUL, half a pair) may be shown escaped."""
    if "\x00" in text or "\ud800" in text:
        return shown is not None and len(shown) >= len(text)
    return shown == text


async def test_keys_are_never_confused(store: Store) -> None:
    """B27: two keys taken for one would lose a job."""
    ids = [await add(store, key=key, unique="forever") for key in ALIKE]

    for key, id in zip(ALIKE, ids, strict=True):
        again = await insert(store, key=key, unique="forever")
        assert again == Inserted(id, Verdict.IN_PROGRESS), ascii(key)
        found = (await store.page(Filter(key=key))).jobs
        assert [one.id for one in found] == [id], ascii(key)
    for lease in await take(store, 100):
        assert await end(store, lease)
    for key, id in zip(ALIKE, ids, strict=True):
        again = await insert(store, key=key, unique="forever")
        assert again == Inserted(id, Verdict.DONE), ascii(key)


async def test_notes_are_never_confused(store: Store) -> None:
    """B27"""
    notes = [Note(kind="k", name=name, value=b"%d" % n) for n, name in enumerate(ALIKE)]
    assert await store.remember(notes) == [True] * len(ALIKE)

    found = await store.recall("k", ALIKE)

    assert [one and one.value for one in found] == [note.value for note in notes]
    assert await store.remember(
        [Note(kind=name, name="n", value=b"%d" % n) for n, name in enumerate(ALIKE)]
    ) == [True] * len(ALIKE)
    assert await store.forget("k", ALIKE) == len(ALIKE)


@pytest.mark.parametrize("text", STRANGE)
async def test_a_key_is_any_text(store: Store, text: str) -> None:
    """B27"""
    first = await add(store, key=text, unique="forever")
    near = await add(store, key=f"{text}.", unique="forever")

    assert await insert(store, key=text, unique="forever") == Inserted(first, Verdict.IN_PROGRESS)
    assert is_shown((await look(store, first)).key, text)
    assert [found.id for found in (await store.page(Filter(key=text))).jobs] == [first]
    lease = await take_one(store)
    assert lease.id == first
    assert is_shown(lease.key, text)
    await end(store, lease)
    assert await insert(store, key=text, unique="forever") == Inserted(first, Verdict.DONE)
    assert await state(store, near) is State.READY


@pytest.mark.parametrize("text", STRANGE)
async def test_a_note_has_any_name(store: Store, text: str) -> None:
    """B27"""
    strange = Note(kind=text, name=text, value=b"1")
    assert await store.remember([strange, Note(kind=text, name=f"{text}.", value=b"2")]) == [
        True,
        True,
    ]

    (found,) = await store.recall(text, [text])

    assert found is not None
    assert (found.value, found.version) == (b"1", 1)
    assert is_shown(found.kind, text)
    assert is_shown(found.name, text)
    assert [one.value for one in await store.notes(text)] == [b"1", b"2"]
    assert [one.value for one in await store.notes(text, after=text)] == [b"2"]
    assert [one.value for one in await store.notes(text, after=found.name)] == [b"2"]
    assert await store.remember([strange]) == [False]
    assert await store.forget(text, [text]) == 1
    assert await store.recall(text, [text, f"{text}."]) != [None, None]


@pytest.mark.parametrize("text", STRANGE)
async def test_a_job_carries_any_text(store: Store, text: str) -> None:
    id = await add(
        store, kind=text, lane=text, thread=text, cause=text, flow=text, node=text, key=text
    )

    found = await look(store, id)

    for shown in (found.kind, found.lane, found.thread, found.cause, found.flow, found.node):
        assert is_shown(shown, text)
    for where in (
        Filter(kind=text),
        Filter(lane=text),
        Filter(thread=text),
        Filter(flow=text),
        Filter(text=text),
    ):
        assert [one.id for one in (await store.page(where)).jobs] == [id], where
    lease = await take_one(store, worker=text)
    for shown in (lease.kind, lease.lane, lease.thread, lease.cause):
        assert is_shown(shown, text)
    assert is_shown((await look(store, id)).worker, text)
    assert [is_shown(one.worker, text) for one in await store.rescue(worker=text)] == [True]


@pytest.mark.parametrize("text", STRANGE)
async def test_a_failure_says_anything(store: Store, text: str) -> None:
    """F08"""
    lease = await take_id(store, await add(store))
    failure = Failure(type="T", message=text, trace=text, fingerprint="f")

    assert await end(store, lease, State.DEAD, failure=failure)

    found = await look(store, lease.id)
    assert found.failure is not None
    assert found.failure.type == "T"
    assert [group.count for group in await store.groups()] == [1]
    assert await store.retry([lease.id], ANN) == [True]


@pytest.mark.parametrize("text", STRANGE)
async def test_people_write_anything(store: Store, text: str) -> None:
    id = await make(store, State.HELD)
    by = By(text, text)

    assert await store.edit([Edit(id=id, priority=0)], by) == [True]
    assert await store.discard([id], by) == [True]
    assert await store.set_mode([WORK], QueueMode.PAUSED, by) == [True]
    await store.audit([Audit(who=text, verb=text, target=text, note=text)])

    assert is_shown((await look(store, id)).note, text)
    (row,), _ = await store.audits(target=text)
    for shown in (row.who, row.verb, row.target, row.note):
        assert is_shown(shown, text)
    assert await audit_of(store, id) == ["discard", "edit"]


@pytest.mark.parametrize("text", STRANGE)
async def test_an_effect_has_any_name(store: Store, text: str) -> None:
    meant = Effect(job=new_id(), queue=WORK, name=text, key=text, thread=text)

    (stored,) = await store.intend([meant])
    ended = Effect(
        job=meant.job,
        queue=WORK,
        name=text,
        key=text,
        state=EffectState.UNKNOWN,
        error=text,
    )

    for shown in (stored.name, stored.key, stored.thread):
        assert is_shown(shown, text)
    assert await store.conclude([ended]) == [True]
    (found,), _ = await store.effects(text=text)
    assert found.state is EffectState.UNKNOWN
    assert is_shown(found.error, text)


@pytest.mark.parametrize("text", STRANGE)
async def test_a_park_and_a_worker_have_any_name(store: Store, text: str) -> None:
    id = await add(store)
    await end(store, await take_id(store, id), State.PARKED, park=text)
    info = WorkerInfo(id=text, host=text, pid=1, queues=[text], concurrency=1, note=text)

    await store.beat(info, HOUR)

    (seen,) = await store.workers()
    for shown in (seen.id, seen.host, seen.queues[0], seen.note):
        assert is_shown(shown, text)
    await store.leave(text)
    assert await store.workers() == []
    assert is_shown((await look(store, id)).park, text)
    assert await count(store, park=text) == 1
    assert await store.unpark(text) == 1


@pytest.mark.parametrize("text", STRANGE)
async def test_a_filter_with_any_text_finds_nothing_else(store: Store, text: str) -> None:
    """B60"""
    await put(store, job(key="plain"), job(lane="plain"))

    for where in (
        Filter(queue=text),
        Filter(kind=text),
        Filter(key=text),
        Filter(lane=text),
        Filter(park=text),
        Filter(thread=text),
        Filter(flow=text),
        Filter(fingerprint=text),
    ):
        assert (await store.page(where)).jobs == []
        assert await store.count(where) == 0
    assert await store.groups(queue=text) == []
    assert await store.unpark(text) == 0
    assert (await store.audits(target=text))[0] == []
    assert (await store.effects(job=text, text=text))[0] == []


@pytest.mark.parametrize("text", STRANGE)
async def test_an_id_of_any_text_is_nobodys(store: Store, text: str) -> None:
    """B61"""
    id = await add(store)

    assert await store.find([text, id, text]) == [None, await look(store, id), None]
    assert await store.retry([text], ANN) == [False]
    assert await store.cancel([text], ANN) == [False]
    assert await store.discard([text], ANN) == [False]
    assert await store.edit([Edit(id=text, priority=0)], ANN) == [False]
    assert (await store.audits())[0] == []


async def test_a_search_is_literal(store: Store) -> None:
    """B60"""
    percent = await add(store, payload=b'{"t":"50% off"}')
    under = await add(store, payload=b'{"t":"a_b"}')
    await add(store, payload=b'{"t":"50 off axb"}')
    quote = await add(store, payload=b'{"t":"O\'Brien \\\\ [x]* .+"}')

    async def search(text: str) -> set[str]:
        return {found.id for found in (await store.page(Filter(text=text))).jobs}

    assert await search("50%") == {percent}
    assert await search("%") == {percent}
    assert await search("_") == {under}
    assert await search("a_b") == {under}
    assert await search("O'Brien") == {quote}
    assert await search("\\") == {quote}
    assert await search("[x]*") == {quote}
    assert await search(".+") == {quote}
    assert await search("[a-z]") == set()
    assert await search("?") == set()


async def test_a_search_of_10_kib_is_quick(store: Store) -> None:
    """B60"""
    await put(store, *[job(payload=b'"' + b"a" * 2_000 + b'"') for _ in range(50)])
    began = time.monotonic()

    for text in ("a" * 10_240, "%a" * 5_000, "(a+)+$" * 1_700, "*" * 10_240):
        assert (await store.page(Filter(text=text))).jobs == []

    assert time.monotonic() - began < 4


@pytest.mark.parametrize("cursor", CURSORS, ids=range(len(CURSORS)))
async def test_a_tampered_cursor_harms_nothing(store: Store, cursor: str) -> None:
    """B60: refused with one of our errors, or read as some place in the list."""
    ids = set(await put(store, *[job() for _ in range(5)]))
    await store.audit([Audit(who="a", verb="v", target="t")])
    await store.intend([Effect(job=new_id(), queue=WORK, name="n", key="k")])

    try:
        page = await store.page(Filter(), cursor=cursor)
    except RelevoError:
        pass
    else:
        assert {found.id for found in page.jobs} <= ids
    for read in (store.audits, store.effects):
        try:
            rows, _ = await read(cursor=cursor)
        except RelevoError:
            continue
        assert len(rows) <= 1
    assert len((await store.page(Filter())).jobs) == 5


async def test_a_cut_or_mixed_cursor_harms_nothing(store: Store) -> None:
    await put(store, *[job() for _ in range(6)])
    await store.audit([Audit(who="a", verb="v", target="t") for _ in range(6)])
    jobs = (await store.page(Filter(), limit=2)).cursor
    _, rows = await store.audits(limit=2)
    assert jobs is not None
    assert rows is not None

    for cursor in (jobs[:-1], jobs[1:], jobs + "0", jobs.upper(), jobs[::-1], rows):
        try:
            page = await store.page(Filter(), cursor=cursor)
        except RelevoError:
            continue
        assert len(page.jobs) <= 6


async def test_a_page_is_never_longer_than_200(store: Store) -> None:
    """B60"""
    await put(store, *[job() for _ in range(205)])
    await store.audit([Audit(who="a", verb="v", target="t") for _ in range(205)])
    await store.intend([Effect(job=new_id(), queue=WORK, name="n", key="k") for _ in range(205)])
    await store.remember([Note(kind="k", name=str(n), value=b"1") for n in range(205)])

    page = await store.page(Filter(), limit=10**9)
    audits, audits_cursor = await store.audits(limit=10**9)
    effects, effects_cursor = await store.effects(limit=10**9)

    assert (len(page.jobs), len(audits), len(effects)) == (200, 200, 200)
    assert page.cursor is not None
    assert audits_cursor is not None
    assert effects_cursor is not None
    assert len((await store.page(Filter(), cursor=page.cursor, limit=10**9)).jobs) == 5
    assert len(await store.notes("k", limit=10**9)) >= 200


@pytest.mark.parametrize("limit", [0, -1, -(10**9)])
async def test_a_page_is_never_shorter_than_one(store: Store, limit: int) -> None:
    """B60: a limit that makes no sense is clamped, or refused with one of our errors."""
    await put(store, job(), job())
    await store.audit([Audit(who="a", verb="v", target="t")] * 2)

    try:
        page = await store.page(Filter(), limit=limit)
        rows, _ = await store.audits(limit=limit)
    except RelevoError:
        return
    assert len(page.jobs) == 1
    assert len(rows) == 1


@pytest.mark.parametrize("huge", [2**31, 2**53, 10**15])
async def test_far_moments_are_kept(store: Store, huge: int) -> None:
    """F29: 2038 and beyond."""
    id = await add(store, run_at=huge)
    later = await add(store, "app:module:later", delay=36_500 * 86_400_000)

    assert (await look(store, id)).run_at == huge
    assert await state(store, later) is State.SCHEDULED


async def test_a_parent_of_an_unknown_child_is_seen_by_people(store: Store) -> None:
    """B35: whatever becomes of it, it is not nowhere, and a person can end it."""
    try:
        (answer,) = await store.insert([job(after=(After(new_id()),))])
    except RelevoError:
        assert await count(store) == 0
        return

    found = await look(store, answer.id)
    assert found.state in {State.WAITING, State.READY, State.DEAD}
    if found.state is not State.DEAD:
        assert await store.cancel([answer.id], ANN) == [True]


async def test_a_result_of_64_kib_comes_back(store: Store) -> None:
    lease = await take_id(store, await add(store))
    result = b'{"t":"' + b"y" * 65_000 + '🏨"}'.encode()

    await end(store, lease, result=result)

    assert (await look(store, lease.id)).result == result
