"""Memory: small things remembered, and compared before they are written."""

from __future__ import annotations

import asyncio

import pytest

from relevo.store import Note, Store
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.steps import DAY, MINUTE


def note(name: str = "n", value: bytes = b"1", version: int = 0, ttl: int | None = None) -> Note:
    return Note(kind="cursor", name=name, value=value, version=version, ttl=ttl)


async def recall(store: Store, name: str = "n") -> Note | None:
    (found,) = await store.recall("cursor", [name])
    return found


async def test_what_is_remembered_is_recalled(store: Store) -> None:
    before = await store.now()

    assert await store.remember([note(value=b'{"at":"ma\xc3\xb1ana"}')]) == [True]

    found = await recall(store)
    assert found is not None
    assert (found.kind, found.name, found.version) == ("cursor", "n", 1)
    assert found.value == b'{"at":"ma\xc3\xb1ana"}'
    assert before <= found.updated_at <= await store.now()


async def test_what_was_never_remembered_is_none(store: Store) -> None:
    await store.remember([note("b")])

    found = await store.recall("cursor", ["a", "b", "c", "b"])

    assert [one and one.name for one in found] == [None, "b", None, "b"]
    assert await store.recall("other", ["b"]) == [None]
    assert await store.recall("cursor", []) == []


async def test_a_note_is_written_over_its_own_version_only(store: Store) -> None:
    assert await store.remember([note(value=b"1")]) == [True]
    assert await store.remember([note(value=b"2", version=1)]) == [True]

    for version in (0, 1, 3, 99):
        assert await store.remember([note(value=b"9", version=version)]) == [False]

    found = await recall(store)
    assert found is not None
    assert (found.value, found.version) == (b"2", 2)


async def test_a_version_of_nothing_is_refused(store: Store) -> None:
    assert await store.remember([note(version=1)]) == [False]
    assert await recall(store) is None


async def test_of_twenty_writers_one_wins(store: Store, handles: Handles) -> None:
    writers = [store, *await handles(2)]
    for version in range(3):
        answers = await asyncio.gather(
            *(writers[n % 3].remember([note(value=b"%d" % n, version=version)]) for n in range(20))
        )

        assert sorted(answers) == [[False]] * 19 + [[True]]
        found = await recall(store)
        assert found is not None
        assert found.version == version + 1
        assert found.value == b"%d" % answers.index([True])


async def test_answers_come_in_the_order_of_the_notes(store: Store) -> None:
    await store.remember([note("b")])

    answers = await store.remember([note("a"), note("b"), note("c"), note("b", b"2", 1)])

    assert answers == [True, False, True, True]
    assert await store.remember([]) == []


async def test_the_second_of_a_batch_sees_the_first(store: Store) -> None:
    answers = await store.remember(
        [note(value=b"1"), note(value=b"2"), note(value=b"3", version=1)]
    )

    assert answers == [True, False, True]
    found = await recall(store)
    assert found is not None
    assert found.value == b"3"


async def test_an_expired_note_is_as_absent(store: Store, clock: ManualClock) -> None:
    await store.remember([note(ttl=MINUTE), note("for good")])
    clock.advance("50s")
    assert await recall(store) is not None
    clock.advance("11s")

    assert await recall(store) is None
    assert [one.name for one in await store.notes("cursor")] == ["for good"]
    assert await store.remember([note(version=1)]) == [False]
    assert await store.forget("cursor", ["n"]) == 0
    assert await store.remember([note(value=b"new")]) == [True]
    found = await recall(store)
    assert found is not None
    assert (found.value, found.version) == (b"new", 1)


async def test_writing_again_renews_how_long_it_lives(store: Store, clock: ManualClock) -> None:
    await store.remember([note("renewed", ttl=MINUTE), note("for good", ttl=MINUTE)])
    clock.advance("50s")
    await store.remember([note("renewed", version=1, ttl=MINUTE), note("for good", version=1)])
    clock.advance("50s")

    assert await recall(store, "renewed") is not None
    clock.advance("20s")
    assert await recall(store, "renewed") is None
    clock.advance("1000d")
    assert await recall(store, "for good") is not None


async def test_one_wins_an_expired_note(store: Store, handles: Handles, clock: ManualClock) -> None:
    writers = [store, *await handles(1)]
    await store.remember([note(ttl=MINUTE)])
    clock.advance("2m")

    answers = await asyncio.gather(*(writers[n % 2].remember([note()]) for n in range(10)))

    assert sorted(answers) == [[False]] * 9 + [[True]]


async def test_forgetting_says_how_many_there_were(store: Store) -> None:
    await store.remember([note("a"), note("b"), note("c")])

    assert await store.forget("cursor", ["a", "b", "x"]) == 2
    assert await store.forget("cursor", ["a"]) == 0
    assert await store.forget("other", ["c"]) == 0
    assert await store.forget("cursor", []) == 0
    assert [one.name for one in await store.notes("cursor")] == ["c"]
    assert await store.remember([note("a")]) == [True]


async def test_notes_come_in_the_order_of_their_names(store: Store) -> None:
    names = ["b", "a", "Z", "é", "10", "9", "a b", "a:b", "_", "日"]
    await store.remember([note(name) for name in names])

    assert [one.name for one in await store.notes("cursor")] == sorted(names)


async def test_notes_are_read_page_by_page(store: Store) -> None:
    names = [f"name-{n:03}" for n in range(25)]
    await store.remember([note(name) for name in names])
    seen: list[str] = []
    while page := await store.notes("cursor", after=seen[-1] if seen else "", limit=10):
        seen += [one.name for one in page]

    assert seen == names


async def test_kinds_do_not_mix(store: Store) -> None:
    for kind in ("a", "a:b", "b"):
        await store.remember([Note(kind=kind, name="b:c", value=kind.encode())])
    await store.remember([Note(kind="a", name="c", value=b"c")])

    assert [one.name for one in await store.notes("a")] == ["b:c", "c"]
    assert [one.value for one in await store.notes("a:b")] == [b"a:b"]
    assert await store.notes("none") == []


async def test_a_note_is_seen_by_another_handle(store: Store, handles: Handles) -> None:
    (other,) = await handles(1)
    await store.remember([note()])

    assert await recall(other) == await recall(store)


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_note_of_any_size_comes_back(store: Store, size: int) -> None:
    await store.remember([note(value=b'"' + b"x" * size + b'"')])

    found = await recall(store)
    assert found is not None
    assert len(found.value) == size + 2


async def test_expired_notes_are_pruned(store: Store, clock: ManualClock) -> None:
    await store.remember([note(ttl=MINUTE), note("for good")])
    clock.advance("2m")

    await store.prune(dead_keep=DAY)

    assert [one.name for one in await store.notes("cursor")] == ["for good"]
