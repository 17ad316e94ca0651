"""What happens to the SQLite file itself: F18, F19, F21, and locks that must outlive a look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from relevo import Relevo
from relevo.job import State
from relevo.store import Filter
from relevo.stores import open_store
from tests.faults import apps
from tests.faults.apps import Nap
from tests.faults.fleet import HOME
from tests.faults.ledger import Ledger

ENQUEUE = """
import asyncio, sys
from relevo import Relevo
from tests.faults.apps import Nap

async def main(url, number):
    async with Relevo(url) as relevo:
        await relevo.enqueue(Nap(int(number), 0))

asyncio.run(main(*sys.argv[1:]))
"""


def enqueue_elsewhere(url: str, number: int) -> None:
    """Another process opens the store, enqueues, and leaves."""
    subprocess.run([sys.executable, "-c", ENQUEUE, url, str(number)], cwd=HOME, check=True)


async def test_a_second_handle_does_not_drop_the_locks_of_the_first(
    tmp_path: Path, ledger: Ledger
) -> None:
    """Or the next process to leave removes the log that the first still writes to."""
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    async with Relevo(url, apps=[apps.app(ledger)]) as relevo:
        await relevo.enqueue(Nap(1, 0))
        second = Relevo(url)
        async with second:
            await second.enqueue(Nap(2, 0))
        enqueue_elsewhere(url, 3)
        await relevo.enqueue(Nap(4, 0))
        enqueue_elsewhere(url, 5)

        assert await relevo.store.count(Filter(states=frozenset({State.READY}))) == 5

    fresh = open_store(url)
    await fresh.open()
    assert await fresh.count(Filter()) == 5
    await fresh.close()
