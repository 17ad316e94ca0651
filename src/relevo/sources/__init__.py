"""The providers of webhooks by name: each function here makes the `source=` of one.

    from relevo import sources

    @app.webhook("/hooks/shop", source=sources.stripe("whsec_…"), types=["invoice.paid"])
    async def paid(delivery: Delivery, ctx: Intake) -> None: ...

A source knows the signature, the id and the type of a delivery, the provider's set-up calls, and
what the provider wants to hear. `Source` makes one of your own. A provider that only signs, or
sends a secret along, has `hmac_header` or `shared_secret`, given as `verify=` beside `key=`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from relevo.clock import Duration, milliseconds
from relevo.errors import DefinitionError
from relevo.signatures import (
    Algorithm,
    Encoding,
    HmacHeader,
    Keys,
    Secrets,
    SharedSecret,
    Signed,
)
from relevo.sources.chat import (
    discord,
    discord_events,
    intercom,
    meta,
    slack,
    slack_commands,
    slack_interactivity,
    telegram,
    twilio,
    zoom,
)
from relevo.sources.code import bitbucket, github, gitlab, jira, linear, notion
from relevo.sources.mail import mailgun, postmark, sendgrid
from relevo.sources.pay import (
    adyen,
    adyen_platform,
    mercado_pago,
    paddle,
    paypal,
    square,
    stripe,
)
from relevo.sources.queues import qstash, sns, standard
from relevo.sources.shop import beds24, calendly, hubspot, shopify, typeform, woocommerce
from relevo.sources.source import Source, kinds

__all__ = [
    "Source",
    "adyen",
    "adyen_platform",
    "beds24",
    "bitbucket",
    "calendly",
    "discord",
    "discord_events",
    "github",
    "gitlab",
    "hmac_header",
    "hubspot",
    "intercom",
    "jira",
    "kinds",
    "linear",
    "mailgun",
    "mercado_pago",
    "meta",
    "notion",
    "paddle",
    "paypal",
    "postmark",
    "qstash",
    "sendgrid",
    "shared_secret",
    "shopify",
    "slack",
    "slack_commands",
    "slack_interactivity",
    "sns",
    "square",
    "standard",
    "stripe",
    "telegram",
    "twilio",
    "typeform",
    "woocommerce",
    "zoom",
]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


def hmac_header(
    header: str,
    secrets: Secrets | None,
    algorithm: Algorithm = "sha256",
    prefix: str = "",
    encoding: Encoding = "hex",
    *,
    time: str = "",
    tolerance: Duration = "5m",
    signed: Signed | None = None,
) -> HmacHeader:
    """An HMAC in a header, of the body or of what `signed` gives, as `verify=` or in a `Source`.

    `time` is the header with the time in seconds, which `signed` gets as its second argument; a
    call that is older or newer than `tolerance` is refused. Without it, only an event's id stops a
    replay.
    """
    if not _NAME.fullmatch(header):
        raise DefinitionError(f"{header!r:.80} is not the name of a header")
    if algorithm not in ("sha1", "sha256", "sha384", "sha512") or encoding not in ("hex", "base64"):
        raise DefinitionError("hmac_header() knows sha1, sha256, sha384, sha512, and hex, base64")
    if time and (signed is None or not _NAME.fullmatch(time)):
        raise DefinitionError(
            f"hmac_header({header!r}): time= is the name of a header, and signed= says how it is "
            "signed with the body; a time that is not signed stops no replay"
        )
    keys = Keys.read(f"hmac_header({header!r})", secrets)
    made = HmacHeader(keys, header, algorithm, prefix, encoding)
    if signed is None:
        return made
    return replace(made, time=time, tolerance=milliseconds(tolerance), signed=signed)


def shared_secret(
    secrets: Secrets | None,
    *,
    header: str | None = None,
    query: str | None = None,
    form: str | None = None,
    json: str | None = None,
) -> SharedSecret:
    """A secret that comes along, as `verify=`; in all the places named together exactly once.

    With `json`, the body is parsed before the caller is known: prefer any other place.
    """
    if not (header or query or form or json):
        raise DefinitionError("shared_secret() needs a place: header=, query=, form= or json=")
    return SharedSecret(Keys.read("shared_secret()", secrets), header, query, form, json)
