"""Source, a provider's rules: its signature, its ids, and the answers that it wants.

A source is data: the functions of `relevo.sources` make them, and a program may make its own, as
docs/guides/write-your-own-source.md shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias, cast

import msgspec

from relevo.errors import BodyError
from relevo.ids import KeyPart
from relevo.signatures import Scheme
from relevo.signatures.scheme import with_headers
from relevo.webhook import FORM, Answer, Delivery

JSON = ("application/json",)
FORMS = (FORM,)
OK = Answer.json({"ok": True})
EMPTY = Answer(200, b"")

Reader: TypeAlias = Callable[[Delivery], str]
Setup: TypeAlias = Callable[[Delivery], Answer | None]

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ATTEMPTS_MAX = 10_000


def _nothing(_: Delivery) -> None:
    return None


def _no_type(_: Delivery) -> str:
    return ""


def _first(_: Delivery) -> int:
    return 1


def never(_: Delivery) -> bool:
    """False for every delivery."""
    return False


def always(_: Delivery) -> bool:
    """True for every delivery."""
    return True


def _no_headers(_: str, __: str) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """What is known of a provider's webhooks; given to a webhook as `source=`."""

    name: str
    scheme: Scheme = field(repr=False)
    id: Callable[[Delivery], KeyPart] = field(repr=False)
    """What is the same when one delivery is sent again, and another for every other one."""
    type: Reader = field(default=_no_type, repr=False)
    """The event's type, for `types=` and for people; of a call with many items, kinds() of them."""
    attempt: Callable[[Delivery], int] = field(default=_first, repr=False)
    content_types: tuple[str, ...] = JSON
    methods: tuple[str, ...] = ("POST",)
    json_field: str = ""
    """The field that holds the JSON where the body is a form."""
    answer: Answer = OK
    """What the provider hears of a delivery that was taken; one of the statuses in `success`."""
    success: Sequence[int] = range(200, 300)
    """The statuses that the provider takes for success; it sends again after any other."""
    setup: Setup = field(default=_nothing, repr=False)
    """The answer to a signed call that only tests the endpoint; nothing is stored of it."""
    unsigned: Setup = field(default=_nothing, repr=False)
    """The answer to a call that no signature can come with; asked before the signature."""
    refused: int = 401
    """The status for a wrong signature."""
    answer_is_content: Callable[[Delivery], bool] = field(default=never, repr=False)
    """Whether the provider acts on the answer: a Slack command shows it, a call of Twilio runs it.

    A failure must then be told as one; elsewhere the plain `answer` hides it, and it is retried.
    """
    waits: timedelta = timedelta(seconds=10)
    """For how long the provider waits for an answer."""
    retries: tuple[timedelta, ...] = field(default=(), repr=False)
    """After which pauses the provider sends again what failed; empty: never."""
    ends: str = ""
    """What makes the provider stop calling for good, for people."""
    again: str = ""
    """How a person has the provider send again what was answered with success, for people."""
    varies: tuple[str, ...] = ()
    """Fields of the body, as `a.b`, that differ between attempts and say nothing: compared()."""
    keep_headers: tuple[str, ...] = ()
    body_is_signed: bool = True
    """False: the signature does not cover the event. Fetch the object before acting on it."""
    headers: Callable[[str, str], Mapping[str, str]] = field(default=_no_headers, repr=False)
    """The headers that tell a type and an id, for calls that are made to try a webhook."""

    def id_of(self, delivery: Delivery) -> KeyPart:
        return self.id(delivery)

    def type_of(self, delivery: Delivery) -> str:
        """The event's type; "" where the body has none."""
        try:
            return self.type(delivery)
        except Exception:  # noqa: BLE001 - it reads what somebody else wrote
            return ""

    def attempt_of(self, delivery: Delivery) -> int:
        """Which attempt of the provider this is; 1 where the provider does not say."""
        try:
            return min(max(self.attempt(delivery), 1), ATTEMPTS_MAX)
        except Exception:  # noqa: BLE001 - as above
            return 1

    def answers_content(self, delivery: Delivery) -> bool:
        """Whether the provider acts on the answer to this delivery; True where it cannot be read.

        The plain `answer` is then no answer to it, and a failure must be told by its status.
        """
        try:
            return self.answer_is_content(delivery)
        except Exception:  # noqa: BLE001 - as above
            return True

    def compared(self, delivery: Delivery) -> bytes:
        """The bytes that tell whether a repetition of an id has the same body.

        They are the body, without the fields that the provider changes at each attempt.
        """
        if not self.varies:
            return delivery.body
        try:
            is_list = delivery.body.lstrip().startswith(b"[")
            tree: Any = delivery.items if is_list else delivery.json
        except BodyError:
            return delivery.body
        for path in self.varies:
            tree = _without(tree, path.split("."))
        return msgspec.json.encode(tree, order="sorted")

    def signed(self, delivery: Delivery, now: datetime, type: str = "", id: str = "") -> Delivery:
        """The delivery as the provider would send it, to try a webhook.

        `type` and `id` are those of its headers, for providers that tell them there.
        """
        given = delivery.headers
        named = self.headers(type, id or delivery.id)
        missing = {name: value for name, value in named.items() if name not in given and value}
        return self.scheme.sign(with_headers(delivery, missing), now)


def _without(tree: Any, path: Sequence[str]) -> Any:
    """The value without a field; what holds it is copied, since others read it too."""
    if isinstance(tree, list):
        return [_without(each, path) for each in cast("list[Any]", tree)]
    if not isinstance(tree, dict) or path[0] not in tree:
        return cast("Any", tree)
    owner = cast("dict[str, Any]", tree)
    if len(path) > 1:
        return {**owner, path[0]: _without(owner[path[0]], path[1:])}
    return {name: value for name, value in owner.items() if name != path[0]}


def member(delivery: Delivery, *path: str) -> Any:
    """A value inside the body's object; LookupError naming the place that is not there."""
    found: Any = delivery.json
    for depth, name in enumerate(path):
        if not isinstance(found, dict) or name not in found:
            raise LookupError(f'no field "{".".join(path[: depth + 1])}" in the body')
        found = cast("dict[str, Any]", found)[name]
    return found


def text(delivery: Delivery, *path: str) -> str:
    """A text inside the body's object; LookupError if there is none."""
    found = member(delivery, *path)
    if isinstance(found, str) and found:
        return found
    if isinstance(found, int) and not isinstance(found, bool):
        return str(found)
    raise LookupError(f'"{".".join(path)}" of the body is neither text nor a whole number')


def optional(delivery: Delivery, *path: str) -> str:
    """A text inside the body's object; "" if there is none."""
    try:
        return text(delivery, *path)
    except LookupError:
        return ""


def header(delivery: Delivery, *names: str) -> str:
    """The value of the first header that is there; LookupError naming it if none is."""
    for name in names:
        value = delivery.header(name)
        if value:
            return value
    raise LookupError(f"no header {names[0]}")


def both(*parts: str) -> str:
    """An id of several parts; a long one is hashed, since keys are short."""
    whole = ":".join(parts)
    return whole if len(whole) <= 255 else digest(whole.encode())


def digest(data: bytes) -> str:
    """A hash that stands for a body where the provider has no id."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def body_hash(delivery: Delivery) -> str:
    """An id for providers without one whose body is the same at every attempt."""
    return digest(delivery.body)


def kinds(each: Iterable[str]) -> str:
    """The types of a call's items, each once; `types=` takes the call if one of them fits."""
    return ", ".join(dict.fromkeys(each))


def pauses(*minutes: float) -> tuple[timedelta, ...]:
    """Pauses between attempts, in minutes."""
    return tuple(MINUTE * each for each in minutes)
