"""Sources of payments: Stripe, Paddle, Mercado Pago, Adyen, Square, PayPal."""

from __future__ import annotations

from datetime import timedelta

from relevo.clock import Duration, milliseconds
from relevo.errors import SettingsError
from relevo.signatures import (
    AdyenItems,
    Certificates,
    HmacHeader,
    Keys,
    MercadoPago,
    PayPal,
    Secrets,
    Square,
    TimedHeader,
    adyen_items,
)
from relevo.sources.source import (
    Source,
    both,
    digest,
    header,
    kinds,
    optional,
    pauses,
    text,
)
from relevo.webhook import Answer, Delivery

_THREE_DAYS = pauses(1, 5, 30, *(60.0 * hours for hours in (1, 2, 4, 8, 12, 12, 12, 12, 8)))


def stripe(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Webhooks of Stripe, snapshot and thin events; the secret is the endpoint's `whsec_…`."""
    return Source(
        name="stripe",
        scheme=TimedHeader(Keys.read("stripe()", secrets), milliseconds(tolerance)),
        id=lambda call: text(call, "id"),
        type=lambda call: text(call, "type"),
        waits=timedelta(seconds=10),
        retries=_THREE_DAYS,
        ends="an endpoint that fails for days is disabled, and a disabled one gets no repetitions",
        varies=("pending_webhooks",),
        again="`stripe events list` with `created[gte]` and `created[lte]`, then `stripe "
        "events resend EVENT --webhook-endpoint ENDPOINT` for each; events are kept for "
        "30 days",
    )


def paddle(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Webhooks of Paddle Billing. Its libraries allow 5 s; behind a slow proxy that is too few."""
    keys = Keys.read("paddle()", secrets)
    form = {"header": "Paddle-Signature", "time": "ts", "seal": "h1", "split": ";"}
    return Source(
        name="paddle",
        scheme=TimedHeader(keys, milliseconds(tolerance), **form, joiner=b":"),
        id=lambda call: text(call, "event_id"),
        type=lambda call: text(call, "event_type"),
        waits=timedelta(seconds=5),
        success=(200,),
        retries=pauses(*(3.0,) * 20, *(106.0,) * 40),
        varies=("notification_id",),  # of a replay
        again="`GET /notifications` with `from` and `to`, then `POST "
        "/notifications/ID/replay` for each",
    )


def mercado_pago(secrets: Secrets | None, tolerance: Duration | None = None) -> Source:
    """Webhooks of Mercado Pago. The body is not signed: fetch the payment before acting on it."""
    keys = Keys.read("mercado_pago()", secrets)
    return Source(
        name="mercado pago",
        scheme=MercadoPago(keys, None if tolerance is None else milliseconds(tolerance)),
        id=lambda call: both(text(call, "id"), optional(call, "action")).rstrip(":"),
        type=lambda call: optional(call, "action") or text(call, "type"),
        success=(200, 201),
        waits=timedelta(seconds=22),
        retries=pauses(15, 15, 15, 30, 60, 240, 720),
        body_is_signed=False,
        again="cannot; search the payments by `date_last_updated`",
    )


_THIRTY_DAYS = pauses(0.15, 0.3, 0.45, 2, 5, 10, 15, 30, 60, 120, 240, *(480.0,) * 88)
_QUEUES = "nothing; while one call fails, all later ones wait behind it"


def adyen(secrets: Secrets | None) -> Source:
    """Standard webhooks of Adyen payments; the key is the HMAC key of its page, in hex.

    Every item of a call must be signed. Adyen sends nothing else until a failure is over.
    """
    return Source(
        name="adyen",
        scheme=AdyenItems(Keys.read("adyen()", secrets, bytes.fromhex)),
        id=_adyen_id,
        type=lambda call: kinds(str(item["eventCode"]) for item in adyen_items(call.json)),
        answer=Answer.text("[accepted]"),
        waits=timedelta(seconds=10),
        retries=_THIRTY_DAYS,
        ends=_QUEUES,
        body_is_signed=False,  # eight of its fields are
    )


def _adyen_id(call: Delivery) -> str:
    names = ("pspReference", "eventCode", "success", "originalReference")
    listed = [both(*(str(item.get(name, "")) for name in names)) for item in adyen_items(call.json)]
    if not listed:
        raise LookupError('no item in "notificationItems" of the body')
    return listed[0] if len(listed) == 1 else digest("\n".join(listed).encode())


def adyen_platform(secrets: Secrets | None) -> Source:
    """Webhooks of Adyen's platform, banking and management; the key is in hex."""
    keys = Keys.read("adyen_platform()", secrets, bytes.fromhex)
    return Source(
        name="adyen platform",
        scheme=HmacHeader(keys, "HmacSignature", "sha256", "", "base64"),
        id=lambda call: both(
            text(call, "data", "id"),
            text(call, "type"),
            optional(call, "data", "status"),
            optional(call, "data", "sequenceNumber"),
            optional(call, "timestamp"),
        ),
        type=lambda call: text(call, "type"),
        answer=Answer.text("[accepted]"),
        waits=timedelta(seconds=10),
        retries=_THIRTY_DAYS,
        ends=_QUEUES,
    )


def square(secrets: Secrets | None) -> Source:
    """Webhooks of Square; RELEVO_PUBLIC_URL is part of what is signed."""
    return Source(
        name="square",
        scheme=Square(Keys.read("square()", secrets)),
        id=lambda call: text(call, "event_id"),
        type=lambda call: text(call, "type"),
        attempt=lambda call: int(header(call, "square-retry-number")) + 1,
        waits=timedelta(seconds=10),
        retries=pauses(1, 2, 4, 8, 16, 32, *(60.0,) * 23),
        ends="three weeks without one success disable the subscription",
        keep_headers=("square-retry-number", "square-retry-reason"),
        again="cannot; `POST /v2/events` with `created_at`, where searching was enabled: 28 days",
    )


def paypal(webhook_id: str | None, certificates: Certificates) -> Source:
    """Webhooks of PayPal, whose calls name the certificate that they are signed with.

    `certificates` gives the certificate in PEM at an address, downloaded and checked by the
    program: relevo downloads nothing while a call waits.
    """
    if not webhook_id:
        raise SettingsError("paypal() needs the id of the webhook, as PayPal's page shows it")
    return Source(
        name="paypal",
        scheme=PayPal(webhook_id, certificates),
        id=lambda call: text(call, "id"),
        type=lambda call: text(call, "event_type"),
        waits=timedelta(seconds=10),
        retries=pauses(1, 2, 4, 8, 15, 30, *(240.0,) * 18),
        body_is_signed=False,  # a checksum of it is
        again="`GET /v1/notifications/webhooks-events` with `start_time` and `end_time`, then "
        "`POST …/webhooks-events/ID/resend` for each",
    )


__all__ = ["adyen", "adyen_platform", "mercado_pago", "paddle", "paypal", "square", "stripe"]
