"""Door: a webhook whose secrets have been read, and what may be kept of a delivery."""

from __future__ import annotations

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
from relevo.webhook import Answer, Delivery, read_answer, read_headers

_BAD_KEY = (LookupError, TypeError, AttributeError, ValueError)


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
        keep = (*route.keep_headers, *self.rules.keep_headers)
        names = Headers((name, "") for name in (*KEPT, *keep))
        hidden = {name.lower() for name in self.scheme.hides}
        self._listed = frozenset(names.kept(keep)) - hidden
        self._encoded = msgspec.msgpack.encode(self.answer)
        self._told = _told(self.scheme)
        self.types: set[bytes | None] = set()  # content types that were found good

    def key(self, delivery: Delivery) -> str:
        """What makes two deliveries the same one; Reject if it has none."""
        try:
            given: Any = (self.route.key or self.rules.id_of)(delivery)
        except BodyError as error:
            raise Reject(400, error.code, str(error)) from None
        except _BAD_KEY as error:
            raise Reject(422, "invalid_key", _no_key(error)) from None
        if (key := key_text(given)) is None:
            raise Reject(
                422,
                "invalid_key",
                f"the key function of {self.route.path} returned {_told_kind(given)}: return "
                f"{KEY_PARTS}, of 1 to {KEY_MAX} characters",
            )
        return key

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


def _no_key(error: Exception) -> str:
    """Why a key function found no key, without a value of the body."""
    match error:
        case MissingName():
            return str(error)
        case LookupError(args=(str() as said,)) if type(error) is LookupError:
            return said[:200]
        case KeyError(args=(str() as name,)):
            return f'no field "{name:.64}" in the body'
        case _:
            return f"no key in it: {type(error).__name__}"


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
    return Delivery(
        id=kept.id,
        path=kept.path,
        method=kept.method,
        query=kept.query,
        headers=Headers(pairs),
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
