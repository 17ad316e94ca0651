"""Events as a person sees them: what was published, who subscribes, and how far each has come."""

from __future__ import annotations

import msgspec

from relevo.desk.looking import Looking
from relevo.desk.people import Person
from relevo.errors import MisuseError, NotFoundError
from relevo.events import Subscribers, Value, job_id, without_subscriber
from relevo.job import ENDED, LIVE, Job, State
from relevo.message import EVENTS
from relevo.store import Audit, Filter


class SubscriberView(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber of an event, and what its queue has left to do."""

    event: str
    name: str
    queue: str
    where: dict[str, list[Value]]
    registered_at: int
    behind: int | None  # events from this moment on are still being given to it
    waiting: int  # jobs of its queue that have not ended
    dead: int
    lag: int  # milliseconds for which the oldest of them has been due
    is_served: bool  # a running worker serves its queue


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The job by which a subscriber got an event."""

    subscriber: str
    queue: str
    job: str
    state: State | None  # None: it was not given, or its job is past its keeping time


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """A published event and the jobs of its subscribers."""

    event: Job
    given: list[Given]

    @property
    def is_spread(self) -> bool:
        """Whether every subscriber has been given it."""
        return self.event.state in ENDED


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events, newest first, and where the next page starts."""

    events: list[EventView]
    cursor: str | None


class Events(Looking):
    """What a person may see of events, and do to subscribers."""

    async def events(
        self, *, name: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> EventPage:
        """Published events, newest first, each with the jobs of today's subscribers."""
        page = await self.jobs(Filter(queue=EVENTS, kind=name), cursor, limit)
        return EventPage(events=await self._event_views(page.jobs), cursor=page.cursor)

    async def event(self, id: str) -> EventView:
        """One event by its id, or by that of the job of a subscriber."""
        job = await self.job(id)
        if job.queue != EVENTS and job.cause is not None:
            [cause] = await self.store.find([job.cause])
            job = job if cause is None or not self.sees(cause.queue) else cause
        if job.queue != EVENTS:
            raise NotFoundError(f"{job.id} is no event: `relevo jobs show` has the job")
        return (await self._event_views([job]))[0]

    async def _event_views(self, events: list[Job]) -> list[EventView]:
        lists = await Subscribers(self.store).read(sorted({event.kind for event in events}))
        asked = [
            (event.id, each, job_id(event.id, each.name))
            for event in events
            for each in lists[event.kind]
            if each.takes(event.payload)
        ]
        found = await self.store.find([job for _, _, job in asked])
        given: dict[str, list[Given]] = {}
        for (event, each, id), job in zip(asked, found, strict=True):
            line = Given(
                subscriber=each.name,
                queue=each.queue,
                job=id,
                state=None if job is None else job.state,
            )
            given.setdefault(event, []).append(line)
        return [EventView(event=event, given=given.get(event.id, [])) for event in events]

    async def subscribers(self, event: str | None = None) -> list[SubscriberView]:
        """The subscribers of every event, or of one."""
        every = await Subscribers(self.store).every()
        tallies = {tally.queue: tally for tally in await self.store.tally()}
        served = {
            queue
            for worker in await self.store.workers()
            for queue in (worker.queues if worker.is_alive else ())
        }
        found: list[SubscriberView] = []
        for name, some in sorted(every.items()):
            for each in some if event in (None, name) else ():
                if not self.sees(each.queue):
                    continue
                tally = tallies.get(each.queue)
                counts = {} if tally is None else tally.counts
                found.append(
                    SubscriberView(
                        event=name,
                        name=each.name,
                        queue=each.queue,
                        where=each.where,
                        registered_at=each.registered_at,
                        behind=each.behind,
                        waiting=sum(counts.get(state, 0) for state in LIVE),
                        dead=counts.get(State.DEAD, 0),
                        lag=0 if tally is None else tally.late or 0,
                        is_served=each.queue in served,
                    )
                )
        return found

    async def unsubscribe(
        self, event: str, name: str, by: Person, note: str = ""
    ) -> SubscriberView:
        """Take a subscriber off the list: it gets no later events. Its waiting jobs stay."""
        signed = by.acts("unsubscribe", note)
        mine = [each for each in await self.subscribers(event) if each.name == name]
        if not mine:
            raise NotFoundError(
                f"{name!r:.80} does not subscribe to {event!r:.80}; those that do: "
                "`relevo events subscribers`"
            )
        [found] = mine
        if found.is_served:
            raise MisuseError(
                f"a running worker serves {found.queue} and would register {name} again: "
                "deploy it without this listener first"
            )
        await Subscribers(self.store).change(event, without_subscriber(name))
        line = Audit(who=signed.who, verb="unsubscribe", target=f"{event} {name}", note=signed.note)
        await self.store.audit([line])
        return found
