"""Bulkheads: where a worker serves several queues, none of them takes all of its slots.

A slow provider holds the slots of its own queue; the jobs of the other queues have the rest. Two
places keep that: the claimer takes no more jobs of a queue than it has slots left, and a runner
puts a job aside that was claimed while the jobs of its queue were still quick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from relevo.errors import SettingsError
from relevo.store import Want

if TYPE_CHECKING:
    from relevo.worker import Flight

SHARED = 5
"""One slot in so many is kept free of each single queue, unless its number of slots is given."""


TIGHT = 4  # a queue that has room for less than one part in so many is claimed by itself


class Share:
    """The slots of one queue in one worker."""

    __slots__ = ("ahead", "aside", "finished", "is_left_out", "noted", "queue", "running", "slots")

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self.slots = slots
        self.running = 0
        self.finished = 0
        self.noted = 0  # `finished` at the last look
        self.ahead = 0  # how many may be claimed ahead, as its jobs are quick
        self.aside: deque[Flight] = deque()  # claimed, and waiting for a slot of their queue
        self.is_left_out = False  # of the last claim


class Bulkheads:
    """The slots of each queue of a worker; none where it serves one queue and was told nothing."""

    def __init__(self, queues: Iterable[str], concurrency: int, given: Mapping[str, int]) -> None:
        self._queues = list(queues)
        self._concurrency = concurrency
        self._given = dict(given)
        self.shares: dict[str, Share] = {}
        self.set({})

    def set(self, changed: Mapping[str, int]) -> list[Share]:
        """Give queues other numbers of slots, also while the worker runs; answers new shares."""
        new: list[Share] = []
        usual = self._concurrency
        if len(self._queues) > 1:
            usual -= usual // SHARED
        given = {**self._given, **changed}
        for queue in self._queues:
            slots = min(given.get(queue, usual), self._concurrency)
            if queue in self.shares:
                self.shares[queue].slots = slots
            elif slots < self._concurrency:
                new.append(Share(queue, slots))
                self.shares[queue] = new[-1]
        return new

    @property
    def slots(self) -> dict[str, int]:
        """The slots of each queue that may not take all of them."""
        limited = [each for each in self.shares.values() if each.slots < self._concurrency]
        return {share.queue: share.slots for share in limited}

    @property
    def aside(self) -> list[deque[Flight]]:
        return [share.aside for share in self.shares.values()]

    def note(self, seconds: float, ahead: float) -> None:
        """See how quick the jobs of each queue have been for so many seconds."""
        for share in self.shares.values():
            share.ahead = int((share.finished - share.noted) / seconds * ahead)
            share.noted = share.finished

    def portions(
        self, wants: list[Want], count: int, local: Iterable[Flight]
    ) -> list[tuple[list[Want], int]]:
        """What to claim, so that no queue gets more jobs than it has slots for: mostly all queues
        at once. A queue with few slots left is claimed by itself, and one with none is left out."""
        waiting: dict[str, int] = {}
        for flight in local:
            queue = flight.lease.queue
            waiting[queue] = waiting.get(queue, 0) + 1
        open_: list[Want] = []
        tight: list[tuple[list[Want], int]] = []
        most = count
        for want in wants:
            share = self.shares.get(want.queue)
            if share is None:
                open_.append(want)
                continue
            room = 0 if share.aside else share.slots - share.running
            if room > 0:
                room += share.ahead - waiting.get(want.queue, 0)
            share.is_left_out = room <= 0
            if room >= count / TIGHT:
                open_.append(want)
                most = min(most, room)
            elif room > 0:
                tight.append(([want], room))
        return [*([(open_, most)] if open_ else []), *tight]


def check_slots(given: Mapping[str, int], queues: Iterable[str]) -> None:
    """SettingsError for slots of a queue that no worker here has, or for no number of slots."""
    known = set(queues)
    for queue, slots in given.items():
        if queue not in known:
            raise SettingsError(
                f"slots for {queue!r:.80}, which no worker here serves; known queues: "
                + (", ".join(sorted(known)) or "none")
            )
        if type(slots) is not int or not 1 <= slots <= 10_000:
            raise SettingsError(f"the slots of {queue} are 1 to 10,000, not {slots!r:.40}")
