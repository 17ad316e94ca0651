"""Group: when all are done, one job more.

group = await relevo.group("import:2026-11-18", then=Report(day))
await group.add_many(Row(number) for number in rows)
await group.close()

`then` is a job that waits from the beginning. Anybody adds members while the group is open, and
members that have not ended once it is closed. When it is closed and the last of them has ended,
well or not, `then` runs, and `ctx.members()` tells it how many ended how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from relevo.backoff import exponential
from relevo.context import calls_here
from relevo.errors import NotFoundError
from relevo.message import Command
from relevo.pending import noted
from relevo.store import JobGroup

if TYPE_CHECKING:
    from relevo.engine import Relevo
    from relevo.job import Receipt
    from relevo.orders import Wishes

NAME_MAX = 200


class CloseGroup(
    Command,
    queue="relevo:groups:close",
    name="group:close",
    attempts=100,
    backoff=exponential("1s", cap="1m"),
    timeout="45s",
    keep="1d",
):
    """Close a group once a transaction or a delivery has committed; it lies in `then`'s queue."""

    group: str


class Group:
    """A group of jobs on its way; get it by `relevo.group()` or `ctx.group()`."""

    def __init__(self, engine: Relevo, id: str, queue: str, name: str) -> None:
        self._engine = engine
        self.id = id  # of the job that waits for all members
        self.queue = queue  # where that job runs
        self.name = name

    @noted("group", calls_here)
    async def add(self, command: Command, *, tx: Any = None, **wishes: Unpack[Wishes]) -> Receipt:
        """Order something that the group waits for, as safe as with enqueue().

        GroupClosed once the group is closed, unless a member adds it that has not ended. A command
        that joins a job by its key makes that job a member.
        """
        [receipt] = await self._engine.add_to(self, [command], tx, wishes)
        return receipt

    @noted("group", calls_here)
    async def add_many(self, commands: Iterable[Command], *, tx: Any = None) -> Sequence[Receipt]:
        """Order many things that the group waits for, in batches."""
        return await self._engine.add_to(self, commands, tx, {})

    @noted("group", calls_here)
    async def close(self, *, tx: Any = None) -> None:
        """Say that no more comes but from members: `then` runs when all that are there have ended.

        In a transaction, or a webhook's function, it is closed soon after that has committed. To
        close it once more changes nothing.
        """
        await self._engine.close_group(self, tx)

    async def progress(self) -> JobGroup:
        """How many members there are, and how many have ended how."""
        [found] = await self._engine.store.job_groups([self.id])
        if found is None:
            raise NotFoundError(f"the group '{self.name}' is not stored yet, or no longer kept")
        return found
