"""Deliveries, and the outbox: what came in, and what waits to go on."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from relevo.api.call import Asked, Call, Caller, Cursor, Limit, Note, Page, Text
from relevo.clock import stamp
from relevo.desk import DeliveryGroups, DeliveryQuery, DeliveryView, OutboxView, Replay, Replays
from relevo.errors import DefinitionError
from relevo.message import rate as rate_of
from relevo.relay import Relayed
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.unrouted import Unrouted

LONGEST = 30_000
"""Milliseconds of a call that handles many at a rate; the cursor goes on where it ended."""

Since = Annotated[datetime, Meta(tz=True, description="Received then or later.")]


class SomeDeliveries(Asked):
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    state: DeliveryState | None = None
    key: Annotated[Text, Meta(description="The provider's own id.")] | None = None
    thread: Text | None = None
    text: Annotated[Text, Meta(description="Found literally in key, body or reason.")] | None = None
    since: Since | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class SomeUnrouted(Asked):
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    limit: Limit = 50


class SomeGroups(Asked):
    state: Annotated[tuple[DeliveryState, ...], Meta(description="failed unless told.")] = (
        DeliveryState.FAILED,
    )
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    since: Since | None = None
    limit: Limit = 50


class OneDelivery(Asked):
    id: str


class DeliveryReplay(OneDelivery):
    note: Note = ""
    dry_run: Annotated[bool, Meta(description="Only tell what would be enqueued.")] = False
    repeat_effects: Annotated[
        bool, Meta(description="Make effects that are confirmed once more, too.")
    ] = False


class ManyReplays(Asked):
    state: Annotated[DeliveryState, Meta(description="failed, differs, refused or accepted.")]
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    since: Since | None = None
    until: Annotated[datetime, Meta(tz=True, description="Received before.")] | None = None
    error: Annotated[Text, Meta(description="Found literally in the reason.")] | None = None
    group: Annotated[Text, Meta(description="A group's fingerprint.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=100, description="How many in this call.")] = 100
    cursor: (
        Annotated[
            Cursor, Meta(description="Where the call before this one ended; ask the same of it.")
        ]
        | None
    ) = None
    rate: (
        Annotated[
            Text,
            Meta(description="No faster, as 5/s; a call handles what fits into 30 s."),
        ]
        | None
    ) = None
    canary: Annotated[int, Meta(ge=1, le=200, description="So many first.")] | None = None
    note: Note = ""
    dry_run: Annotated[
        bool, Meta(description="Only tell which would be handled, and which effects are confirmed.")
    ] = False
    repeat_effects: Annotated[
        bool, Meta(description="Make effects that are confirmed once more, too.")
    ] = False


class SomeLetters(Asked):
    limit: Limit = 50


async def list_deliveries(caller: Caller, ask: SomeDeliveries) -> Page[Kept]:
    """What was delivered, newest first, without bodies."""
    where = Letterbox(
        endpoint=ask.endpoint, state=ask.state, key=ask.key, thread=ask.thread, text=ask.text
    )
    since = None if ask.since is None else stamp(ask.since)
    found, cursor = await caller.desk.deliveries(where, ask.cursor, ask.limit, since=since)
    return Page(items=[caller.delivery(kept) for kept in found], cursor=cursor)


async def list_unrouted(caller: Caller, ask: SomeUnrouted) -> Page[Unrouted]:
    """Calls of the last week at an endpoint, or nearly, that were not taken, the last first."""
    return Page(items=(await caller.desk.unrouted(ask.endpoint))[: ask.limit])


async def group_deliveries(caller: Caller, ask: SomeGroups) -> DeliveryGroups:
    """Deliveries that failed, or of other states, by endpoint and error; most first."""
    since = None if ask.since is None else stamp(ask.since)
    return await caller.desk.delivery_groups(ask.state, ask.endpoint, since=since, limit=ask.limit)


async def show_delivery(caller: Caller, ask: OneDelivery) -> DeliveryView:
    """One delivery: what came, what was answered, the jobs that came of it; masked for viewers."""
    return caller.delivery(await caller.desk.delivery_view(ask.id))


async def replay_delivery(caller: Caller, ask: DeliveryReplay) -> Replay:
    """Run today's code on a delivery's raw bytes, as the next generation of its key."""
    return await caller.desk.replay(
        ask.id,
        caller.person,
        caller.relevo.handling,
        ask.note,
        dry_run=ask.dry_run,
        repeat_effects=ask.repeat_effects,
    )


async def replay_deliveries(caller: Caller, ask: ManyReplays) -> Replays:
    """Handle many deliveries by today's code, oldest first; the cursor goes on where this ended."""
    query = DeliveryQuery(
        state=ask.state,
        endpoint=ask.endpoint,
        since=None if ask.since is None else stamp(ask.since),
        until=None if ask.until is None else stamp(ask.until),
        error=ask.error,
        group=ask.group,
    )
    limit = ask.limit
    if ask.rate is not None and not ask.dry_run:
        count, period = rate_of(ask.rate)
        limit = min(limit, LONGEST * count // period)
        if not limit:
            raise DefinitionError(
                "a call cannot wait that long: ask for one at a time, with limit=1, when it is due"
            )
    return await caller.desk.replay_where(
        query,
        caller.person,
        caller.relevo.handling,
        ask.note,
        limit=limit,
        cursor=ask.cursor,
        dry_run=ask.dry_run,
        rate=ask.rate,
        canary=ask.canary,
        repeat_effects=ask.repeat_effects,
    )


async def show_outbox(caller: Caller, ask: SomeLetters) -> OutboxView:
    """Letters that wait for a store which lives elsewhere; none where the store is a database."""
    store = caller.desk.store
    if not isinstance(store, Relayed):
        return OutboxView(waiting=[], carried=[], lag=0, is_cut=False)
    seen = await caller.desk.outbox(store.ledger, await store.ledger.now(), ask.limit)
    if caller.person.may("reveal"):
        return seen
    return replace(
        seen,
        waiting=[caller.desk.masked_letter(letter) for letter in seen.waiting],
        carried=[caller.desk.masked_letter(letter) for letter in seen.carried],
    )


CALLS = (
    Call("GET", "/deliveries", "look", list_deliveries),
    Call("GET", "/deliveries/unrouted", "look", list_unrouted),
    Call("GET", "/deliveries/groups", "look", group_deliveries),
    Call("GET", "/deliveries/{id}", "look", show_delivery),
    Call("POST", "/deliveries/replay", "replay", replay_deliveries),
    Call("POST", "/deliveries/{id}/replay", "replay", replay_delivery),
    Call("GET", "/outbox", "look", show_outbox),
)
