"""Webhook and Site, the doors an app has: where, for whom, and which function stands behind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from relevo.errors import DefinitionError
from relevo.message import KeyPart
from relevo.signatures import Scheme
from relevo.webhook import Answer, Delivery

T = TypeVar("T")

BODY_LIMIT = 1_048_576
"""Bytes a delivery may have unless its webhook says otherwise."""

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
_DELIVERS = frozenset({"GET", "POST", "PUT"})
JSON = ("application/json",)
OK = Answer.json({"ok": True})


class Use(Protocol):
    """How a function asks for an opened resource of its app: `use(Settings)`."""

    def __call__(self, kind: type[T], /) -> T: ...


Verify: TypeAlias = Scheme | Callable[[Use], Scheme]
Key: TypeAlias = Callable[[Delivery], KeyPart]
Challenge: TypeAlias = Callable[[Delivery, Use], Answer]


@dataclass(frozen=True, slots=True, eq=False)
class Webhook:
    """A door for a provider; made by webhook() or App.webhook."""

    path: str
    function: Callable[..., Any]
    verify: Verify = field(repr=False)
    key: Key
    methods: tuple[str, ...]
    content_types: tuple[str, ...]
    limit: int
    answer: Answer
    challenge: Challenge | None
    keep_headers: tuple[str, ...]
    accept_gzip: bool
    takes: tuple[str, ...]  # what the function takes besides the delivery: intake, tx

    def scheme(self, use: Use) -> Scheme:
        """What checks who sent a delivery; a door that checks nothing stays shut."""
        made = self.verify if isinstance(self.verify, Scheme) else self.verify(use)
        if not isinstance(made, Scheme):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
            raise DefinitionError(
                f"{self.path}: verify gave {made!r:.60}, which checks nothing: give "
                "sources.stripe(…), sources.hmac_header(…), sources.shared_secret(…) or a function "
                "of `use` that gives one of them"
            )
        return made


def webhook(
    path: str,
    function: Callable[..., Any],
    *,
    verify: Verify,
    key: Key,
    methods: Sequence[str] = ("POST",),
    content_types: Sequence[str] = JSON,
    limit: int = BODY_LIMIT,
    answer: Answer = OK,
    challenge: Challenge | None = None,
    keep_headers: Sequence[str] = (),
    accept_gzip: bool = False,
) -> Webhook:
    """A webhook for the list form: `App("cars", webhooks=[webhook("/hooks/stripe", hook, …)])`.

    `key` gives what makes two deliveries the same one: the provider's event id. `answer` is what
    the provider gets unless the function returns another. `challenge` answers GET without storing
    anything, for providers that ask who we are. A content type of "" is a call without one, "*" is
    any at all. `limit` holds for the body as it came and, with `accept_gzip`, unpacked.
    """
    if not _PATH.fullmatch(path):
        raise DefinitionError(f"{path!r:.80} is not a webhook path: write one like /hooks/stripe")
    lists = {"methods": methods, "content_types": content_types, "keep_headers": keep_headers}
    for name, given in lists.items():
        if isinstance(given, str):  # else each of its letters would be one
            raise DefinitionError(f"{path}: {name} is a list: write {name}=({given!r:.60},)")
    if not isinstance(answer, Answer):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise DefinitionError(
            f"{path}: answer is an Answer, such as Answer.json({{'ok': True}}), not {answer!r:.60}"
        )
    wrong = sorted(set(methods) - _DELIVERS)
    if wrong or not methods:
        raise DefinitionError(f"{path}: a webhook is delivered by GET, POST or PUT, not {wrong}")
    if challenge is not None and "GET" in methods:
        raise DefinitionError(f"{path}: GET either delivers or asks for the challenge")
    if not 1 <= limit <= 64 * BODY_LIMIT:
        raise DefinitionError(f"{path}: limit is 1 byte to 64 MiB, not {limit}")
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{path}: write {function.__qualname__} as `async def`")
    if not (isinstance(verify, Scheme) or callable(verify)):
        raise DefinitionError(
            f"{path}: verify says who may deliver, and {verify!r:.60} does not: give "
            "sources.stripe(…), sources.hmac_header(…), sources.shared_secret(…)"
        )
    if not callable(key):
        raise DefinitionError(
            f"{path}: key is a function of the delivery, such as lambda d: d.json['id'], "
            f"not {key!r:.60}"
        )
    return Webhook(
        path,
        function,
        verify,
        key,
        tuple(methods),
        tuple(content_types),
        limit,
        answer,
        challenge,
        tuple(keep_headers),
        accept_gzip,
        _takes(function),
    )


def _takes(function: Callable[..., Any]) -> tuple[str, ...]:
    """The delivery, and then `ctx` or `tx` or both, told by name so that no import runs."""
    names = list(inspect.signature(function).parameters)
    if not names or names[1:] not in ([], ["ctx"], ["tx"], ["ctx", "tx"]):
        raise DefinitionError(
            f"{function.__qualname__} takes ({', '.join(names)}); write (delivery), "
            "(delivery, ctx), (delivery, tx) or (delivery, ctx, tx)"
        )
    return tuple(names[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An ASGI application of an app's own, under a prefix; it sees the whole path.

    One with a title is for people: it stands in the dashboard's menu, behind its login.
    """

    prefix: str
    build: Callable[[Any], Any]  # of the engine; gives an ASGI application
    title: str | None = None


def site(prefix: str, build: Callable[[Any], Any], *, title: str | None = None) -> Site:
    """A site for the list form: `App("cars", sites=[site("/reservations", api.build)])`."""
    if not _PATH.fullmatch(prefix):
        raise DefinitionError(f"{prefix!r:.80} is not a prefix: write one like /reservations")
    return Site(prefix, build, title)
