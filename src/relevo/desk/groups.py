"""Groups of jobs at the desk: which there are, how far they have come, ending them."""

from __future__ import annotations

import msgspec

from relevo.desk.looking import PAGE_MAX, Looking
from relevo.desk.people import Person
from relevo.errors import MisuseError, NotFoundError
from relevo.ids import parse_id
from relevo.job import State
from relevo.store import BATCH, Gate, JobGroup

NAMES = "group"  # the kind of the notes in which the engine keeps groups' names
FORGOTTEN_AFTER = 3_600_000
"""Milliseconds for which a group may be open without a live member before `doctor` names it."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group of jobs, with the state of the job that waits for all of them."""

    id: str  # that job's
    name: str
    queue: str
    state: State
    gate: Gate
    members: int
    live: int
    done: int
    dead: int
    cancelled: int
    opened_at: int
    closed_at: int | None = None

    @property
    def share(self) -> float:
        """How much of it has ended, of 1."""
        return 1 - self.live / self.members if self.members else 0.0


class Groups(Looking):
    """What a person may see of groups, and do to them."""

    async def job_groups(self, *, limit: int = 50) -> list[GroupView]:
        """The groups that were opened last, newest first."""
        found = await self.store.newest_groups(min(max(limit, 1), PAGE_MAX))
        return await self._views([each for each in found if self.sees(each.queue)])

    async def job_group(self, anything: str) -> GroupView:
        """The group of a name, or of the id of the job that waits for its members."""
        text = anything.strip()
        id = parse_id(text)
        if id is None and text:
            [note] = await self.store.recall(NAMES, [text])
            id = None if note is None else note.value.decode().partition("\n")[0]
        [found] = await self.store.job_groups([id or ""])
        views = [] if found is None or not self.sees(found.queue) else await self._views([found])
        if not views:
            raise NotFoundError(
                f"no group is called {text!r:.80}: give its name, or the id of the job that waits "
                "for its members"
            )
        return views[0]

    async def cancel_group(self, group: GroupView, by: Person, note: str = "") -> int:
        """End every member that has not ended, and the job that waits for them; answers how many.

        It takes no more members first. Cancelled half way, it is cancelled to the end next time.
        """
        signed = by.acts("cancel", note)
        if group.state is not State.WAITING:
            raise MisuseError(
                f"the group '{group.name}' waits no more: its job is {group.state}, see `relevo "
                f"jobs show {group.id}`"
            )
        await self.store.set_gate([group.id], Gate.SHUT)
        ended = 0
        while members := await self.store.live_members(group.id, BATCH):
            changed = sum(await self.store.cancel(members, signed))
            if not changed:  # they have ended by themselves, and their group is about to hear of it
                break
            ended += changed
        return ended + sum(await self.store.cancel([group.id], signed))

    async def forgotten_groups(self) -> list[GroupView]:
        """Groups that have been open for long and have no live member: nobody closed them."""
        before = await self.store.now() - FORGOTTEN_AFTER
        return [
            group
            for group in await self.job_groups(limit=PAGE_MAX)
            if group.gate is Gate.OPEN
            and group.state is State.WAITING
            and not group.live
            and group.opened_at < before
        ]

    async def _views(self, groups: list[JobGroup]) -> list[GroupView]:
        jobs = await self.store.find([group.id for group in groups])
        return [
            GroupView(
                id=group.id,
                name=group.name,
                queue=group.queue,
                state=job.state,
                gate=group.gate,
                members=group.members,
                live=group.live,
                done=group.done,
                dead=group.dead,
                cancelled=group.cancelled,
                opened_at=group.opened_at,
                closed_at=group.closed_at,
            )
            for group, job in zip(groups, jobs, strict=True)
            if job is not None
        ]
