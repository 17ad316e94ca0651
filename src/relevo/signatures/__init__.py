"""Checking who sent a delivery: HMAC schemes, signed tokens, shared secrets.

A scheme is a small frozen value, made once from its secrets; its `check` raises InvalidSignature.
Everything secret is compared as bytes in constant time, over the body as it came, and nothing is
parsed before it fits. `sign` is the other end of each scheme, for tests, simulators and
`relevo deliveries send`; `explain` tells our own people what is wrong. An application makes its
schemes with the functions of `relevo.sources`.

Secrets are one or several, each a text or a `Key` with an end: list the next one before the
provider uses it, and give the old one an end.
"""

from __future__ import annotations

from relevo.signatures.explain import RIGHT, explain
from relevo.signatures.hmacs import (
    Algorithm,
    Encoding,
    HmacHeader,
    Signed,
    Standard,
    TimedHeader,
)
from relevo.signatures.inside import AdyenItems, Linear, Mailgun, MercadoPago, adyen_items
from relevo.signatures.keypairs import Certificates, Ecdsa, Ed25519, PayPal, Sns
from relevo.signatures.keys import Key, Keys, Secrets
from relevo.signatures.scheme import InvalidSignature, Nonce, Scheme
from relevo.signatures.shared import Basic, SharedSecret
from relevo.signatures.token import QStash
from relevo.signatures.urls import HubSpot, HubSpotVersion, Square, Twilio

__all__ = [
    "RIGHT",
    "AdyenItems",
    "Algorithm",
    "Basic",
    "Certificates",
    "Ecdsa",
    "Ed25519",
    "Encoding",
    "HmacHeader",
    "HubSpot",
    "HubSpotVersion",
    "InvalidSignature",
    "Key",
    "Keys",
    "Linear",
    "Mailgun",
    "MercadoPago",
    "Nonce",
    "PayPal",
    "QStash",
    "Scheme",
    "Secrets",
    "SharedSecret",
    "Signed",
    "Sns",
    "Square",
    "Standard",
    "TimedHeader",
    "Twilio",
    "adyen_items",
    "explain",
]
