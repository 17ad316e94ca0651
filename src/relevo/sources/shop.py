"""Sources of shops, forms and bookings: Shopify, WooCommerce, HubSpot, Typeform, Calendly, …"""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import timedelta

from relevo.clock import Duration, milliseconds
from relevo.signatures import (
    HmacHeader,
    HubSpot,
    HubSpotVersion,
    Keys,
    Secrets,
    SharedSecret,
    TimedHeader,
)
from relevo.sources.source import (
    JSON,
    OK,
    Source,
    both,
    digest,
    header,
    kinds,
    optional,
    pauses,
    text,
)
from relevo.webhook import FORM, Answer, Delivery


def shopify(secrets: Secrets | None) -> Source:
    """Webhooks of Shopify; the secret is the app's client secret."""
    keys = Keys.read("shopify()", secrets)
    name = "X-Shopify-Hmac-Sha256"
    return Source(
        name="shopify",
        scheme=HmacHeader(keys, name, "sha256", "", "base64", also="shopify-hmac-sha256"),
        id=lambda call: header(call, "X-Shopify-Webhook-Id", "shopify-webhook-id"),
        type=_shopify_type,
        waits=timedelta(seconds=5),
        retries=pauses(1, 5, 10, 20, 30, 40, 60, 74),
        ends="8 failures in a row delete a subscription that was made by the API",
        keep_headers=(
            *("x-shopify-topic", "x-shopify-webhook-id", "x-shopify-event-id"),
            *("x-shopify-shop-domain", "x-shopify-triggered-at", "x-shopify-api-version"),
            *("shopify-topic", "shopify-action", "shopify-webhook-id", "shopify-shop-domain"),
        ),
        headers=lambda type, id: {
            "X-Shopify-Topic": type or "orders/create",
            "X-Shopify-Webhook-Id": id,
        },
        again="cannot; ask the Admin API by `updated_at`",
    )


def _shopify_type(call: Delivery) -> str:
    if topic := call.header("X-Shopify-Topic"):
        return topic
    return f"{header(call, 'shopify-topic')}/{header(call, 'shopify-action')}".lower()


def woocommerce(secrets: Secrets | None) -> Source:
    """Webhooks of WooCommerce, which sends each of them once.

    Its delivery id is shared by all calls of one second, so the id is made of the object. The call
    that it makes when a webhook is saved is not signed, and is only answered.
    """
    keys = Keys.read("woocommerce()", secrets, lambda text: html.unescape(text).encode())
    return Source(
        name="woocommerce",
        scheme=HmacHeader(keys, "X-WC-Webhook-Signature", "sha256", "", "base64"),
        id=lambda call: both(
            call.header("X-WC-Webhook-ID") or "",
            call.header("X-WC-Webhook-Topic") or "",
            optional(call, "id"),  # an `action.*` has none
            optional(call, "date_modified_gmt") or digest(call.body),
        ),
        type=lambda call: header(call, "X-WC-Webhook-Topic"),
        content_types=(*JSON, FORM),
        unsigned=_woocommerce_ping,
        success=range(200, 303),
        waits=timedelta(seconds=60),
        ends="more than 5 failures in a row disable the webhook",
        keep_headers=("x-wc-webhook-topic", "x-wc-webhook-id", "x-wc-webhook-source"),
        headers=lambda type, id: {
            "X-WC-Webhook-Topic": type or "order.updated",
            "X-WC-Webhook-ID": "1",
        },
        again="cannot; ask the REST API by `modified_after`",
    )


def _woocommerce_ping(call: Delivery) -> Answer | None:
    is_ping = call.media_type == FORM and call.body.startswith(b"webhook_id=")
    return OK if is_ping and len(call.body) < 100 else None


def hubspot(
    secrets: Secrets | None,
    tolerance: Duration = "5m",
    *,
    versions: tuple[HubSpotVersion, ...] = ("v3",),
) -> Source:
    """Webhooks of HubSpot; RELEVO_PUBLIC_URL is part of what is signed.

    One call carries many items (`delivery.items`), and a repetition may group them otherwise: let
    each item be a command with a key of its own. `versions` allows older signatures as well.
    """
    return Source(
        name="hubspot",
        scheme=HubSpot(Keys.read("hubspot()", secrets), milliseconds(tolerance), versions),
        id=_hubspot_id,
        type=lambda call: kinds(str(item["subscriptionType"]) for item in call.items),
        attempt=lambda call: int(call.items[0]["attemptNumber"]) + 1,
        waits=timedelta(seconds=5),
        retries=pauses(1, 5, 15, 30, 60, 120, 240, 480, 480),
        ends="400, 401, 403, 404 and 405 are said to end the repetitions of a call",
        varies=("attemptNumber",),
    )


_HUBSPOT = ("eventId", "subscriptionId", "occurredAt", "objectId", "propertyName")


def _hubspot_id(call: Delivery) -> str:
    listed = [_item_id(item, _HUBSPOT) for item in call.items]
    if not listed:
        raise LookupError("no item in the body")
    return listed[0] if len(listed) == 1 else digest("\n".join(listed).encode())


def _item_id(item: Mapping[str, object], names: tuple[str, ...]) -> str:
    if names[0] not in item:
        raise LookupError(f'an item has no "{names[0]}"')
    return both(*(str(item.get(name, "")) for name in names))


def typeform(secrets: Secrets | None) -> Source:
    """Webhooks of Typeform."""
    keys = Keys.read("typeform()", secrets)
    return Source(
        name="typeform",
        scheme=HmacHeader(keys, "Typeform-Signature", "sha256", "sha256=", "base64"),
        id=lambda call: text(call, "event_id"),
        type=lambda call: text(call, "event_type"),
        waits=timedelta(seconds=30),
        retries=pauses(1, 5, 15, 60, 120, 300),
        ends="404, 410 or long failure disables the webhook",
        again="cannot; `GET /forms/ID/responses` with `since` and `until`",
    )


def calendly(secrets: Secrets | None, tolerance: Duration = "3m") -> Source:
    """Webhooks of Calendly, which have no id: event, object and time together stand for it."""
    keys = Keys.read("calendly()", secrets)
    return Source(
        name="calendly",
        scheme=TimedHeader(keys, milliseconds(tolerance), "Calendly-Webhook-Signature"),
        id=lambda call: both(
            text(call, "event"), text(call, "payload", "uri"), optional(call, "created_at")
        ),
        type=lambda call: text(call, "event"),
        waits=timedelta(seconds=10),
        retries=pauses(1, 5, 30, 60, 240, 480, 600),
        ends="24 hours of failure disable the webhook for good: make a new one",
    )


def beds24(
    secrets: Secrets | None, *, header: str | None = None, query: str | None = "secret"
) -> Source:
    """Webhooks of Beds24, which sends a secret along: in a header of your choice, or in the URL.

    They have no id: the body's hash stands for it.
    """
    keys = Keys.read("beds24()", secrets)
    return Source(
        name="beds24",
        scheme=SharedSecret(keys, header, None if header else query, None, None),
        id=lambda call: digest(call.body + call.shown_query((query or "",)).encode()),
        methods=("POST", "GET"),
        content_types=(*JSON, FORM, ""),
        waits=timedelta(seconds=10),
        again="cannot; `GET /bookings` with `modifiedFrom`",
    )
