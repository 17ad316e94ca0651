"""Door: a webhook whose secrets have been read, and what may be kept of a delivery."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from relevo.errors import BodyError, MisuseError, RelevoError, SettingsError, StoreDamaged
from relevo.message import KEY_MAX, KEY_PARTS, key_text
from relevo.pairs import KEPT, Headers, MissingName
from relevo.route import Use, Webhook
from relevo.sealing import is_sealed
from relevo.sensitive import HIDDEN
from relevo.signatures import Scheme, SharedSecret
from relevo.sources import Source
from relevo.store import DeliveryState, Kept
from relevo.webhook import (
    FORM,
    TRACEPARENT,
    VERIFIED_BY,
    Answer,
    Delivery,
    read_answer,
    read_headers,
)

_OTHER_JSON = frozenset({"not_an_object", "not_an_array"})
_BAD_FORM = frozenset({"too_many_fields", "duplicate_field", "invalid_text"})

_BY_ID, _BY_BODY = "id:", "body:"
_PRINT = 16
_OURS = {VERIFIED_BY, TRACEPARENT}  # that we keep among the headers of a delivery
_ID_MAX = KEY_MAX - len(_BY_ID) - 1 - _PRINT


class Reject(RelevoError):
    """What arrived is not acceptable: the caller gets this status and code, nothing is enqueued."""

    def __init__(self, status: int, code: str, why: str = "") -> None:
        super().__init__(why or code)
        if not 400 <= status <= 499:
            raise MisuseError(
                f"Reject({status}) is not a refusal: use 400 to 499, or raise an error"
            )
        self.answer = Answer.json({"ok": False, "error": code}, status)

    @classmethod
    def giving(cls, answer: Answer) -> Reject:
        """A refusal in the function's own words."""
        made = cls(400, "refused", f"its function answered {answer.status}")
        made.answer = answer
        return made


class NoKey(RelevoError):
    """The key function of an endpoint found no key in a delivery that is signed well."""


class Door:
    """A webhook of an app, its secrets read."""

    __slots__ = (
        "_encoded",
        "_listed",
        "_told",
        "answer",
        "app",
        "base",
        "content_types",
        "endpoint",
        "gives_answers",
        "is_transactional",
        "methods",
        "route",
        "rules",
        "scheme",
        "types",
    )

    def __init__(self, app: str, route: Webhook, use: Use, base: str = "") -> None:
        self.app = app
        self.route = route
        self.endpoint = f"{app}:{route.path}"
        self.base = base
        self.rules: Source = route.rules(use)
        self.scheme: Scheme = self.rules.scheme
        if self.scheme.needs_url and not base:
            raise SettingsError(
                f"{route.path}: {self.rules.name} signs the public URL of the webhook: set "
                "RELEVO_PUBLIC_URL, such as https://api.example.com"
            )
        self.methods = route.methods or self.rules.methods
        self.content_types = route.content_types or self.rules.content_types
        self.answer = route.answer or self.rules.answer
        self.is_transactional = "tx" in route.takes
        self.gives_answers = route.answer is None and route.gives_answers
        keep = (*route.keep_headers, *self.rules.keep_headers)
        names = Headers((name, "") for name in (*KEPT, *keep))
        hidden = {name.lower() for name in self.scheme.hides}
        self._listed = frozenset(names.kept(keep)) - hidden - _OURS
        self._encoded = msgspec.msgpack.encode(self.answer)
        self._told = _told(self.scheme)
        self.types: set[bytes | None] = set()  # content types that were found good

    def key(self, delivery: Delivery) -> str:
        """What makes two deliveries the same one; NoKey if it has none."""
        try:
            given: Any = (self.route.key or self.rules.id_of)(delivery)
        except (BodyError, Reject):
            raise
        except BaseException as error:  # a key function may raise anything
            raise NoKey(f"{self.route.path} has no key for this: {_no_key(error)}") from error
        if (key := key_text(given)) is None:
            raise NoKey(
                f"the key function of {self.route.path} returned {_told_kind(given)}: return "
                f"{KEY_PARTS}, of 1 to {KEY_MAX} characters"
            )
        return key

    def any_key(self, delivery: Delivery) -> str:
        """Its key; where that cannot be had the provider's id, or else the hash of the call."""
        try:
            return self.key(delivery)
        except BaseException:  # noqa: BLE001 - as in key()
            return self.provisional_key(delivery)

    def provisional_key(self, delivery: Delivery) -> str:
        """A key for a delivery whose own is not known yet: see is_provisional()."""
        # With the body's hash also beside an id: two deliveries that only the key tells apart must
        # both be handled once it is found.
        compared = self.rules.compared(delivery)
        if (id := self.found_id(delivery)) is not None and len(id) <= _ID_MAX:
            return f"{_BY_ID}{id}:{hashlib.sha256(compared).hexdigest()[:_PRINT]}"
        said = b"%b\n%b" % (delivery.query.encode("utf-8", "surrogatepass"), compared)
        return _BY_BODY + hashlib.sha256(said).hexdigest()

    def found_id(self, delivery: Delivery) -> str | None:
        """The provider's id of a delivery, as far as its source finds one."""
        try:
            return key_text(self.rules.id_of(delivery))
        except BaseException:  # noqa: BLE001 - it reads what anybody may have sent
            return None

    def variant(self, delivery: Delivery) -> int:
        """The generation of a delivery whose key is known with another body."""
        return variant_of(self.rules.compared(delivery))

    def wants(self, delivery: Delivery) -> bool:
        """Whether the delivery's type is one that the function is for."""
        return not self.route.types or self.route.takes_type(delivery.event_type)

    def answers_content(self, delivery: Delivery) -> bool:
        """Whether the caller acts on what is answered, so that a failure must be told as one."""
        return self.rules.answers_content(delivery)

    def can_wait(self, delivery: Delivery) -> bool:
        """Whether the plain answer may be given before the function has run."""
        return not self.gives_answers and not self.answers_content(delivery)

    def answered(self, answer: Answer) -> None:
        """Learn from what the function has answered."""
        if answer is not self.answer and self.route.answer is None and answer.status < 400:
            self.gives_answers = True

    def keep(
        self,
        delivery: Delivery,
        key: str | None,
        *,
        generation: int = 0,
        received_at: int = 0,
        state: DeliveryState = DeliveryState.ACCEPTED,
        reason: str = "",
        answer: bytes = b"",
        status: int = 200,
        jobs: tuple[str, ...] = (),
    ) -> Kept:
        """The delivery as it may be stored: listed headers, no secret in the query, the body."""
        pairs = [pair for pair in delivery.headers.pairs if pair[0] in self._listed]
        if delivery.verified_by:
            pairs.append((VERIFIED_BY, delivery.verified_by))
        if delivery.traceparent:
            pairs.append((TRACEPARENT, delivery.traceparent))
        body = delivery.body
        if self._told:
            for secret in self._told:
                body = body.replace(secret, HIDDEN.encode())
            body = self.scheme.bare(msgspec.structs.replace(delivery, body=body))
        return Kept(
            id=delivery.id,
            endpoint=self.endpoint,
            key=key,
            generation=generation,
            state=state,
            reason=reason,
            method=delivery.method,
            path=delivery.path,
            query=delivery.shown_query(self.scheme.hides) if delivery.query else "",
            headers=msgspec.json.encode(pairs),
            body=body,
            answer=answer,
            status=status,
            jobs=jobs,
            thread=delivery.id,
            received_at=received_at,
        )

    def encoded(self, answer: Answer) -> bytes:
        return self._encoded if answer is self.answer else msgspec.msgpack.encode(answer)


def is_ours(error: BodyError, delivery: Delivery) -> bool:
    """Whether a body is good, and our code expected another: JSON of this kind, or any JSON."""
    if delivery.media_type == FORM:
        return error.code not in _BAD_FORM
    return error.code in _OTHER_JSON


def is_provisional(key: str) -> bool:
    """Whether a key was made in place of one that the endpoint's function did not find."""
    return key.startswith((_BY_ID, _BY_BODY))


def variant_of(compared: bytes) -> int:
    """The generation of another body under a known key: negative, and its own."""
    return -1 - int.from_bytes(hashlib.sha256(compared).digest()[:4]) // 2


def _no_key(error: BaseException) -> str:
    """Why a key function found no key, without a value of the body."""
    try:
        match error:
            case MissingName():
                return str(error)
            case LookupError(args=(str() as said,)) if type(error) is LookupError:
                return said[:200]
            case KeyError(args=(str() as name,)):
                return f'no field "{name:.64}" in the body'
            case _:
                pass
    except BaseException:  # noqa: BLE001, S110 - an error may raise anything when it is read
        pass
    return f"its key function raised {type(error).__name__}; the log has the line"


def _told_kind(given: object) -> str:
    return f"{len(given)} characters" if isinstance(given, str) else type(given).__name__


def _told(scheme: Scheme) -> list[bytes]:
    """Secrets that come inside the body, in the usual spellings, wherever else they stand in it."""
    if not isinstance(scheme, SharedSecret) or not (scheme.form or scheme.json):
        return []
    texts = [key.value for key in scheme.keys.given]
    every = {spelled(text) for text in texts for spelled in (str, quote, quote_plus)}
    return [text.encode() for text in sorted(every, key=len, reverse=True)]


def delivery_of(kept: Kept, received_at: Any, door: Door | None = None) -> Delivery:
    """A kept delivery as it came at its door, less what is never kept."""
    if (pairs := read_headers(kept.headers)) is None:
        raise StoreDamaged(f"the headers of delivery {kept.id} cannot be read any more")
    ours = dict(pairs)
    return Delivery(
        id=kept.id,
        path=kept.path,
        method=kept.method,
        query=kept.query,
        headers=Headers(pair for pair in pairs if pair[0] not in _OURS),
        verified_by=ours.get(VERIFIED_BY, ""),
        traceparent=ours.get(TRACEPARENT, ""),
        body=kept.body,
        received_at=received_at,
        base="" if door is None else door.base,
        rules=None if door is None else door.rules,
    )


def answer_of(kept: Kept, today: Answer | None = None) -> Answer:
    """What was answered to a kept delivery; what is said `today` if that cannot be read any more:
    no key opens it, or its row was damaged."""
    answer = read_answer(kept.answer)
    if answer is not None and not is_sealed(answer.body):
        return answer
    if today is not None and today.status == kept.status:
        return today
    return Answer(kept.status) if answer is None else msgspec.structs.replace(answer, body=b"")
