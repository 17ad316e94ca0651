"""Every source accepts its provider's calls, knows their id and type, and refuses any change."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from relevo import sources
from relevo.pairs import Headers
from relevo.signatures import InvalidSignature
from relevo.sources import Source
from relevo.webhook import Delivery
from tests.providers import EVERY, NOW, VECTORS, WHSEC, call_of

MAKERS: dict[str, Callable[[dict[str, Any]], Source]] = {
    "stripe": lambda v: sources.stripe(v["secret"]),
    "github": lambda v: sources.github(v["secret"]),
    "gitlab-signing-token": lambda v: sources.gitlab(signing=v["secret"]),
    "gitlab-token": lambda v: sources.gitlab(v["token"]),
    "bitbucket": lambda v: sources.bitbucket(v["secret"]),
    "slack": lambda v: _slack(v),
    "discord": lambda v: _discord(v),
    "shopify": lambda v: sources.shopify(v["secret"]),
    "woocommerce": lambda v: sources.woocommerce(v.get("secret", "relevo_woo_secret")),
    "meta": lambda v: sources.meta(v["secret"]),
    "twilio": lambda v: (
        sources.twilio("another", shared_keys={"webhooks_sharedkey_01": v["secret"]})
        if "SharedKey" in v["name"]
        else sources.twilio(v["secret"])
    ),
    "sendgrid": lambda v: sources.sendgrid(v["public_key_base64"]),
    "mailgun": lambda v: sources.mailgun(v["secret"]),
    "postmark": lambda v: sources.postmark(v["basic_user"], v["basic_password"]),
    "paypal": lambda v: sources.paypal(v["webhook_id"], lambda _: v["certificate_pem"].encode()),
    "mercadopago": lambda v: sources.mercado_pago(v["secret"]),
    "adyen-payments": lambda v: sources.adyen(v["secret_hex"]),
    "adyen-platform": lambda v: sources.adyen_platform(v["secret_hex"]),
    "square": lambda v: sources.square(v["secret"]),
    "paddle": lambda v: sources.paddle(v["secret"]),
    "zoom": lambda v: sources.zoom(v["secret"]),
    "hubspot-v1": lambda v: sources.hubspot(v["secret"], versions=("v1",)),
    "hubspot-v2": lambda v: sources.hubspot(v["secret"], versions=("v2",)),
    "hubspot-v3": lambda v: sources.hubspot(v["secret"]),
    "typeform": lambda v: sources.typeform(v["secret"]),
    "calendly": lambda v: sources.calendly(v["secret"]),
    "linear": lambda v: sources.linear(v["secret"]),
    "telegram": lambda v: sources.telegram(v["token"]),
    "standard-webhooks": lambda v: sources.standard(v["secret"]),
    "aws-sns": lambda v: sources.sns(
        lambda _: v["certificate_pem"].encode(), topics=[json.loads(v["body_utf8"])["TopicArn"]]
    ),
    "intercom": lambda v: sources.intercom(v["secret"]),
    "jira": lambda v: sources.jira(v["secret"]),
    "notion": lambda v: sources.notion(v.get("secret", "secret_of_the_first_call")),
}

KNOWN: dict[str, tuple[str, str]] = {
    "stripe/snapshot event": ("evt_relevo_1", "payment_intent.succeeded"),
    "stripe/thin event (API v2)": (
        "evt_test_65R_relevo",
        "v1.billing.meter.error_report_triggered",
    ),
    "github/ping, JSON": ("72d3162e-cc78-11e3-81ab-4c9367dc0958:1", "ping"),
    "slack/Events API event_callback": ("Ev0RELEVO01", "app_mention"),
    "telegram/update": ("10000", "message"),
    "aws-sns/notification with subject, version 1": ("", "Notification"),
}
"""The id and the beginning of the type that a vector has; "" is not looked at."""

UNSIGNED = {
    (
        "woocommerce/ping when the webhook is saved: form body, NO signature; "
        "answer 200 and do nothing"
    ),
    "notion/handshake: unsigned body with the token that becomes the key",
}
BODY_NOT_SIGNED = {"gitlab-token", "telegram", "postmark", "mailgun", "mercadopago"}


def _slack(vector: dict[str, Any]) -> Source:
    if "command" in vector["name"]:
        return sources.slack_commands(vector["secret"])
    if "interactivity" in vector["name"]:
        return sources.slack_interactivity(vector["secret"])
    return sources.slack(vector["secret"])


def _discord(vector: dict[str, Any]) -> Source:
    make = sources.discord if "interaction" in vector["name"] else sources.discord_events
    return make(vector["public_key_hex"])


def _name(vector: dict[str, Any]) -> str:
    return f"{vector['scheme']}/{vector['name']}"


def _source(vector: dict[str, Any]) -> Source:
    return MAKERS[vector["scheme"]](vector)


each_vector = pytest.mark.parametrize("vector", VECTORS, ids=_name)


@each_vector
def test_a_providers_own_call_is_accepted(vector: dict[str, Any]) -> None:
    source = _source(vector)
    call = call_of(vector, source)
    if _name(vector) in UNSIGNED:
        assert source.unsigned(call) is not None
        return
    source.scheme.check(call, call.received_at)
    assert source.unsigned(call) is None


@each_vector
def test_a_changed_body_is_refused(vector: dict[str, Any]) -> None:
    source = _source(vector)
    call = call_of(vector, source)
    is_get = vector["scheme"] == "twilio" and not call.body
    if vector["scheme"] in BODY_NOT_SIGNED or _name(vector) in UNSIGNED or is_get:
        return
    other = call.body.replace(b"1", b"2") if b"1" in call.body else call.body + b"0"
    changed = msgspec.structs.replace(call, body=other)
    with pytest.raises(InvalidSignature):
        source.scheme.check(changed, call.received_at)


@each_vector
def test_a_call_without_its_signature_is_refused(vector: dict[str, Any]) -> None:
    source = _source(vector)
    bare = msgspec.structs.replace(call_of(vector, source), headers=Headers(), body=b"{}")
    with pytest.raises(InvalidSignature):
        source.scheme.check(bare, bare.received_at)


@pytest.mark.parametrize("vector", [v for v in VECTORS if _name(v) in KNOWN], ids=_name)
def test_the_id_and_the_type_are_the_providers(vector: dict[str, Any]) -> None:
    call = call_of(vector, _source(vector))
    id, kind = KNOWN[_name(vector)]
    assert not id or call.event_id == id
    assert call.event_type.startswith(kind)


@each_vector
def test_every_call_has_an_id_unless_it_is_a_set_upcall_of(vector: dict[str, Any]) -> None:
    source = _source(vector)
    call = call_of(vector, source)
    if vector["body_utf8"].startswith("Hello") or "public vector" in vector["name"]:
        return  # a text to try the signature with, no event
    if source.unsigned(call) is None and source.setup(call) is None:
        assert 0 < len(call.event_id) <= 512
        assert call.event_type


CANNOT_SIGN = {"adyen", "paypal", "sendgrid", "sns"}  # without items, or a private key
SIGNERS = [source for name, source in EVERY.items() if name not in CANNOT_SIGN]
SIGNERS.append(sources.gitlab(signing=WHSEC))


@pytest.mark.parametrize("source", SIGNERS, ids=lambda each: each.name)
def test_what_a_source_signs_it_accepts(source: Source) -> None:
    now = datetime.fromtimestamp(NOW, UTC)
    call = Delivery(
        path="/hook",
        headers=Headers([("content-type", source.content_types[0] or "application/json")]),
        body=b"a=1&b=%C3%A9" if "form" in source.content_types[0] else b'{"id":"e1"}',
        received_at=now,
        base="https://app.example.com",
        rules=source,
    )
    signed = source.signed(call, now, "x.y")
    source.scheme.check(signed, now)
    with pytest.raises(InvalidSignature):
        source.scheme.check(call, now)
