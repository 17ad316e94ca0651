"""Changes of many jobs or deliveries, which go on while the person watches or leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from relevo.desk.bulk import BY_HAND
from relevo.desk.replaying import Replays
from relevo.desk.views import Sweep
from relevo.errors import MisuseError, NotFoundError, RelevoError
from relevo.ids import new_id
from relevo.store import Audit, By, Store
from relevo.telemetry import log

RUNNING = 8
KEPT = 100

Note = Callable[[Sweep | Replays], None]
Act = Callable[[Note], Awaitable[Sweep | Replays]]


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """A change of many, as a program asks for it."""

    id: str
    verb: str
    who: str
    total: int
    changed: int
    refused: int
    is_over: bool
    stopped: str = ""
    error: str = ""


class Sweeping:
    """One change of many jobs, and how far it has come."""

    def __init__(self, verb: str, who: str, apps: frozenset[str] | None, back: str) -> None:
        self.id = new_id()
        self.verb = verb
        self.who = who
        self.apps = apps  # of whoever began it; None: all
        self.back = back
        self.sweep: Sweep | Replays = Replays() if verb == "replay" else Sweep(total=0)
        self.error = ""
        self.task: asyncio.Task[None] | None = None
        self.told = asyncio.Event()  # it is known how many there are

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def is_stopped(self) -> bool:
        return bool(self.task and self.task.cancelled())

    def view(self) -> BulkView:
        """How far it has come."""
        by_hand = "stopped by hand" if self.is_stopped else ""
        return BulkView(
            id=self.id,
            verb=self.verb,
            who=self.who,
            total=self.sweep.total,
            changed=self.sweep.changed,
            refused=self.sweep.refused,
            is_over=self.is_over,
            stopped=self.sweep.stopped or by_hand,
            error=self.error,
        )

    async def run(self, act: Act) -> None:
        try:
            self.sweep = await act(self._note)
        except RelevoError as error:
            self.error = str(error)
        except Exception as error:  # noqa: BLE001 - shown to the person, and logged with its trace
            self.error = type(error).__name__
            log.exception("a sweep failed", extra={"sweep": self.id, "verb": self.verb})
        finally:
            self.told.set()

    def _note(self, sweep: Sweep | Replays) -> None:
        self.sweep = sweep
        self.told.set()


class Sweeps:
    """The sweeps of this process, the last hundred."""

    def __init__(self) -> None:
        self._all: dict[str, Sweeping] = {}

    def begin(self, act: Act, **about: Any) -> Sweeping:
        """Start one; MisuseError while too many are under way."""
        if sum(not each.is_over for each in self._all.values()) >= RUNNING:
            raise MisuseError(f"{RUNNING} changes of many jobs are under way; wait for one to end")
        made = Sweeping(**about)
        made.task = asyncio.create_task(made.run(act), name=f"relevo-sweep-{made.id}")
        self._all[made.id] = made
        over = [id for id, each in self._all.items() if each.is_over]
        for id in over[: max(0, len(self._all) - KEPT)]:
            del self._all[id]
        return made

    def find(self, id: str, apps: frozenset[str] | None) -> Sweeping:
        """One of them, for somebody who sees these apps."""
        found = self._all.get(id)
        if found is None or not _sees(apps, found):
            raise NotFoundError("that change is not known here: it is old, or of another process")
        return found

    def under_way(self, apps: frozenset[str] | None) -> list[Sweeping]:
        """Those that go on, newest first."""
        return [each for each in self._all.values() if not each.is_over and _sees(apps, each)][::-1]

    async def close(self) -> None:
        """Stop all of them."""
        tasks = [each.task for each in self._all.values() if each.task and not each.is_over]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def stop(self, sweeping: Sweeping, store: Store, by: By) -> None:
        """Go no further; what was changed stays changed."""
        if sweeping.task is None or sweeping.is_over:
            return
        sweeping.task.cancel(BY_HAND)
        await asyncio.wait([sweeping.task])
        said = f"{sweeping.verb}: {sweeping.sweep.changed:,} of {sweeping.sweep.total:,} changed"
        note = "; ".join(filter(None, (by.note, said)))
        await store.audit([Audit(who=by.who, verb="stop", target=sweeping.id, note=note)])


def _sees(apps: frozenset[str] | None, sweeping: Sweeping) -> bool:
    return apps is None or (sweeping.apps is not None and sweeping.apps <= apps)
