"""What lives beside jobs: flows, breakers, pollers, schedules, workers, effects, audit, traces."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from relevo.api.call import Asked, Call, Caller, Cursor, Limit, Note, Page, Text
from relevo.api.jobs import Nothing, Turned
from relevo.clock import stamp
from relevo.desk import (
    ACTIONS,
    AfterRestore,
    BreakerView,
    EventView,
    FlowRow,
    FlowView,
    Forgotten,
    Found,
    GroupView,
    Override,
    Reason,
    RecurringView,
    Role,
    Story,
    SubscriberView,
    What,
)
from relevo.restored import Mark
from relevo.store import Audit, Effect, EffectState, WorkerInfo

# flows


class SomeFlows(Asked):
    unfinished: bool = False
    cursor: Cursor | None = None
    limit: Limit = 20


class OneFlow(Asked):
    id: str


class OneFlowNoted(OneFlow):
    note: Note = ""


class FlowRetry(OneFlowNoted):
    node: Text | None = None


class Nodes(Struct, frozen=True):
    """Which jobs of a flow were changed."""

    changed: dict[str, bool]


async def list_flows(caller: Caller, ask: SomeFlows) -> Page[FlowRow]:
    """Recent flows, newest first; a page without flows but with a cursor: there are older jobs."""
    rows, cursor = await caller.desk.flows(
        unfinished=ask.unfinished, cursor=ask.cursor, limit=ask.limit
    )
    return Page(items=rows, cursor=cursor)


async def show_flow(caller: Caller, ask: OneFlow) -> FlowView:
    """A flow by its id, its key, or the id of one of its jobs."""
    flow = await caller.desk.flow(ask.id)
    return replace(flow, nodes=[caller.job(node) for node in flow.nodes])


async def explain_flow(caller: Caller, ask: OneFlow) -> Page[Reason]:
    """What each node that has not ended well waits for, why, and what to do."""
    return Page(items=await caller.desk.explain(await caller.desk.flow(ask.id)))


async def cancel_flow(caller: Caller, ask: OneFlowNoted) -> Nodes:
    """End every live node."""
    flow = await caller.desk.flow(ask.id)
    return Nodes(await caller.desk.cancel_flow(flow, caller.person, ask.note))


async def retry_flow(caller: Caller, ask: FlowRetry) -> Nodes:
    """Retry what ended badly and is still needed; with a node, only that one and what it needs."""
    flow = await caller.desk.flow(ask.id)
    return Nodes(await caller.desk.retry_flow(flow, caller.person, ask.note, node=ask.node))


# groups of jobs


class SomeGroups(Asked):
    limit: Limit = 20


class Ended(Struct, frozen=True):
    """How many jobs were ended."""

    cancelled: int


async def list_groups(caller: Caller, ask: SomeGroups) -> Page[GroupView]:
    """The groups that were opened last, newest first."""
    return Page(items=await caller.desk.job_groups(limit=ask.limit))


async def show_group(caller: Caller, ask: OneFlow) -> GroupView:
    """A group by its name, or the id of the job that waits for its members."""
    return await caller.desk.job_group(ask.id)


async def cancel_group(caller: Caller, ask: OneFlowNoted) -> Ended:
    """End every member that has not ended, and the job that waits for them."""
    group = await caller.desk.job_group(ask.id)
    return Ended(await caller.desk.cancel_group(group, caller.person, ask.note))


# breakers


class One(Asked):
    name: str


class OneNoted(One):
    note: Note = ""


async def list_breakers(caller: Caller, ask: Nothing) -> Page[BreakerView]:
    """Every breaker that was ever troubled, open ones first."""
    return Page(items=await caller.desk.breakers())


async def show_breaker(caller: Caller, ask: One) -> BreakerView:
    """One breaker with its history."""
    return await caller.desk.breaker(ask.name)


async def open_breaker(caller: Caller, ask: OneNoted) -> BreakerView:
    """Stop calling: jobs are parked until it closes."""
    return await caller.desk.turn_breaker(ask.name, "open", caller.person, ask.note)


async def close_breaker(caller: Caller, ask: OneNoted) -> BreakerView:
    """Call again, and let the parked jobs go, spread over time."""
    return await caller.desk.turn_breaker(ask.name, "close", caller.person, ask.note)


async def probe_breaker(caller: Caller, ask: OneNoted) -> BreakerView:
    """Let one job try now."""
    return await caller.desk.turn_breaker(ask.name, "probe", caller.person, ask.note)


class BreakerSet(OneNoted):
    failures: int | None = None
    window: str | None = None
    cooldown: str | None = None
    cap: str | None = None
    release: int | None = None
    slow: Annotated[str, Meta(description="A call that takes longer is a failure.")] | None = None
    until: Annotated[datetime, Meta(tz=True)] | None = None
    lasting: Annotated[str, Meta(description="For how long, such as 2h.")] | None = None


async def set_breaker(caller: Caller, ask: BreakerSet) -> Override:
    """Change when a breaker opens, and for how long, while workers run."""
    return await caller.desk.set_breaker(
        ask.name,
        caller.person,
        ask.note,
        until=ask.until,
        lasting=ask.lasting,
        failures=ask.failures,
        window=ask.window,
        cooldown=ask.cooldown,
        cap=ask.cap,
        release=ask.release,
        slow=ask.slow,
    )


async def unset_breaker(caller: Caller, ask: OneNoted) -> Turned:
    """Take back what was changed of a breaker."""
    return Turned(await caller.desk.unset("breaker", ask.name, caller.person, ask.note))


# pollers and schedules


def _recurring(what: What) -> tuple[Call, ...]:
    async def find(caller: Caller, ask: Nothing) -> Page[RecurringView]:
        """Every one of them, by queue and name."""
        found = await caller.desk.recurring(what)
        return Page(items=[caller.recurring(each) for each in found])

    async def show(caller: Caller, ask: One) -> RecurringView:
        """One, by its name or its job's id."""
        return caller.recurring(await caller.desk.recurring_one(what, ask.name))

    async def pause(caller: Caller, ask: OneNoted) -> Turned:
        """Switch one off until it is resumed."""
        return Turned(await caller.desk.pause_recurring(what, ask.name, caller.person, ask.note))

    async def resume(caller: Caller, ask: OneNoted) -> Turned:
        """Switch one on again."""
        return Turned(await caller.desk.resume_recurring(what, ask.name, caller.person, ask.note))

    async def run(caller: Caller, ask: OneNoted) -> Turned:
        """Take a turn now; unchanged when one is being taken."""
        return Turned(await caller.desk.run_recurring(what, ask.name, caller.person, ask.note))

    return (
        Call("GET", f"/{what}s", "look", find),
        Call("POST", f"/{what}s/{{name:path}}/pause", "pause", pause),
        Call("POST", f"/{what}s/{{name:path}}/resume", "resume", resume),
        Call("POST", f"/{what}s/{{name:path}}/run", "retry", run),
        Call("GET", f"/{what}s/{{name:path}}", "look", show),
    )


# workers, effects, audit, traces


class OneWorker(Asked):
    id: str
    note: Note = ""


class SomeEffects(Asked):
    job: Text | None = None
    state: tuple[EffectState, ...] = ()
    text: Text | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class OneEffect(Asked):
    job: str
    name: str


class EffectDenied(OneEffect):
    note: Note = ""
    fresh_key: Annotated[bool, Meta(description="Ask the provider with another key.")] = False


class EffectConfirmed(OneEffect, kw_only=True):
    note: Note = ""
    result: Any  # what `once` shall answer with
    anyway: Annotated[
        bool, Meta(description="Even if the call's type= or earlier results say otherwise.")
    ] = False


class Decided(Struct, frozen=True):
    """Whether the job goes on; if not, the fact is written but the job cannot be retried."""

    retried: bool


class SomeAudits(Asked):
    target: Text | None = None
    who: Annotated[Text, Meta(description="One person.")] | None = None
    verb: Annotated[Text, Meta(description="As the audit has it, such as retry many.")] | None = (
        None
    )
    since: Annotated[datetime, Meta(tz=True, description="Done then or later.")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class Search(Asked):
    q: Annotated[str, Meta(min_length=3, max_length=500)]


class OnePerson(Asked):
    key: Annotated[Text, Meta(description="The key of a delivery or job.")] | None = None
    thread: Annotated[Text, Meta(description="A thread, or the id of something in it.")] | None = (
        None
    )
    text: (
        Annotated[Text, Meta(description="Found literally in what came or was ordered.")] | None
    ) = None
    note: Note = ""
    dry_run: Annotated[bool, Meta(description="Only tell what would be erased.")] = False


class Me(Struct, frozen=True):
    """Who you are, and what you may do."""

    name: str
    role: Role
    may: list[str]
    apps: list[str] | None = None  # null: all of them


async def list_workers(caller: Caller, ask: Nothing) -> Page[WorkerInfo]:
    """The workers of the last day: who is alive, blocked, silent or gone, and what each runs."""
    return Page(items=await caller.desk.workers())


async def forget_worker(caller: Caller, ask: OneWorker) -> Turned:
    """Take a worker that is silent or gone off the list."""
    await caller.desk.forget_worker(ask.id, caller.person, ask.note)
    return Turned(changed=True)


async def list_effects(caller: Caller, ask: SomeEffects) -> Page[Effect]:
    """The effect ledger, newest first; results masked for viewers."""
    effects, cursor = await caller.desk.effects(
        job=ask.job,
        states=frozenset(ask.state),
        text=ask.text,
        cursor=ask.cursor,
        limit=ask.limit,
    )
    return Page(items=[caller.effect(effect) for effect in effects], cursor=cursor)


async def show_effect(caller: Caller, ask: OneEffect) -> Effect:
    """One effect of a job."""
    return caller.effect(await caller.desk.effect(ask.job, ask.name))


async def confirm_effect(caller: Caller, ask: EffectConfirmed) -> Decided:
    """It did happen, and this came of it: the job goes on with the result."""
    return Decided(
        await caller.desk.confirm_effect(
            ask.job, ask.name, ask.result, caller.person, ask.note, anyway=ask.anyway
        )
    )


async def deny_effect(caller: Caller, ask: EffectDenied) -> Decided:
    """It did not happen: the job goes on and asks for it again with the same key."""
    return Decided(
        await caller.desk.deny_effect(
            ask.job, ask.name, caller.person, ask.note, fresh_key=ask.fresh_key
        )
    )


async def list_audits(caller: Caller, ask: SomeAudits) -> Page[Audit]:
    """What people did, newest first."""
    rows, cursor = await caller.desk.audits(
        target=ask.target,
        who=ask.who,
        verb=ask.verb,
        since=None if ask.since is None else stamp(ask.since),
        cursor=ask.cursor,
        limit=ask.limit,
    )
    return Page(items=rows, cursor=cursor)


async def trace(caller: Caller, ask: Search) -> Story:
    """The whole story of an id, a key, a provider's code, or any text that occurs in it."""
    story = await caller.desk.trace(ask.q)
    return replace(
        story,
        deliveries=[caller.delivery(kept) for kept in story.deliveries],
        jobs=[caller.job(job) for job in story.jobs],
        effects=[caller.effect(effect) for effect in story.effects],
    )


async def search(caller: Caller, ask: Search) -> Found:
    """The stories that are called so or carry it, and apart from them those that contain it."""
    return await caller.desk.search(ask.q)


async def forget(caller: Caller, ask: OnePerson) -> Forgotten:
    """Erase what has ended of one person, found by one of key, thread and text; say why."""
    if ask.dry_run:
        return await caller.desk.forget_preview(
            caller.person, key=ask.key, thread=ask.thread, text=ask.text
        )
    return await caller.desk.forget(
        caller.person, key=ask.key, thread=ask.thread, text=ask.text, note=ask.note
    )


class Noted(Asked):
    note: Note = ""


async def show_restore(caller: Caller, ask: Nothing) -> AfterRestore:
    """What was under way in the copy that the store was restored from; 404 if it never was."""
    seen = await caller.desk.after_restore()
    return replace(seen, effects=[caller.effect(effect) for effect in seen.effects])


async def end_restore(caller: Caller, ask: Noted) -> Mark:
    """Say that what a restore has lost has come again: new effects are made without a look-up."""
    return await caller.desk.end_restore(caller.person, ask.note)


async def me(caller: Caller, ask: Nothing) -> Me:
    """Who you are, and what you may do."""
    apps = caller.desk.apps
    return Me(
        caller.person.name,
        caller.person.role,
        [action for action in ACTIONS if caller.person.may(action)],
        None if apps is None else sorted(apps),
    )


# events


class SomeEvents(Asked):
    event: Annotated[Text, Meta(description="Only events of this name.")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class OneEvent(Asked):
    id: str


class SomeSubscribers(Asked):
    event: Annotated[Text, Meta(description="Only those of this event.")] | None = None


class OneSubscriber(Asked):
    event: str
    name: str
    note: Note = ""


async def list_events(caller: Caller, ask: SomeEvents) -> Page[EventView]:
    """Published events, newest first, each with the jobs of its subscribers."""
    page = await caller.desk.events(name=ask.event, cursor=ask.cursor, limit=ask.limit)
    return Page(items=[_event(caller, each) for each in page.events], cursor=page.cursor)


async def show_event(caller: Caller, ask: OneEvent) -> EventView:
    """One event, by its id or that of the job of a subscriber."""
    return _event(caller, await caller.desk.event(ask.id))


def _event(caller: Caller, seen: EventView) -> EventView:
    return replace(seen, event=caller.job(seen.event))


async def list_subscribers(caller: Caller, ask: SomeSubscribers) -> Page[SubscriberView]:
    """Who subscribes to which event, what waits for each, and whether a worker serves it."""
    return Page(items=await caller.desk.subscribers(ask.event))


async def unsubscribe(caller: Caller, ask: OneSubscriber) -> SubscriberView:
    """Take a subscriber off the list: it gets no later events. Its waiting jobs stay."""
    return await caller.desk.unsubscribe(ask.event, ask.name, caller.person, ask.note)


CALLS = (
    Call("GET", "/events", "look", list_events),
    Call("GET", "/events/{id}", "look", show_event),
    Call("GET", "/subscribers", "look", list_subscribers),
    Call("POST", "/subscribers/{event}/{name}/unsubscribe", "unsubscribe", unsubscribe),
    Call("GET", "/flows", "look", list_flows),
    Call("GET", "/flows/{id:path}/reasons", "look", explain_flow),
    Call("POST", "/flows/{id:path}/cancel", "cancel", cancel_flow),
    Call("POST", "/flows/{id:path}/retry", "retry", retry_flow),
    Call("GET", "/flows/{id:path}", "look", show_flow),
    Call("GET", "/groups", "look", list_groups),
    Call("POST", "/groups/{id:path}/cancel", "cancel", cancel_group),
    Call("GET", "/groups/{id:path}", "look", show_group),
    Call("GET", "/breakers", "look", list_breakers),
    Call("POST", "/breakers/{name:path}/set", "change", set_breaker),
    Call("POST", "/breakers/{name:path}/unset", "change", unset_breaker),
    Call("POST", "/breakers/{name:path}/open", "turn_breaker", open_breaker),
    Call("POST", "/breakers/{name:path}/close", "turn_breaker", close_breaker),
    Call("POST", "/breakers/{name:path}/probe", "turn_breaker", probe_breaker),
    Call("GET", "/breakers/{name:path}", "look", show_breaker),
    *_recurring("poller"),
    *_recurring("schedule"),
    Call("GET", "/workers", "look", list_workers),
    Call("POST", "/workers/{id:path}/forget", "forget_worker", forget_worker),
    Call("GET", "/effects", "look", list_effects),
    Call("POST", "/effects/{job}/{name:path}/confirm", "confirm_effect", confirm_effect),
    Call("POST", "/effects/{job}/{name:path}/deny", "deny_effect", deny_effect),
    Call("GET", "/effects/{job}/{name:path}", "look", show_effect),
    Call("GET", "/audit", "look", list_audits),
    Call("GET", "/trace", "look", trace),
    Call("GET", "/search", "look", search),
    Call("POST", "/forget", "forget", forget),
    Call("GET", "/restore", "look", show_restore),
    Call("POST", "/restore/end", "restore", end_restore),
    Call("GET", "/me", "look", me),
)
