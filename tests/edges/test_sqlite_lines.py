"""SQLite enters the lines of deliveries late: nobody may notice, whoever looks and whenever."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from relevo.ids import new_id
from relevo.job import Verdict
from relevo.store import DELIVERY_KEEP, Arrival, By, DeliveryState, Kept, Letterbox
from relevo.stores.sqlite import lines
from relevo.stores.sqlite.store import SqliteStore
from relevo.stores.sqlite.transaction import Tx
from relevo.testing import ManualClock
from tests.conformance.steps import DAY, count, job
from tests.edges.test_sqlite_store import connected, opened
from tests.edges.test_sqlite_store import path as path

ANN = By("ann")
SOURCES = ("app:/one", "app:/two")
WAYS = ("", "?synchronous=normal")
"""Each address has its own writer, as another process would."""


@pytest.fixture
async def handles(path: Path) -> AsyncIterator[list[SqliteStore]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(path, way)) for way in WAYS]


def arrival(key: str | None, source: str = SOURCES[0], generation: int = 0) -> Arrival:
    state = DeliveryState.REFUSED if key is None else DeliveryState.ACCEPTED
    kept = Kept(
        id=new_id(), endpoint=source, key=key, generation=generation, state=state, answer=b"a"
    )
    return Arrival(kept, () if key is None else (job(),))


def rows(path: Path, table: str) -> int:
    with connected(path) as connection:
        (count,) = connection.execute(f"select count(*) from {table}").fetchone()  # noqa: S608 - ours
        return count


async def test_lines_are_entered_many_at_a_time(path: Path, handles: list[SqliteStore]) -> None:
    store = handles[0]
    await store.receive([arrival(str(n)) for n in range(lines.MOST)])
    assert (rows(path, "relevo_fresh"), rows(path, "relevo_delivered")) == (1, 0)
    await store.receive([arrival("last")])
    assert (rows(path, "relevo_fresh"), rows(path, "relevo_delivered")) == (1, lines.MOST)
    for key in ("0", "last"):
        [again] = await store.receive([arrival(key)])
        assert again.verdict is Verdict.DONE


async def test_lone_ones_do_not_pile_up(path: Path, handles: list[SqliteStore]) -> None:
    for number in range(lines.ROWS + 1):
        with connected(path) as connection:
            connection.execute("begin immediate")
            await handles[0].receive_within(connection, arrival(str(number)))
            connection.execute("commit")
    assert rows(path, "relevo_fresh") == 0
    assert rows(path, "relevo_delivered") == lines.ROWS + 1


async def test_what_was_rolled_back_is_new(path: Path, handles: list[SqliteStore]) -> None:
    with connected(path) as connection:
        connection.execute("begin immediate")
        await handles[0].receive_within(connection, arrival("k"))
        connection.execute("rollback")
    for expected in (Verdict.NEW, Verdict.DONE):
        [answer] = await handles[0].receive([arrival("k")])
        assert answer.verdict is expected


async def test_a_writer_that_failed_does_not_believe_what_it_wrote(
    handles: list[SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = handles
    leave = lines.leave

    def failing(tx: Tx, first: int, hashes: Sequence[bytes | None]) -> None:
        leave(tx, first, hashes)
        raise ValueError("the disk is full, say")

    monkeypatch.setattr(lines, "leave", failing)
    with pytest.raises(ValueError, match="disk"):
        await one.receive([arrival("lost")])
    monkeypatch.undo()
    [answer] = await other.receive([arrival("k")])  # in the row that the first had taken
    assert answer.verdict is Verdict.NEW
    for key, expected in (("k", Verdict.DONE), ("lost", Verdict.NEW)):
        [answer] = await one.receive([arrival(key)])
        assert answer.verdict is expected


async def test_one_that_comes_under_another_key_has_both(handles: list[SqliteStore]) -> None:
    one, other = handles
    first = arrival("a")
    second = Arrival(replace(first.kept, key="b"), first.jobs)
    for each in (first, second, arrival("c")):
        [answer] = await one.receive([each])
        assert answer.verdict is Verdict.NEW
    for store in handles:
        found = await store.delivered(SOURCES[0], ["a", "b"])
        assert [kept and kept.id for kept in found] == [first.kept.id, first.kept.id]
        assert [kept.key for kept in (await store.deliveries(Letterbox(key="b")))[0]] == ["a"]
        [answer] = await store.receive([arrival("b")])
        assert answer.verdict is Verdict.DONE
    assert await count(other) == 2


async def test_a_process_of_the_version_before_doubles_and_loses_nothing(
    path: Path, handles: list[SqliteStore]
) -> None:
    """It enters the line first and the delivery second, without its answer, and just deletes."""
    store = handles[0]
    await store.receive([arrival("fresh")])
    [kept], _ = await store.deliveries(Letterbox(key="fresh"))

    def old(connection: sqlite3.Connection, hash_: bytes, id_: str) -> None:
        connection.execute(
            """
            insert into relevo_delivered (hash, source, generation, id, received_at, status, answer)
            values (?, ?, 0, ?, 1, 200, x'61')
            on conflict (hash, source, generation) do nothing
            """,
            (hash_, SOURCES[0], id_),
        )
        connection.execute(
            """
            insert into relevo_deliveries
                (state, generation, received_at, status, id, source, hash, method, path, query,
                 reason, jobs, print, headers, body)
            values (0, 0, 1, 200, ?, ?, ?, 'POST', '', '', '', x'', x'', x'', x'')
            """,
            (id_, SOURCES[0], hash_),
        )

    with connected(path) as connection:
        (hash_,) = connection.execute("select hash from relevo_deliveries").fetchone()
        with pytest.raises(sqlite3.IntegrityError, match="restart this process"):
            old(connection, hash_, new_id())
        old(connection, b"x" * 16, new_id())
        connection.execute("delete from relevo_deliveries where id = ?", (kept.id,))
    for verdict in (Verdict.DONE, Verdict.DONE):
        [answer] = await store.receive([arrival("fresh")])
        assert (answer.verdict, answer.kept.id) == (verdict, kept.id)
    await store.receive([arrival(str(n)) for n in range(lines.MOST + 1)])
    assert rows(path, "relevo_fresh") == 0  # the row without an answer is in nobody's way


class Model:
    """Who came first under each identity, and how often others came after them."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str, int], str] = {}
        self.repeats: dict[str, int] = {}
        self.listed: set[str] = set()

    def receive(self, kept: Kept) -> tuple[str, Verdict]:
        if kept.key is None:
            return kept.id, Verdict.NEW
        identity = (kept.endpoint, kept.key, kept.generation)
        if identity not in self.first:
            self.first[identity] = kept.id
            self.repeats[kept.id] = 0
            self.listed.add(kept.id)
            return kept.id, Verdict.NEW
        owner = self.first[identity]
        self.repeats[owner] += owner != kept.id
        return owner, Verdict.DONE

    def newest(self, source: str, key: str) -> str | None:
        for generation in (2, 1, 0):
            if found := self.first.get((source, key, generation)):
                return found
        return None


@pytest.mark.parametrize("seed", range(12))
async def test_writers_that_know_nothing_of_each_other_keep_each_once(
    path: Path, handles: list[SqliteStore], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lines, "MOST", 12)
    monkeypatch.setattr(lines, "ROWS", 7)
    dice = random.Random(seed)
    model = Model()
    keys = [f"k{n}" for n in range(dice.choice([6, 30, 900]))]
    sent: list[Arrival] = []

    def some() -> list[Arrival]:
        made = [
            arrival(
                dice.choice([None, *keys]), dice.choice(SOURCES), dice.choice([0, 0, 0, 0, 1, 2])
            )
            for _ in range(dice.choice([1, 1, 2, 6]))
        ]
        if sent and dice.random() < 0.2:
            made.append(dice.choice(sent))  # a sender who never heard the answer
        sent.extend(made)
        return made

    for _ in range(150):
        store = dice.choice(handles)
        match dice.choice(["receive"] * 6 + ["within", "roll back", "erase", "look", "look"]):
            case "receive":
                batch = some()
                answers = await store.receive(batch)
                expected = [model.receive(one.kept) for one in batch]
                assert [(answer.kept.id, answer.verdict) for answer in answers] == expected
            case "within" | "roll back" as what:
                one = arrival(dice.choice(keys), dice.choice(SOURCES))
                owner = model.first.get((one.kept.endpoint, one.kept.key or "", 0))
                with connected(path) as connection:
                    connection.execute("begin immediate")
                    answer = await store.receive_within(connection, one)
                    is_new = answer.verdict is Verdict.NEW
                    assert is_new == (owner is None)
                    keep = is_new and what == "within"
                    connection.execute("commit" if keep else "rollback")
                if keep:
                    model.receive(one.kept)
            case "erase":
                if model.listed:
                    gone = dice.choice(sorted(model.listed))
                    model.listed.discard(gone)
                    assert await store.erase([], [gone], ANN, act="a") == (0, 1)
            case _:
                await agree(store, model, dice.choice(SOURCES), keys)
    for source in SOURCES:
        await agree(handles[0], model, source, keys)


async def agree(store: SqliteStore, model: Model, source: str, keys: list[str]) -> None:
    found = await store.delivered(source, keys)
    newest = [model.newest(source, key) for key in keys]
    assert [kept and kept.id for kept in found] == newest
    for kept in found:
        assert kept is None or kept.repeats == model.repeats[kept.id]
        assert kept is None or kept.answer == b"a"
    for key in keys[:5]:
        page, _ = await store.deliveries(Letterbox(key=key, endpoint=source), limit=200)
        mine = {id_ for (at, name, _), id_ in model.first.items() if (at, name) == (source, key)}
        assert {kept.id for kept in page} == mine & model.listed
        assert all(kept.repeats == model.repeats[kept.id] for kept in page)


async def test_one_that_is_pruned_before_its_line_was_entered_keeps_its_answer(
    path: Path,
) -> None:
    clock = ManualClock()
    store = SqliteStore(f"sqlite:///{path}", clock=clock)
    await store.migrate()
    await store.open()
    try:
        await store.receive([arrival("k")])
        clock.advance(f"{DELIVERY_KEEP + DAY}ms")
        assert await store.prune(dead_keep=DAY) == 1
        [kept] = await store.delivered(SOURCES[0], ["k"])
        assert kept is not None
        assert (kept.answer, kept.key) == (b"a", None)
        [again] = await store.receive([arrival("k")])
        assert again.verdict is Verdict.DONE
    finally:
        await store.close()
