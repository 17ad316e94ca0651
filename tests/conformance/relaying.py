"""A relayed store: Redis with a SQLite file beside it, and a relay that is always in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from relevo.ids import new_id
from relevo.job import Ending
from relevo.relay import Relayed
from relevo.store import SqlStore, Store
from relevo.stores import open_store
from relevo.telemetry import Telemetry
from relevo.testing import ManualClock

# What tells of jobs, or changes them.
TELLS = """
    cancel claim count discard edit erase find groups insert page prune receive rescue resolve retry
    set_mode settle tally unpark
""".split()  # noqa: SIM905 - a list of words
BRINGS = {"insert", "receive", "resolve"}


class Prompt(Relayed):
    """A relayed store that carries its letters before and after each verb.

    The relay does so within moments of a commit, which the suite does not wait for.
    """

    def __init__(self, fast: Store, ledger: SqlStore) -> None:
        super().__init__(fast, ledger, Telemetry())
        self.within: list[Ending] = []

    def spawn(self) -> Store:
        """Another handle on both, as another process would have it."""
        return Prompt(self.fast.spawn(), cast("SqlStore", self.ledger.spawn())).as_store()

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        settled = await super().settle_within(connection, endings)
        self.within += [end for end, ours in zip(endings, settled, strict=True) if ours]
        return settled

    def transaction_ended(self, *, is_committed: bool) -> None:
        """Do what a Context does after its transaction."""
        ended, self.within = self.within, []
        for ending in ended if is_committed else ():
            self.ended_within(ending)


def _beside_the_relay(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def verb(self: Prompt, *args: Any, **how: Any) -> Any:
        await self.settle_committed()
        await self.carry()
        of_both = getattr(Relayed, name, None)
        call = getattr(self.fast, name) if of_both is None else of_both.__get__(self)
        answer = await call(*args, **how)
        if name in BRINGS:
            await self.carry()
        return answer

    return verb


for _name in TELLS:
    setattr(Prompt, _name, _beside_the_relay(_name))


@asynccontextmanager
async def fresh_relayed(clock: ManualClock, folder: Path) -> AsyncIterator[Store]:
    """An open and empty relayed store, and its relay."""
    from tests.servers import redis

    fast = open_store(redis.fresh_url(), clock=clock)
    ledger = cast("SqlStore", open_store(f"sqlite:///{folder / new_id()}.db", clock=clock))
    relayed = Prompt(fast, ledger)
    await relayed.migrate()
    await relayed.open()
    relay = asyncio.create_task(relayed.run())
    try:
        yield relayed.as_store()
    finally:
        relay.cancel()
        await asyncio.wait({relay})
        await relayed.close()
