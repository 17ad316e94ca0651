"""What is told of a call that no endpoint takes, and whether its path is nearly an endpoint's.

A scanner asks for thousands of paths: a path that is not nearly an endpoint's costs a few lookups
and leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from relevo import sensitive
from relevo.addresses import Proxies, caller, read
from relevo.clock import stamp
from relevo.ingress.body import allowed
from relevo.ingress.refusals import Buckets
from relevo.ingress.reply import FORWARDED, Heard, Message, Reply, Scope, Send
from relevo.intake import Door
from relevo.unrouted import Unrouted, UnroutedCalls

if TYPE_CHECKING:
    from relevo.engine import Relevo

PATH_MAX = 512
PATH_KEPT = 200
NAMES, NAME_KEPT = 40, 40
SEGMENTS = 16
DISTANCES = 1_000.0
"""Endpoints compared with a path letter by letter, in a second; at 20 microseconds each that is 2 %
of one processor."""


class Near:
    """Finds the endpoint whose path is nearly the one that was called."""

    def __init__(self, doors: Iterable[Door] = ()) -> None:
        self._doors: dict[str, Door] = {}  # by their path, plainly written
        self._tails: dict[str, Door] = {}  # by what a proxy leaves that takes a prefix away
        for door in doors:
            parts = _parts(door.route.path)
            self._doors.setdefault(_joined(parts), door)
            for start in range(1, len(parts)):
                self._tails.setdefault(_joined(parts[start:]), door)
        self._compared = Buckets(DISTANCES, DISTANCES, 1)

    def find(self, path: str) -> Door | None:
        """The door that was probably meant by a path which is none's."""
        if len(path) > PATH_MAX or not self._doors:
            return None
        parts = _parts(unquote(path))
        if not 0 < len(parts) <= SEGMENTS:
            return None
        plain = _joined(parts)
        if (door := self._doors.get(plain)) is not None:  # another case, a slash more
            return door
        for cut in range(1, len(parts)):  # a prefix added by a proxy, or something after the path
            for part in (parts[cut:], parts[:-cut]):
                if (door := self._doors.get(_joined(part))) is not None:
                    return door
        return self._tails.get(plain) or self._misspelt(plain)

    def _misspelt(self, plain: str) -> Door | None:
        best: tuple[int, Door] | None = None
        for known, door in self._doors.items():
            most = min(len(known) // 5, 2) if best is None else best[0] - 1
            if abs(len(known) - len(plain)) > most or not _shares(known, plain, most):
                continue
            if not self._compared.take(""):
                break
            if (edits := distance(known, plain, most)) <= most:
                best = (edits, door)
        return None if best is None else best[1]


def _parts(path: str) -> list[str]:
    return [part for each in path.casefold().split("/") if (part := each.strip()) not in ("", ".")]


def _joined(parts: list[str]) -> str:
    return "/" + "/".join(parts)


def _shares(known: str, plain: str, most: int) -> bool:
    """Whether one of the parts of a path is in the other: of so many and one, one is unchanged."""
    size = -(-len(known) // (most + 1))
    return any(known[at : at + size] in plain for at in range(0, len(known), size))


def distance(one: str, other: str, most: int) -> int:
    """How many letters are to be added, left out or changed; counting stops beyond `most`."""
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, row = row, [at]
        for place, each in enumerate(other):
            kept = before[place] + (letter != each)
            row.append(min(kept, before[place + 1] + 1, row[place] + 1))
        if min(row) > most:
            return most + 1
    return row[-1]


class Strays:
    """Leaves a trace of each call that reaches an endpoint of ours, or nearly, and is not taken."""

    def __init__(self, engine: Relevo, proxies: Proxies) -> None:
        self._proxies = proxies
        self._clock = engine.clock
        self.calls = UnroutedCalls(engine.store, engine.telemetry)
        self.near = Near()

    def refused(self, door: Door, scope: Scope, reply: Reply, heard: Heard) -> None:
        """A call that was refused before anything of it was believed."""
        if reply.status >= 400 and reply.status != 503:  # busy, which is counted elsewhere
            code = reply.code or "challenge_refused"
            self._add(door, code, scope, door.route.path, reply.status, heard)

    def hung_up(self, door: Door, scope: Scope) -> None:
        """A call whose caller hung up before the body had come."""
        self._add(door, "hung_up", scope, door.route.path, 0, Heard())

    def watched(self, path: str, scope: Scope, send: Send) -> Send:
        """`send` for a call at no endpoint: tells of it if its path is nearly one's and the answer
        is a refusal."""
        door = self.near.find(path)
        if door is None:
            return send

        async def watching(message: Message) -> None:
            if message["type"] == "http.response.start":
                status: int = message["status"]
                # A page of ours answers well; a stranger is sent to the login for any path.
                if status >= 400 or any(
                    name == b"location" and b"/login" in value
                    for name, value in message.get("headers", ())
                ):
                    self._add(door, "wrong_path", scope, path, status, Heard())
            await send(message)

        return watching

    def _add(
        self, door: Door, cause: str, scope: Scope, path: str, status: int, heard: Heard
    ) -> None:
        now = stamp(self._clock.now())
        self.calls.add(
            Unrouted(
                endpoint=door.endpoint,
                cause=cause,
                address=_address(scope, self._proxies),
                first_at=now,
                last_at=now,
                status=status,
                method=_shown(scope["method"])[:20],
                path=path if path == door.route.path else _shown(sensitive.mask(path[:PATH_KEPT])),
                headers=_names(scope),
                size=heard.size if heard.hash else _length(scope),
                hash=heard.hash,
                expects=_expects(door, cause),
            )
        )


def _address(scope: Scope, proxies: Proxies) -> str:
    """Where a call comes from, behind the proxies that are trusted; "?" if that is no IP."""
    client = scope.get("client")
    named = [value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED]
    host = proxies.client(client[0] if client else "", named)
    return "?" if read(host) is None else caller(host)


def _names(scope: Scope) -> tuple[str, ...]:
    names = {name.decode("latin-1").lower()[:NAME_KEPT] for name, _ in scope["headers"]}
    return tuple(map(_shown, sorted(names)[:NAMES]))


def _length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and len(value) <= 15:
            return int(value)
    return None


def _shown(text: str) -> str:
    """The text with what no terminal or page should get replaced."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _expects(door: Door, cause: str) -> str:
    """What an endpoint takes instead of what it got."""
    match cause:
        case "unsupported_media_type":
            return ", ".join(each or "no content type" for each in door.content_types)
        case "method_not_allowed":
            return allowed(door)
        case "too_large":
            return f"{door.route.limit:,} bytes"
        case "wrong_path":
            return door.route.path
        case _:
            return ""
