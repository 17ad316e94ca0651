"""What a run starts, it starts once, whatever becomes of the run: F51 and F52."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from relevo.store import Filter, Store
from tests.conformance.fresh import SQL_STORES
from tests.faults.conftest import STORES_HERE, short_on
from tests.faults.every_call import Tale
from tests.faults.every_call import main as die_everywhere
from tests.faults.fleet import NURSERY
from tests.faults.ledger import Ledger
from tests.faults.starts import POSTS, STARTS, Tock, turn_and_die
from tests.faults.verdict import SEEN, drained, whole

SERVERS = [one for one in STORES_HERE if one not in SQL_STORES]


async def every_start(
    store: Store, ledger: Ledger, folder: Path, tale: Tale, *, stride: int, waves: int
) -> None:
    """Die at every `stride`-th call; then each run has started everything once."""
    database = None
    if tale is POSTS and store.name not in ("sqlite", "postgres"):
        database = f"sqlite:///{folder / 'outbox.db'}"
    out, where = folder / "said", (store.dsn, database, str(ledger.path))
    much = (stride, random.randrange(stride), waves)
    process = NURSERY.Process(target=die_everywhere, args=(*where, *much, str(out), tale))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == 0, out.read_text()[-4_000:]
    told: dict[str, int] = json.loads(out.read_text().splitlines()[-1])
    lost, doubled = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for part, many in tale.parts.items():
        wanted = Counter(dict.fromkeys(range(1, told["stories"] + 1), many))
        counts, keys = ledger.counts(part), ledger.keys(part)
        for number in wanted | counts:
            lost[number, part] = max(0, wanted[number] - keys[number])
            # A second key is a second charge; a second line with one key would be one too.
            doubled[number, part] = max(0, max(keys[number], counts[number]) - wanted[number])
    ledger.verdict = lost.total(), doubled.total()
    assert (+lost, +doubled) == ({}, {})
    await drained(store)
    assert await store.count(Filter(states=SEEN)) == 0
    whole(store)
    assert told["died"] >= 3


async def test_f51_a_run_that_dies_anywhere_starts_nothing_twice(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await every_start(store, ledger, tmp_path, STARTS, stride=11, waves=1)


@pytest.mark.soak
async def test_f51_a_run_that_dies_at_every_call_starts_nothing_twice(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await every_start(store, ledger, tmp_path, STARTS, stride=1, waves=100)


@pytest.mark.parametrize("store_name", short_on("sqlite", "redis"))
async def test_f51_what_a_run_posts_in_a_transaction_is_posted_once(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """With Redis by way of an outbox."""
    await every_start(store, ledger, tmp_path, POSTS, stride=13, waves=1)


@pytest.mark.soak
async def test_f51_what_a_run_posts_is_posted_once_wherever_it_dies(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await every_start(store, ledger, tmp_path, POSTS, stride=1, waves=100)


async def turned(store: Store, ledger: Ledger, folder: Path, database: str | None) -> None:
    turns = 100
    out = folder / "said"
    where = (store.dsn, database, str(ledger.path))
    process = NURSERY.Process(target=turn_and_die, args=(*where, turns, str(out)))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == 0, out.read_text()[-4_000:]
    assert json.loads(out.read_text().splitlines()[-1])["died"] >= 2
    looks, tocks = ledger.counts("look"), ledger.facts("tock")
    ledger.verdict = turns - len(looks), len(tocks) - turns
    assert looks == Counter(range(turns)), "each turn looks once"
    assert ledger.keys("look") == Counter(range(turns))
    assert len(tocks) == len({fact.word for fact in tocks}) == turns
    assert await store.count(Filter(queue=Tock.__relevo__.queue)) == turns


@pytest.mark.parametrize("store_name", short_on("sqlite"))
async def test_f52_a_hundred_turns_of_a_poller_start_a_hundred_jobs(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await turned(store, ledger, tmp_path, None)


@pytest.mark.parametrize("store_name", SERVERS)
async def test_f52_beside_an_outbox_too(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    await turned(store, ledger, tmp_path, f"sqlite:///{tmp_path / 'outbox.db'}")
