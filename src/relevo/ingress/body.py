"""Reading a body within its limits; nothing is read of one that is refused anyway."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

from relevo.ingress.plain import Call
from relevo.ingress.reply import Heard, Receive, Refused, Reply, Scope, error
from relevo.intake import Door
from relevo.pairs import FIELDS

TYPES = 20  # spellings of a good content type that a door remembers

_CHARSETS = ("utf-8", "utf8", "us-ascii")


class Gone(Exception):
    """The caller hung up; nobody waits for an answer."""


def allowed(door: Door) -> str:
    """The methods of a door."""
    return ", ".join([*door.methods, *(["GET"] if door.route.challenge else [])])


def check_head(door: Door, scope: Scope) -> bool:
    """Refuse what need not be read: size, type, encoding. Answers whether it is gzipped."""
    route = door.route
    length: int | None = None
    is_chunked = is_gzip = False
    media: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = _length(value)
        elif name == b"transfer-encoding":
            is_chunked = True
        elif name == b"content-type":
            if media is not None:
                raise Refused(error(415, "unsupported_media_type", close=True))
            media = value
        elif name == b"content-encoding" and value.lower() not in (b"identity", b""):
            if value.lower() != b"gzip" or not route.accept_gzip or is_gzip:
                raise Refused(error(415, "unsupported_encoding", close=True))
            is_gzip = True
    if scope["method"] == "GET":
        if length or is_chunked:
            raise Refused(error(400, "unexpected_body", close=True))
        return False
    if length is None and not is_chunked and scope.get("http_version", "1.1") < "2":
        raise Refused(error(411, "length_required", close=True))
    if length is not None and length > route.limit:
        raise Refused(_too_large())
    _check_media(door, media)
    return is_gzip


def is_welcome(door: Door, call: Call) -> bool:
    """The same of a plain call: whether there is nothing against reading it."""
    try:
        _check_media(door, call.media)
    except Refused:
        return False
    is_small = len(call.body) <= door.route.limit and call.query.count("&") < FIELDS
    return is_small and call.method in door.methods


def _check_media(door: Door, media: bytes | None) -> None:
    if media not in door.types:
        check_type(door.content_types, media or b"")
        if len(door.types) < TYPES:
            door.types.add(media)


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise Refused(error(400, "bad_request", close=True))
    return int(value)


def check_type(accepted: Iterable[str], media: bytes) -> None:
    kind, _, parameters = media.decode("latin-1").partition(";")
    if "*" in accepted or (kind.strip().lower() in accepted and _is_utf8(parameters)):
        return
    raise Refused(error(415, "unsupported_media_type", close=True))


def _is_utf8(parameters: str) -> bool:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower() in _CHARSETS
    return True


def _too_large() -> Reply:
    return error(413, "too_large", close=True)


async def read_body(receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes:
    """The whole body; Refused at the first byte too many. `hold` hears of every part."""
    message = await receive()
    if message["type"] != "http.request":
        raise Gone
    body: bytes = message.get("body", b"")
    hold(len(body))
    if len(body) > limit:
        raise Refused(_too_large(), Heard(is_cut=True))
    if not message.get("more_body", False):
        return body
    parts, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            raise Gone
        part: bytes = message.get("body", b"")
        hold(len(part))
        size += len(part)
        if size > limit:
            raise Refused(_too_large(), Heard(is_cut=True))
        parts.append(part)
    return b"".join(parts)


def unpacked(body: bytes, limit: int) -> bytes:
    """What was gzipped, unless it grows beyond its limit, is cut short or has a tail."""
    inflate = zlib.decompressobj(wbits=31)
    try:
        data = inflate.decompress(body, limit + 1)
    except zlib.error:
        raise Refused(error(400, "bad_gzip"), Heard().add(body)) from None
    if len(data) > limit or inflate.unconsumed_tail:
        raise Refused(error(413, "too_large"), Heard().add(body))
    if not inflate.eof or inflate.unused_data:
        raise Refused(error(400, "bad_gzip"), Heard().add(body))
    return data
