"""The store's time, known here without asking each time."""

from __future__ import annotations

import time

from relevo.clock import Clock, milliseconds
from relevo.store import Store

ASK_EVERY = 60_000


class StoreTime:
    """Asks the store once a minute and counts on by the process's own steady clock."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._ahead = 0
        self._asked = -ASK_EVERY - 1

    def local(self) -> int:
        """A steady count of milliseconds, which a test's clock moves too."""
        return time.monotonic_ns() // 1_000_000 + milliseconds(self._clock.offset)

    async def now(self) -> int:
        """The store's now, within the drift of a minute."""
        local = self.local()
        if local - self._asked > ASK_EVERY or self._asked < 0:
            self._ahead = await self._store.now() - self.local()
            self._asked = local
        return self.last()

    def last(self) -> int:
        """The same without ever asking; right once now() has been awaited."""
        return self.local() + self._ahead
