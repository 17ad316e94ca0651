"""Deliveries, and the outbox: what came in, and what waits to go on."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from relevo.api.call import Asked, Call, Caller, Cursor, Limit, Note, Page, Text
from relevo.desk import OutboxView, Replay
from relevo.relay import Relayed
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.unrouted import Unrouted


class SomeDeliveries(Asked):
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    state: DeliveryState | None = None
    key: Annotated[Text, Meta(description="The provider's own id.")] | None = None
    thread: Text | None = None
    text: Annotated[Text, Meta(description="Found literally in key, body or reason.")] | None = None
    cursor: Cursor | None = None
    limit: Limit = 50


class SomeUnrouted(Asked):
    endpoint: Annotated[Text, Meta(description="One webhook only, as app:/path.")] | None = None
    limit: Limit = 50


class OneDelivery(Asked):
    id: str


class DeliveryReplay(OneDelivery):
    note: Note = ""
    dry_run: Annotated[bool, Meta(description="Only tell what would be enqueued.")] = False
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
    found, cursor = await caller.desk.deliveries(where, ask.cursor, ask.limit)
    return Page(items=[caller.delivery(kept) for kept in found], cursor=cursor)


async def list_unrouted(caller: Caller, ask: SomeUnrouted) -> Page[Unrouted]:
    """Calls of the last week at an endpoint, or nearly, that were not taken, the last first."""
    return Page(items=(await caller.desk.unrouted(ask.endpoint))[: ask.limit])


async def show_delivery(caller: Caller, ask: OneDelivery) -> Kept:
    """One delivery: what came, what was answered, the jobs that came of it; masked for viewers."""
    return caller.delivery(await caller.desk.delivery(ask.id))


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
    Call("GET", "/deliveries/{id}", "look", show_delivery),
    Call("POST", "/deliveries/{id}/replay", "replay", replay_delivery),
    Call("GET", "/outbox", "look", show_outbox),
)
