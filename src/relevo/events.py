"""Events: each is stored once, kept for a while, and given to every registered subscriber.

A published event is a job of the queue EVENTS, stored by the publisher's own insert. Any worker of
the store takes it and stores one job for each subscriber (spreading.py). The subscribers of an
event are a note of the store, which the workers that serve listeners write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from relevo.errors import StoreDamaged, StoreError, StoreUnavailable
from relevo.ids import derived_id, lasting, moment_of
from relevo.sealing import is_sealed
from relevo.store import BATCH, Note, Store

SUBSCRIBERS = "subscribers"
"""The kind of the notes that hold the subscribers of an event, by its name."""

KNOWN_FOR = 30.0
"""Seconds for which a publisher uses the list that it has read. The list only tells how many
subscribers an event reaches; the worker that spreads the event reads it anew."""

TRIES = 20

Value: TypeAlias = str | int | float | bool | None
"""What a field of an event may be compared with."""

Where: TypeAlias = dict[str, list[Value]]
"""Which values which fields of an event have."""


class Subscriber(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A listener as the store knows it: what is needed to build its jobs without its code."""

    name: str  # the app's and the listener's, as app.listener
    queue: str
    attempts: int
    keep: int  # milliseconds for which a job of it is kept once done
    where: Where = {}  # only events whose fields have one of these values
    registered_at: int = 0
    behind: int | None = None  # events published from this moment on are still being given

    def takes(self, payload: bytes) -> bool:
        """Whether an event with this payload is for the subscriber."""
        # Sealed by a key that is not here: the subscriber's own worker looks.
        return is_sealed(payload) or is_asked_for(payload, self.where)


def is_asked_for(payload: bytes, where: Where) -> bool:
    """Whether each field of an event that `where` names has one of the values given there."""
    if not where:
        return True
    try:
        fields = msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return True  # its job says that it cannot be read
    return all(_field(fields, name) in values for name, values in where.items())


def _field(fields: Any, name: str) -> Any:
    return fields.get(name) if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON


class Published(NamedTuple):
    """A published event: its id, and the names of the subscribers that it reaches.

    The subscribers are those that were registered when this process last read the list. One that
    registers before the event is spread gets it, too.
    """

    id: str
    subscribers: tuple[str, ...]

    @property
    def reached(self) -> int:
        """How many subscribers get the event."""
        return len(self.subscribers)

    @property
    def jobs(self) -> dict[str, str]:
        """The id of the job of each subscriber."""
        return {name: job_id(self.id, name) for name in self.subscribers}


def job_id(event: str, subscriber: str) -> str:
    """The id of the job by which a subscriber gets an event, however often it is given."""
    return derived_id(moment_of(event), f"{lasting(event)}\n{subscriber}")


_Change: TypeAlias = Callable[[tuple[Subscriber, ...]], tuple[Subscriber, ...]]
_decoded = msgspec.json.Decoder(tuple[Subscriber, ...]).decode


def _subscribers(note: Note | None) -> tuple[Subscriber, ...]:
    try:
        return () if note is None else _decoded(note.value)
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"the subscribers in a note cannot be read: {error}") from error


class Subscribers:
    """The subscribers of each event, as the store has them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[float, tuple[Subscriber, ...]]] = {}

    async def known(self, event: str) -> tuple[Subscriber, ...]:
        """The subscribers of an event as of the last half minute."""
        until, found = self._known.get(event, (0.0, ()))
        if time.monotonic() < until:
            return found
        try:
            return (await self.read([event]))[event]
        except StoreError:
            return found  # it only tells how many there are

    async def read(self, events: Sequence[str]) -> dict[str, tuple[Subscriber, ...]]:
        """The subscribers of these events as of now."""
        notes = await self._store.recall(SUBSCRIBERS, events)
        found = {event: _subscribers(note) for event, note in zip(events, notes, strict=True)}
        self._learn(found)
        return found

    async def every(self) -> dict[str, tuple[Subscriber, ...]]:
        """The subscribers of every event that has, or had, any."""
        notes: list[Note] = []
        while more := await self._store.notes(
            SUBSCRIBERS, after=notes[-1].name if notes else "", limit=BATCH
        ):
            notes += more
        return {note.name: _subscribers(note) for note in notes}

    async def change(self, event: str, change: _Change) -> tuple[Subscriber, ...]:
        """Change the list of an event; what others change meanwhile is kept."""
        for _ in range(TRIES):
            [note] = await self._store.recall(SUBSCRIBERS, [event])
            before = _subscribers(note)
            after = change(before)
            if (
                after == before
                or (
                    await self._store.remember(
                        [
                            Note(
                                kind=SUBSCRIBERS,
                                name=event,
                                value=msgspec.json.encode(after),
                                version=0 if note is None else note.version,
                            )
                        ]
                    )
                )[0]
            ):
                self._learn({event: after})
                return after
        raise StoreUnavailable(f"the subscribers of {event} are changed by too many at once")

    def _learn(self, found: dict[str, tuple[Subscriber, ...]]) -> None:
        until = time.monotonic() + KNOWN_FOR
        self._known |= {event: (until, some) for event, some in found.items()}


def with_subscriber(new: Subscriber) -> _Change:
    """Put a subscriber in the list as it is now; when it registered, and how far it is, stay."""

    def change(before: tuple[Subscriber, ...]) -> tuple[Subscriber, ...]:
        if not any(each.name == new.name for each in before):
            return (*before, new)
        return tuple(
            msgspec.structs.replace(new, registered_at=each.registered_at, behind=each.behind)
            if each.name == new.name
            else each
            for each in before
        )

    return change


def with_lost(lost: Subscriber) -> _Change:
    """Put a subscriber back in the list, unless it is there."""
    return lambda before: (
        before if any(each.name == lost.name for each in before) else (*before, lost)
    )


def without_subscriber(name: str) -> _Change:
    """Take a subscriber off the list."""
    return lambda before: tuple(each for each in before if each.name != name)


def caught_up(name: str) -> _Change:
    """Note that a subscriber has every event from before it was registered."""
    return lambda before: tuple(
        msgspec.structs.replace(each, behind=None) if each.name == name else each for each in before
    )
