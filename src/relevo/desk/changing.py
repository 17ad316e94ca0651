"""Changing queues, lanes and breakers while workers run, and taking it back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from relevo.changes import KIND, Override, checked, lane_name, read_changes, write_change
from relevo.clock import Duration, milliseconds, stamp
from relevo.desk.bulk import Bulk
from relevo.desk.people import Person
from relevo.errors import DefinitionError, NotFoundError
from relevo.job import LIVE, queue_name
from relevo.store import Audit, Filter

QUEUE = ("limit", "rate", "priority", "slots")
BREAKER = ("failures", "window", "cooldown", "cap", "release", "slow")


class Changing(Bulk):
    """What people may change without a deploy; each change is audited, and may have an end."""

    async def changes(self) -> list[Override]:
        """Every change in force, of the queues and breakers that are seen here."""
        return [
            each
            for each in await read_changes(self.store)
            if (self.apps is None if each.what == "breaker" else self.sees(each.name))
        ]

    async def set_queue(
        self,
        queue: str,
        by: Person,
        note: str = "",
        *,
        until: datetime | None = None,
        lasting: Duration | None = None,
        **values: Any,
    ) -> Override:
        """Override the limit, rate, priority or slots of a queue, until a moment or for good."""
        by.acts("change")
        self._check_queue(queue)
        return await self._set("queue", queue, None, by, note, until, lasting, QUEUE, values)

    async def set_breaker(
        self,
        name: str,
        by: Person,
        note: str = "",
        *,
        until: datetime | None = None,
        lasting: Duration | None = None,
        **values: Any,
    ) -> Override:
        """Override when a breaker opens, and for how long."""
        by.acts("change")
        if not 0 < len(name) <= 512:
            raise DefinitionError("a breaker's name has 1 to 512 characters")
        if self.apps is not None:
            raise NotFoundError("a breaker belongs to no app: who sees every app changes it")
        return await self._set("breaker", name, None, by, note, until, lasting, BREAKER, values)

    async def set_lane(
        self,
        queue: str,
        lane: str,
        limit: int,
        by: Person,
        note: str = "",
        *,
        until: datetime | None = None,
        lasting: Duration | None = None,
    ) -> Override:
        """Let no more jobs of a lane run at once; with 0, none begins."""
        by.acts("change")
        self._check_queue(queue)
        values = {"limit": limit}
        place = lane_name(lane)
        return await self._set("lane", queue, place, by, note, until, lasting, QUEUE[:1], values)

    async def unset(
        self, what: str, name: str, by: Person, note: str = "", *, lane: str | None = None
    ) -> bool:
        """Take a change back: what the code says holds again; False if nothing was changed."""
        signed = by.acts("change", note)
        if what != "breaker":
            self._check_queue(name)
        elif self.apps is not None:
            raise NotFoundError("a breaker belongs to no app: who sees every app changes it")
        place = " ".join([what, name, *([] if lane is None else [lane])])
        known = next((each for each in await self.changes() if each.place == place), None)
        if known is None:
            return False
        # First the line: a crash in between leaves one too many, and no act that is not written.
        row = Audit(who=signed.who, verb=f"unset {what}", target=_target(known))
        await self.store.audit([replace(row, note=signed.note, before=str(known))])
        return await self.store.forget(KIND, [place]) > 0

    async def cancel_lane(self, queue: str, lane: str, by: Person, note: str = "") -> int:
        """End every job of a lane that has not ended; answers how many there were."""
        by.acts("cancel")
        self._check_queue(queue)
        where = Filter(queue=queue, lane=lane_name(lane), states=LIVE)
        return (await self.cancel_where(where, by, note)).changed

    def _check_queue(self, queue: str) -> None:
        if not self.sees(queue_name(queue)):
            raise NotFoundError(f"no queue is called {queue}")

    async def _set(
        self,
        what: Any,
        name: str,
        lane: str | None,
        by: Person,
        note: str,
        until: datetime | None,
        lasting: Duration | None,
        settable: tuple[str, ...],
        values: dict[str, Any],
    ) -> Override:
        signed = by.acts("change", note)
        if until is not None and lasting is not None:
            raise DefinitionError("say until when or for how long, not both")
        given = {key: value for key, value in values.items() if value is not None}
        if not given or set(given) - set(settable):
            raise DefinitionError(f"nothing to change: give {', '.join(settable)}")
        now = await self.store.now()
        end = 0 if until is None else stamp(until)
        if lasting is not None:
            end = now + max(1, milliseconds(lasting))
        if end and end <= now:
            raise DefinitionError("the change would end before it begins: give a later moment")
        change = Override(
            what=what, name=name, lane=lane, by=signed.who, note=signed.note, until=end, **given
        )
        checked(change)

        async def write_down(before: Override | None, whole: Override) -> None:
            said = "; ".join(
                filter(None, (signed.note, "paused" if whole.is_pause else whole.said))
            )
            row = Audit(who=signed.who, verb=f"set {what}", target=_target(whole), note=said)
            await self.store.audit([replace(row, before=str(before or ""), after=str(whole))])

        return await write_change(self.store, change, write_down)


def _target(change: Override) -> str:
    return change.name if change.lane is None else f"{change.name} {change.lane}"
