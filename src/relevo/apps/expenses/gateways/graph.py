"""WhatsApp's Graph API: sending a text, fetching what somebody attached."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import timedelta
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from relevo import ProviderRefused, ProviderUnavailable, ProviderUncertain
from relevo.apps.outside import Outside, Reply

MEDIA_MAX = 16 * 1_048_576
TEXT_MAX = 4_096
TRIES = 3

_PAIR = timedelta(seconds=6)  # one person, about one message in six seconds
_BUSY = timedelta(seconds=15)
_LATER = frozenset({1, 2, 131000, 131016, 133004})
_LIMITS = {4: _BUSY, 80007: _BUSY, 130429: _BUSY, 131056: _PAIR}


class Media(NamedTuple):
    """Something attached, of a type that its own bytes show."""

    content_type: str
    data: bytes


class MediaRefused(ProviderRefused):
    """What was attached will not be read: too big, of another type, gone."""


class Graph:
    """One app's access. The token goes to Meta's hosts and to nobody else's."""

    def __init__(self, base: str, version: str, token: str) -> None:
        self._graph = Outside("WhatsApp", f"{base}/{version}", seconds=15)
        self._files = Outside("WhatsApp media", seconds=30, limit=MEDIA_MAX)
        self._host = urlsplit(base)
        self._token = {"authorization": f"Bearer {token}"}

    async def close(self) -> None:
        await self._graph.close()
        await self._files.close()

    # Sending

    async def send(self, phone_number_id: str, to: str, text: str, mark: str) -> str:
        """Send a text and answer with its id. There is no idempotency key: `mark` comes back in
        the statuses of what was sent, and tells a lost answer from a message that never left."""
        body = {
            "messaging_product": "whatsapp",
            "recipient_type": "individual",
            "to": to,
            "type": "text",
            "text": {"preview_url": False, "body": text[:TEXT_MAX]},
            "biz_opaque_callback_data": mark,
        }
        path = f"/{phone_number_id}/messages"
        reply = await self._graph.call("POST", path, json=body, headers=self._token, acts=True)
        said = _said(reply)
        try:
            sent: Any = said["messages"][0]["id"]
        except (LookupError, TypeError):
            sent = None
        if not isinstance(sent, str) or not 0 < len(sent) <= 255:
            raise ProviderUncertain("WhatsApp took the message and did not say under which id")
        return sent

    # Fetching

    async def fetch(self, media_id: str, sha256: str = "") -> Media:
        """What somebody attached; MediaRefused when it is not to be had, or not to be trusted."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._fetch(media_id, sha256)
            except ProviderUnavailable:
                if attempt == TRIES:
                    raise
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def _fetch(self, media_id: str, sha256: str) -> Media:
        reply = await self._graph.call("GET", f"/{media_id}", headers=self._token, acts=False)
        try:
            told = _said(reply)
        except ProviderRefused as error:
            if reply.status in (401, 403):
                raise
            raise MediaRefused("the attachment is gone") from error
        url, size = told.get("url"), told.get("file_size")
        if not isinstance(url, str) or not self._is_ours(url):
            raise MediaRefused("the attachment lies at a host that is not Meta's")
        if isinstance(size, int | str) and str(size).isdigit() and int(size) > MEDIA_MAX:
            raise MediaRefused(f"the attachment has more than {MEDIA_MAX:,} bytes")
        file = await self._files.call("GET", url, headers=self._token, acts=False)
        if file.status == 404:
            # The address has expired; asking for a new one is the way, not asking it again.
            raise ProviderUnavailable("the attachment's address has expired")
        if 300 <= file.status < 400:
            raise MediaRefused("the attachment leads elsewhere")
        data = file.check().body
        _check_hash(data, told.get("sha256"), sha256)
        found = content_type(data)
        if found is None:
            raise MediaRefused("the attachment is of no type that is read here")
        return Media(found, data)

    def _is_ours(self, url: str) -> bool:
        """Whether the token may go there: Meta's file hosts, or the base we were given."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if parts.username is not None or parts.password is not None:
            return False
        if (parts.scheme, host, port) == (self._host.scheme, self._host.hostname, self._host.port):
            return True
        is_metas = host == "fbsbx.com" or host.endswith(".fbsbx.com")
        return parts.scheme == "https" and port in (None, 443) and is_metas


def content_type(data: bytes) -> str | None:
    """The type that the bytes themselves show; None for all others, and for two in one."""
    found = _magic(data)
    if found is None:
        return None
    # A picture with an archive or a document behind it is something else to the next reader.
    if b"PK\x05\x06" in data[-66_000:] or (found != "application/pdf" and b"%PDF-" in data[:1_024]):
        return None
    if b"<script" in data[:4_096].lower() or b"<?php" in data[:4_096].lower():
        return None
    return found


def _magic(data: bytes) -> str | None:
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith(b"OggS"):
        return "audio/ogg"
    if data.startswith((b"#!AMR\n", b"#!AMR-WB\n")):
        return "audio/amr"
    if data.startswith(b"ID3") or data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"):
        return "audio/mpeg"
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "audio/aac"
    if data[4:8] == b"ftyp":
        return "audio/mp4" if data[8:11] == b"M4A" else "video/mp4"
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    return None


def _check_hash(data: bytes, told: Any, announced: str) -> None:
    digest = hashlib.sha256(data).digest()
    if isinstance(told, str) and told and not hmac.compare_digest(told.lower(), digest.hex()):
        raise ProviderUnavailable("the attachment arrived damaged")
    try:
        wanted = base64.b64decode(announced, validate=True)
    except (binascii.Error, ValueError):
        return
    if wanted and not hmac.compare_digest(wanted, digest):
        raise MediaRefused("the attachment is not the one that was sent")


def _said(reply: Reply) -> dict[str, Any]:
    """The answer; an error decided by its code, which its HTTP status does not tell."""
    try:
        said: Any = reply.json()
    except (ProviderUncertain, ProviderUnavailable):
        reply.check()  # the status knows better than a body that nobody can read
        raise
    if not isinstance(said, dict):
        raise reply.unreadable("no object")
    found = cast("dict[str, Any]", said)
    error = found.get("error")
    if not isinstance(error, dict):
        reply.check()
        return found
    code: Any = cast("dict[str, Any]", error).get("code")
    said_so = f"WhatsApp answered {reply.status} with code {code!s:.12}"
    if code in _LIMITS:
        raise ProviderUnavailable(said_so, retry_after=_LIMITS[code], spends=False)
    if code in _LATER:
        raise ProviderUnavailable(said_so)
    if isinstance(code, int) and reply.status != 401:  # a token that has expired is no refusal
        raise ProviderRefused(said_so)
    reply.check()
    raise reply.unreadable("an error without a code")
