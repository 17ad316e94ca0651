"""Every source, made with secrets of tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relevo import sources
from relevo.sources import Source

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
