"""Whatever people and providers write is kept as text, found as text, and harms nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from relevo.errors import RelevoError
from relevo.ids import new_id
from relevo.job import After, Failure, Receipt, State, Verdict
from relevo.store import (
    Audit,
    By,
    Conclusion,
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
    about,
    add,
    audit_of,
    count,
    end,
    insert,
    job,
    legible,
    look,
    make,
    put,
    state,
    take,
    take_id,
    take_one,
)

STRANGE = [
    "' OR 1=1--",
    '"; drop table jobs;--',
    "100%_\\sure",
    "{tag}:*?[a-z]",
    "a\nb\r\tc",
    "nul\x00nul",
    "lone\ud800surrogate",
    "ñ 日本 🏨 \u202e \u0301",
    "\x1b[31m\x7f\x01",
    "$1 ? :name %s %(x)s {} ${x}",
    "x" * 2_000,
    " ",
    "null",
    "[]",
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
        assert again == Receipt(id, Verdict.IN_PROGRESS), ascii(key)
        found = (await store.page(Filter(key=key))).jobs
        assert [one.id for one in found] == [id], ascii(key)
    for lease in await take(store, 100):
        assert await end(store, lease)
    for key, id in zip(ALIKE, ids, strict=True):
        again = await insert(store, key=key, unique="forever")
        assert again == Receipt(id, Verdict.DONE), ascii(key)


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


def strange() -> Iterator[tuple[str, str]]:
    """Each strange text, and a queue to itself."""
    for n, text in enumerate(STRANGE):
        yield text, f"app:module:q{n}"


async def test_a_key_is_any_text(store: Store) -> None:
    """B27, C31"""
    for text, queue in strange():
        with about(text):
            first = await add(store, queue, key=text, unique="forever")
            near = await add(store, queue, key=f"{text}.", unique="forever")

            again = await insert(store, queue, key=text, unique="forever")
            assert again == Receipt(first, Verdict.IN_PROGRESS)
            assert is_shown((await look(store, first)).key, text)
            page = await store.page(Filter(key=text))
            assert [found.id for found in page.jobs] == [first]
            lease = await take_one(store, queue)
            assert lease.id == first
            assert is_shown(lease.key, text)
            await end(store, lease)
            again = await insert(store, queue, key=text, unique="forever")
            assert again == Receipt(first, Verdict.DONE)
            assert await state(store, near) is State.READY


async def test_a_note_has_any_name(store: Store) -> None:
    """B27"""
    for text in STRANGE:
        with about(text):
            note, near = (Note(kind=text, name=name, value=b"1") for name in (text, f"{text}."))
            assert await store.remember([note, near]) == [True, True]

            (found,) = await store.recall(text, [text])

            assert found is not None
            assert (found.value, found.version) == (b"1", 1)
            assert is_shown(found.kind, text)
            assert is_shown(found.name, text)
            assert len(await store.notes(text)) == 2
            assert len(await store.notes(text, after=text)) == 1
            assert len(await store.notes(text, after=found.name)) == 1
            assert await store.remember([note]) == [False]
            assert await store.forget(text, [text]) == 1
            gone, left = await store.recall(text, [text, f"{text}."])
            assert gone is None
            assert left is not None


async def test_a_job_carries_any_text(store: Store) -> None:
    for text, queue in strange():
        with about(text):
            words = dict.fromkeys(("kind", "lane", "thread", "cause", "flow", "node", "key"), text)
            id = await add(store, queue, **words)

            found = await look(store, id)
            for field in words:
                assert is_shown(getattr(found, field), text), field
            for field in ("kind", "lane", "thread", "flow", "text"):
                page = await store.page(Filter(queue=queue, **{field: text}))
                assert [one.id for one in page.jobs] == [id], field
            lease = await take_one(store, queue, worker=text)
            for field in words:
                assert is_shown(getattr(lease, field), text), field
            assert is_shown((await look(store, id)).worker, text)
            (rescued,) = await store.rescue(worker=text)
            assert is_shown(rescued.worker, text)


async def test_a_failure_says_anything(store: Store) -> None:
    """F08"""
    for text, queue in strange():
        with about(text):
            lease = await take_id(store, await add(store, queue), queue)
            failure = Failure(type="T", message=text, trace=text, fingerprint=text)

            assert await end(store, lease, State.DEAD, failure=failure)

            found = await look(store, lease.id)
            assert found.failure is not None
            assert found.failure.type == "T"
            assert is_shown(found.failure.message, text)
            assert [group.count for group in await store.groups(queue=queue)] == [1]
            assert await count(store, fingerprint=text) == 1
            assert await store.retry([lease.id], ANN) == [True]


async def test_people_write_anything(store: Store) -> None:
    for text, queue in strange():
        with about(text):
            id = await make(store, State.HELD, queue)
            by = By(text, text)

            assert await store.edit([Edit(id=id, priority=0)], by) == [True]
            assert await store.discard([id], by) == [True]
            assert await store.set_mode([queue], QueueMode.PAUSED, by) == [True]
            await store.audit([Audit(who=text, verb=text, target=text, note=text)])

            assert is_shown((await look(store, id)).note, text)
            (row,), _ = await store.audits(target=text)
            for shown in (row.who, row.verb, row.target, row.note):
                assert is_shown(shown, text)
            assert await audit_of(store, id) == ["discard", "edit"]


async def test_an_effect_has_any_name(store: Store) -> None:
    for text in STRANGE:
        with about(text):
            meant = Effect(job=new_id(), queue=WORK, name=text, key=text, thread=text, run=text)

            (stored,) = await store.intend([meant])

            for shown in (stored.name, stored.key, stored.thread):
                assert is_shown(shown, text)
            ended = msgspec.structs.replace(meant, state=EffectState.UNKNOWN, error=text)
            assert await store.conclude([ended]) == [True]
            (found,), _ = await store.effects(job=meant.job, text=text)
            assert found.state is EffectState.UNKNOWN
            assert is_shown(found.error, text)
            fields = {**msgspec.structs.asdict(ended), "run": "next"}
            assert await store.conclude([Conclusion(**fields, follows=found.run)]) == [True]


async def test_a_park_and_a_worker_have_any_name(store: Store) -> None:
    for text, queue in strange():
        with about(text):
            id = await add(store, queue)
            await end(store, await take_id(store, id, queue), State.PARKED, park=text)
            assert is_shown((await look(store, id)).park, text)
            assert await count(store, park=text) == 1
            assert await store.unpark(text) == 1

            await store.beat(
                WorkerInfo(id=text, host=text, pid=1, queues=[text], concurrency=1, note=text),
                HOUR,
            )
            (seen,) = await store.workers()
            for shown in (seen.id, seen.host, seen.queues[0], seen.note):
                assert is_shown(shown, text)
            await store.leave(text)
            assert await store.workers() == []


async def test_a_filter_with_any_text_finds_nothing_else(store: Store) -> None:
    """B60"""
    await put(store, job(key="plain"), job(lane="plain"))
    fields = ("queue", "kind", "key", "lane", "park", "thread", "flow", "fingerprint")
    for text in STRANGE:
        for field in fields:
            with about(f"{field} {text}"):
                where = Filter(**{field: text})
                assert (await store.page(where)).jobs == []
                assert await store.count(where) == 0
        with about(text):
            assert await store.groups(queue=text) == []
            assert await store.unpark(text) == 0
            assert (await store.audits(target=text))[0] == []
            assert (await store.effects(job=text, text=text))[0] == []


async def test_an_id_of_any_text_is_nobodys(store: Store) -> None:
    """B61"""
    id = await add(store)
    for text in STRANGE:
        with about(text):
            assert await store.find([text, id, text]) == [None, await look(store, id), None]
            assert await store.retry([text], ANN) == [False]
            assert await store.cancel([text], ANN) == [False]
            assert await store.discard([text], ANN) == [False]
            assert await store.edit([Edit(id=text, priority=0)], ANN) == [False]
    assert (await store.audits())[0] == []


async def test_a_search_is_literal(store: Store) -> None:
    """B60, C31"""
    percent = await add(store, payload=b'{"t":"50% off"}')
    under = await add(store, payload=b'{"t":"a_b"}')
    await add(store, payload=b'{"t":"50 off axb"}')
    quote = await add(store, payload=b'{"t":"O\'Brien \\\\ [x]* .+"}')

    async def search(text: str) -> set[str]:
        return {found.id for found in (await store.page(Filter(text=text))).jobs}

    assert await search("50%") == legible(store, percent)
    assert await search("%") == legible(store, percent)
    assert await search("_") in (legible(store, under), {under})  # it is in sealed text by chance
    assert await search("a_b") == legible(store, under)
    assert await search("O'Brien") == legible(store, quote)
    assert await search("\\") == legible(store, quote)
    assert await search("[x]*") == legible(store, quote)
    assert await search(".+") == legible(store, quote)
    assert await search("[a-z]") == set()
    assert await search("?") == set()


async def test_a_search_of_10_kib_is_quick(store: Store) -> None:
    """B60"""
    await put(store, *[job(payload=b'"' + b"a" * 2_000 + b'"') for _ in range(50)])
    began = time.monotonic()

    for text in ("a" * 10_240, "%a" * 5_000, "(a+)+$" * 1_700, "*" * 10_240):
        assert (await store.page(Filter(text=text))).jobs == []

    assert time.monotonic() - began < 4


async def test_a_tampered_cursor_harms_nothing(store: Store) -> None:
    """B60: refused with one of our errors, or read as some place in the list."""
    ids = set(await put(store, *[job() for _ in range(5)]))
    await store.audit([Audit(who="a", verb="v", target="t")])
    await store.intend([Effect(job=new_id(), queue=WORK, name="n", key="k")])
    for cursor in CURSORS:
        with about(cursor):
            with suppress(RelevoError):
                page = await store.page(Filter(), cursor=cursor)
                assert {found.id for found in page.jobs} <= ids
            for read in (store.audits, store.effects):
                with suppress(RelevoError):
                    rows, _ = await read(cursor=cursor)
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
        with about(cursor), suppress(RelevoError):
            page = await store.page(Filter(), cursor=cursor)
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


async def test_a_page_is_never_shorter_than_one(store: Store) -> None:
    """B60: a limit that makes no sense is clamped, or refused with one of our errors."""
    await put(store, job(), job())
    await store.audit([Audit(who="a", verb="v", target="t")] * 2)
    await store.intend([Effect(job=new_id(), queue=WORK, name=name, key="k") for name in "ab"])
    for limit in (0, -1, -(10**9)):
        with about(str(limit)):
            with suppress(RelevoError):
                assert len((await store.page(Filter(), limit=limit)).jobs) == 1
            for read in (store.audits, store.effects):
                with suppress(RelevoError):
                    assert len((await read(limit=limit))[0]) == 1


async def test_far_moments_are_kept(store: Store) -> None:
    """F29: 2038, year 9999 and beyond."""
    for at in (0, 1, 2**31, 2**31 * 1000, 253_402_300_799_999, 2**53 - 1):
        with about(str(at)):
            assert (await look(store, await add(store, run_at=at))).run_at == at
    later = await add(store, delay=36_500 * 86_400_000)
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
