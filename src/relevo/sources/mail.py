"""Sources of mail: SendGrid, Mailgun, Postmark."""

from __future__ import annotations

from datetime import timedelta

from relevo.clock import Duration, milliseconds
from relevo.errors import SettingsError
from relevo.signatures import Basic, Ecdsa, Keys, Mailgun, Secrets
from relevo.sources.source import Source, both, digest, kinds, optional, pauses, text
from relevo.webhook import Delivery


def sendgrid(verification_key: str | None, *, private: str | None = None) -> Source:
    """The event webhook of SendGrid; the key is the verification key of its settings page.

    One call carries many items (`delivery.items`), and a repetition may group them otherwise: let
    each item be a command with `sg_event_id` as its key. `private` signs calls in tests.
    """
    return Source(
        name="sendgrid",
        scheme=Ecdsa.read("sendgrid()", verification_key, None, private),
        id=_sendgrid_id,
        type=lambda call: kinds(str(item["event"]) for item in call.items),
        waits=timedelta(seconds=10),
        retries=pauses(1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 480),
    )


def _sendgrid_id(call: Delivery) -> str:
    listed = [
        str(item.get("sg_event_id"))
        if "sg_event_id" in item
        else both(*(str(item.get(name, "")) for name in ("sg_message_id", "event", "timestamp")))
        for item in call.items
    ]
    if not listed:
        raise LookupError("no item in the body")
    return listed[0] if len(listed) == 1 else digest("\n".join(listed).encode())


def mailgun(signing_key: Secrets | None, tolerance: Duration = "9h") -> Source:
    """Webhooks of Mailgun. The event is not signed: fetch it before acting on it.

    Repetitions are said to carry the first signature, so the time allowed is as long as Mailgun
    repeats; a token counts once. A wrong signature is answered 406, since 401 would be repeated.
    """
    keys = Keys.read("mailgun()", signing_key)
    return Source(
        name="mailgun",
        scheme=Mailgun(keys, milliseconds(tolerance)),
        id=lambda call: text(call, "event-data", "id"),
        type=lambda call: ".".join(
            filter(
                None,
                (text(call, "event-data", "event"), optional(call, "event-data", "severity")),
            )
        ),
        success=(200,),
        refused=406,
        retries=pauses(5, 10, 15, 60, 120, 240),
        ends="406 ends the repetitions of a call; `delivered` is not repeated at all",
        varies=("signature",),
        body_is_signed=False,
        again="cannot; `GET /v3/DOMAIN/events` with `begin` and `end`",
    )


_MOMENTS = ("DeliveredAt", "ReceivedAt", "BouncedAt", "ChangedAt")


def postmark(user: str | None, password: Secrets | None) -> Source:
    """Webhooks of Postmark, which sends the user and the password of its URL and signs nothing.

    A wrong password is answered 401; 403 would stop the repetitions for good.
    """
    if not user or ":" in user:
        raise SettingsError("postmark() needs the user of the webhook's URL, without a colon")
    return Source(
        name="postmark",
        scheme=Basic(user, Keys.read("postmark()", password)),
        id=lambda call: both(
            _postmark_type(call),
            text(call, "MessageID"),
            optional(call, "ID") or next(filter(None, (optional(call, m) for m in _MOMENTS)), ""),
            optional(call, "Recipient"),
        ),
        type=_postmark_type,
        success=(200,),
        retries=pauses(1, 5, 10, 10, 10, 15, 30, 60, 120, 360),
        ends="403 ends the repetitions of a call",
    )


def _postmark_type(call: Delivery) -> str:
    return optional(call, "RecordType") or "Inbound"  # a mail that came in has none
