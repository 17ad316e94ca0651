"""Every source, made with secrets of tests."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relevo import sources
from relevo.errors import BodyError
from relevo.pairs import Headers
from relevo.sources import Source
from relevo.webhook import Delivery

NOW = 1_767_225_600
WHSEC = "whsec_cmVsZXZvLXN0YW5kYXJkLXdlYmhvb2sta2V5LTAwMDE="
VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "unit/source_vectors.json").read_text()
)["vectors"]


def _vector(scheme: str) -> dict[str, Any]:
    return next(vector for vector in VECTORS if vector["scheme"] == scheme)


_DISCORD = (_vector("discord")["public_key_hex"],)
_SEED = _vector("discord")["private_seed_hex"]

EVERY: dict[str, Source] = {
    "adyen": sources.adyen("ab" * 32),
    "adyen_platform": sources.adyen_platform("ab" * 32),
    "beds24": sources.beds24("s"),
    "bitbucket": sources.bitbucket("s"),
    "calendly": sources.calendly("s"),
    "discord": sources.discord(*_DISCORD, seed=_SEED),
    "discord_events": sources.discord_events(*_DISCORD, seed=_SEED),
    "github": sources.github("s"),
    "gitlab": sources.gitlab("s"),
    "hubspot": sources.hubspot("s"),
    "intercom": sources.intercom("s"),
    "jira": sources.jira("s"),
    "linear": sources.linear("s"),
    "mailgun": sources.mailgun("s"),
    "mercado_pago": sources.mercado_pago("s"),
    "meta": sources.meta("s"),
    "notion": sources.notion("s"),
    "paddle": sources.paddle("s"),
    "paypal": sources.paypal("WH-1", {}),
    "postmark": sources.postmark("u", "p"),
    "qstash": sources.qstash("sig_1", "sig_2", "https://app.example.com/hook"),
    "sendgrid": sources.sendgrid(_vector("sendgrid")["public_key_base64"]),
    "shopify": sources.shopify("s"),
    "slack": sources.slack("s"),
    "slack_commands": sources.slack_commands("s"),
    "slack_interactivity": sources.slack_interactivity("s"),
    "sns": sources.sns({}, topics=["arn:aws:sns:eu-west-1:1:orders"]),
    "square": sources.square("s"),
    "standard": sources.standard(WHSEC),
    "stripe": sources.stripe("whsec_1"),
    "telegram": sources.telegram("s"),
    "twilio": sources.twilio("s"),
    "typeform": sources.typeform("s"),
    "woocommerce": sources.woocommerce("s"),
    "zoom": sources.zoom("s"),
}
"""By the name of the function that makes it."""

_SCHEMES = {
    "adyen": "adyen-payments",
    "discord_events": "discord",
    "gitlab": "gitlab-token",
    "hubspot": "hubspot-v3",
    "mercado_pago": "mercadopago",
    "slack_commands": "slack",
    "slack_interactivity": "slack",
    "sns": "aws-sns",
    "standard": "standard-webhooks",
}


def event_of(name: str) -> Delivery | None:
    """A call of a provider that brings an event; None if there is only one that sets up."""
    source = EVERY[name]
    for vector in VECTORS:
        if vector["scheme"] != _SCHEMES.get(name, name.replace("_", "-")):
            continue
        call = call_of(vector, source)
        is_for_it = "*" in source.content_types or call.media_type in source.content_types
        with suppress(LookupError, BodyError):
            is_set_up = source.setup(call) or source.unsigned(call)
            if is_for_it and not is_set_up and call.event_id and source.type(call):
                return call
    return None


def call_of(vector: dict[str, Any], source: Source) -> Delivery:
    url = urlsplit(vector.get("url", "https://app.example.com/hook"))
    return Delivery(
        path=url.path,
        method=vector.get("method", "POST"),
        query=vector.get("query", url.query),
        headers=Headers(vector["headers"].items()),
        body=vector["body_utf8"].encode(),
        received_at=datetime.fromtimestamp(vector.get("now", NOW), UTC),
        base=f"{url.scheme}://{url.netloc}",
        rules=source,
    )
