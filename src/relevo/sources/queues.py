"""Sources of message services: Standard Webhooks (Svix and many more), QStash, AWS SNS."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta

from relevo.clock import Duration, milliseconds
from relevo.errors import SettingsError
from relevo.signatures import Certificates, Key, Keys, QStash, Secrets, Sns, Standard
from relevo.signatures.keys import from_base64
from relevo.sources.source import JSON, Source, body_hash, header, pauses, text
from relevo.webhook import Delivery

_URL = re.compile(r"https?://[^\s/?#][^\s#]*")


def standard(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Standard Webhooks and Svix, in either spelling of the headers: Clerk, Resend, OpenAI, …"""
    keys = Keys.read("standard()", secrets, from_base64)
    return Source(
        name="standard webhooks",
        scheme=Standard(keys, milliseconds(tolerance)),
        id=lambda call: header(call, "webhook-id", "svix-id"),
        type=lambda call: text(call, "type"),
        waits=timedelta(seconds=15),
        retries=pauses(1 / 12, 5, 30, 120, 300, 600, 600),
        ends="an endpoint that fails for five days is disabled (Svix)",
    )


def qstash(
    current: str | Key | None, next: str | Key | None, url: str | None, leeway: Duration = "5s"
) -> Source:
    """Messages of QStash to `url`, which is the destination as it was published.

    A published query need not be in it. `leeway` is for clocks that differ.
    """
    if not _URL.fullmatch(url or ""):
        raise SettingsError("qstash() needs the public URL of its door, as it is published to")
    pair = Keys.read("qstash()", [current or "", next or ""])
    return Source(
        name="qstash",
        scheme=QStash(pair, url or "", milliseconds(leeway)),
        id=_qstash_id,
        attempt=lambda call: int(header(call, "Upstash-Retried")) + 1,
        content_types=("*",),
        waits=timedelta(minutes=2),
        retries=pauses(0.2, 2.5, 30),
        ends="489 with `Upstash-NonRetryable-Error: true` ends the repetitions of a message",
        keep_headers=("upstash-message-id", "upstash-retried"),
    )


def _qstash_id(call: Delivery) -> str:
    return call.header("Upstash-Message-Id") or body_hash(call)


def sns(certificates: Certificates, *, topics: Collection[str]) -> Source:
    """Notifications of AWS SNS, whose calls name the certificate that they are signed with.

    `certificates` gives the certificate in PEM at an address, downloaded and checked by the
    program: relevo downloads nothing while a call waits. A subscription is confirmed by fetching
    `SubscribeURL` in a worker: its type is "SubscriptionConfirmation", that of all events is
    "Notification", and what they are about stands inside `Message`.
    """
    if isinstance(topics, str) or not topics:
        raise SettingsError("sns() needs topics=: the ARNs that may notify, in a list")
    return Source(
        name="aws sns",
        scheme=Sns(certificates, frozenset(topics)),
        id=lambda call: text(call, "MessageId"),
        type=lambda call: text(call, "Type"),
        content_types=("text/plain", *JSON),
        waits=timedelta(seconds=15),
        retries=pauses(1 / 3, 1 / 3, 1 / 3),
        ends="a 4xx other than 429 ends the repetitions of a notification",
        keep_headers=("x-amz-sns-message-type", "x-amz-sns-topic-arn"),
    )
