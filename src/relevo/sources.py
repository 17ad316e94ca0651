"""Who sends a webhook, provider by provider: each function here makes the `verify=` of one.

    from relevo import sources

    @app.webhook("/hooks/shop", verify=sources.stripe("whsec_…"), key=lambda call: call.json["id"])

A provider that is not listed has `hmac_header` or `shared_secret`; what they are built from is in
`relevo.signatures`.
"""

from __future__ import annotations

import re

from relevo.clock import Duration, milliseconds
from relevo.errors import DefinitionError, SettingsError
from relevo.signatures import (
    Algorithm,
    Encoding,
    HmacHeader,
    Key,
    Keys,
    QStash,
    Secrets,
    SharedSecret,
    Standard,
    Stripe,
)
from relevo.signatures.keys import from_base64

__all__ = [
    "github",
    "hmac_header",
    "meta",
    "qstash",
    "shared_secret",
    "standard",
    "stripe",
]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_URL = re.compile(r"https?://[^\s/?#][^\s#]*")


def meta(secrets: Secrets | None) -> HmacHeader:
    """WhatsApp and other webhooks of Meta; the secret is the app's, not the verify token."""
    keys = Keys.read("meta()", secrets)
    return HmacHeader(keys, "X-Hub-Signature-256", "sha256", "sha256=", "hex")


def github(secrets: Secrets | None) -> HmacHeader:
    """Webhooks of GitHub."""
    keys = Keys.read("github()", secrets)
    return HmacHeader(keys, "X-Hub-Signature-256", "sha256", "sha256=", "hex")


def hmac_header(
    header: str,
    secrets: Secrets | None,
    algorithm: Algorithm = "sha256",
    prefix: str = "",
    encoding: Encoding = "hex",
) -> HmacHeader:
    """An HMAC of the body in a header; it has no time, so only an event's id stops a replay."""
    if not _NAME.fullmatch(header):
        raise DefinitionError(f"{header!r:.80} is not the name of a header")
    if algorithm not in ("sha256", "sha384", "sha512") or encoding not in ("hex", "base64"):
        raise DefinitionError("hmac_header() knows sha256, sha384, sha512, and hex, base64")
    keys = Keys.read(f"hmac_header({header!r})", secrets)
    return HmacHeader(keys, header, algorithm, prefix, encoding)


def stripe(secrets: Secrets | None, tolerance: Duration = "5m") -> Stripe:
    """Webhooks of Stripe; the secret is the endpoint's, whole, with its `whsec_`."""
    return Stripe(Keys.read("stripe()", secrets), milliseconds(tolerance))


def standard(secrets: Secrets | None, tolerance: Duration = "5m") -> Standard:
    """Standard Webhooks and Svix, in either spelling of the headers; symmetric (v1) only."""
    return Standard(Keys.read("standard()", secrets, from_base64), milliseconds(tolerance))


def qstash(
    current: str | Key | None, next: str | Key | None, url: str | None, leeway: Duration = "5s"
) -> QStash:
    """Messages of QStash to `url`, which is the destination as it was published.

    A published query need not be in it. `leeway` is for clocks that differ.
    """
    if not _URL.fullmatch(url or ""):
        raise SettingsError("qstash() needs the public URL of its door, as it is published to")
    pair = Keys.read("qstash()", [current or "", next or ""])
    return QStash(pair, url or "", milliseconds(leeway))


def shared_secret(
    secrets: Secrets | None,
    *,
    header: str | None = None,
    query: str | None = None,
    form: str | None = None,
    json: str | None = None,
) -> SharedSecret:
    """A secret that comes along, under these names; in all these places together exactly once.

    With `json`, the body is parsed before the caller is known: prefer any other place.
    """
    if not (header or query or form or json):
        raise DefinitionError("shared_secret() needs a place: header=, query=, form= or json=")
    return SharedSecret(Keys.read("shared_secret()", secrets), header, query, form, json)
