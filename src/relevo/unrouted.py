"""Calls that reach an endpoint, or nearly do, and are not taken: counted, and told for a week.

Such a call has shown nothing of who it is from, so neither its body, its query nor the value of a
header is kept. What is kept is bounded: one note for each endpoint and cause, however many
addresses call, however many processes serve.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from relevo.errors import StoreError
from relevo.store import Note, Store
from relevo.telemetry import Telemetry

KIND = "unrouted"
KEEP = 7 * 86_400_000
"""Milliseconds after its last call for which an address is told, and after the last for which any
is."""

ADDRESSES = 20
"""Addresses told apart for each endpoint and cause; the calls of those longest unheard are counted
together."""

_GATHER = 0.2  # seconds: calls that come together are written as one
_EVERY = 2.0  # seconds between two writes
_AGAIN = 5.0  # seconds until it is tried again, where the store is away
_AT_ONCE = 100  # notes in one write

CAUSES: Final = {
    "unsupported_media_type": "the endpoint takes {expects}: choose that content type at the "
    "provider (some send a form unless told otherwise, as GitHub does), or list the one it sends "
    "in content_types=",
    "unsupported_encoding": "the body was compressed in a way that the endpoint does not take: "
    "accept_gzip=True takes gzip",
    "method_not_allowed": "the endpoint takes {expects}: a person's browser or a scanner, unless "
    "the provider delivers otherwise; then say so in methods=",
    "too_large": "the endpoint takes bodies of up to {expects}: raise limit=, or let the provider "
    "send less",
    "length_required": "neither Content-Length nor chunks: a proxy or the caller sends bodies "
    "without a length",
    "unexpected_body": "a GET with a body: the caller or a proxy changes the method",
    "bad_request": "no HTTP as it should be: the caller or a proxy sends what can be read two ways",
    "bad_gzip": "the body is not the gzip that its head says: a proxy may have unpacked it",
    "too_many_fields": "more fields in the query than an endpoint reads",
    "too_slow": "the call did not arrive in time: a slow network, or a proxy that holds it back",
    "url_too_long": "the URL is longer than 8,192 bytes",
    "headers_too_large": "the head has more than 65,536 bytes or 100 lines: a proxy may add some",
    "hung_up": "the caller hung up before its body had come",
    "challenge_refused": "the endpoint's challenge refused it: give the provider the token that "
    "your settings have",
    "wrong_path": "the endpoint is {expects}: correct the URL at the provider, or the proxy that "
    "changes the path",
}
"""Why a call is not taken, and what to do about it."""


class Unrouted(msgspec.Struct, frozen=True, kw_only=True):
    """Calls from one address that an endpoint did not take for one cause, and what the last was."""

    endpoint: str  # of a call at nearly its path, the one that was probably meant
    cause: str
    address: str | None  # an IPv6 one is its /64; None: further addresses, together
    count: int = 1
    first_at: int
    last_at: int
    status: int  # of the answer; 0: the caller did not wait for one
    method: str
    path: str
    headers: tuple[str, ...]  # their names
    size: int | None  # of the body, as far as it is known
    hash: str  # blake2b of the body, 16 bytes in hexadecimal; "": it was not read whole
    expects: str = ""  # what the endpoint takes instead

    @property
    def advice(self) -> str:
        """What to do about it."""
        return CAUSES.get(self.cause, "").format(expects=self.expects)


_decode = msgspec.json.Decoder(list[Unrouted]).decode

Place: TypeAlias = tuple[str, str]  # endpoint and cause
Group: TypeAlias = dict[str | None, Unrouted]  # by address


class UnroutedCalls:
    """Counts such calls for one process, and adds them to the notes of all."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry
        self._new: dict[Place, Group] = {}  # what the notes do not tell yet
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._next = 0.0

    def add(self, seen: Unrouted) -> None:
        """One more call."""
        self._telemetry.not_taken(seen.endpoint, seen.cause, seen.path, seen.advice)
        self._keep(seen)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="relevo-unrouted")

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._task is not None and not self._task.done():
            self._closing.set()
            await asyncio.wait({self._task})
            self._closing.clear()

    def _keep(self, seen: Unrouted) -> None:
        _add(self._new.setdefault((seen.endpoint, seen.cause), {}), seen)

    async def _run(self) -> None:
        while self._new:
            await self._pause(max(_GATHER, self._next - time.monotonic()))
            try:
                await self._write()
                self._next = time.monotonic() + _EVERY
            except StoreError as error:
                self._telemetry.trouble("cannot note which calls were not taken", error)
                if self._closing.is_set():
                    self._new.clear()
                self._next = time.monotonic() + _AGAIN

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _write(self) -> None:
        places = list(self._new)[:_AT_ONCE]
        notes = await self._store.recall(KIND, [" ".join(place) for place in places])
        taken = [self._new.pop(place) for place in places]
        made = [_note(*each) for each in zip(places, notes, taken, strict=True)]
        written = [False] * len(made)
        try:
            written = await self._store.remember(made)
        finally:
            # Of a note that another process has written meanwhile ours is added to the newer one.
            for group, is_written in zip(taken, written, strict=True):
                for seen in () if is_written else group.values():
                    self._keep(seen)


def _note(place: Place, note: Note | None, new: Group) -> Note:
    """The note of an endpoint and a cause, with the new calls in it."""
    latest = max(seen.last_at for seen in new.values())
    group: Group = {}
    for seen in () if note is None else read(note):
        if seen.last_at > latest - KEEP:
            group[seen.address] = seen
    for seen in new.values():
        _add(group, seen)
    return Note(
        kind=KIND,
        name=" ".join(place),
        value=msgspec.json.encode(list(group.values())),
        version=0 if note is None else note.version,
        ttl=KEEP,
    )


def _add(group: Group, seen: Unrouted) -> None:
    """Count a call, or several, in the group of their address."""
    group[seen.address] = _sum(group.get(seen.address), seen)
    if len(group) > ADDRESSES + (None in group):
        told = [each for each in group.values() if each.address is not None]
        oldest = min(told, key=lambda each: each.last_at)
        del group[oldest.address]
        group[None] = _sum(group.get(None), replace(oldest, address=None))


def _sum(known: Unrouted | None, more: Unrouted) -> Unrouted:
    if known is None:
        return more
    last = known if known.last_at > more.last_at else more
    first_at = min(known.first_at, more.first_at)
    return replace(last, count=known.count + more.count, first_at=first_at)


def read(note: Note) -> list[Unrouted]:
    """What a note tells."""
    return _decode(note.value)
