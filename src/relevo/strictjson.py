"""JSON that no two readers could read differently."""

from __future__ import annotations

import codecs
import gc
import json
import math
import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from relevo.errors import BodyError
from relevo.values import DEPTH

VALUES = 100_000
"""How many values a JSON body may hold; while more are made of it, everybody else would wait."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_TOO_DEEP = f"nested more than {DEPTH} deep"
_TOO_MANY = f"more than {VALUES:,} values"
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BodyError("a key stands twice in one object", code="duplicate_key")
    return found


def _integer(text: str) -> int:
    if len(text) > 20 or not _SMALLEST <= (number := int(text)) <= _LARGEST:
        raise BodyError("an integer of more than 64 bit", code="invalid_number")
    return number


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise BodyError("a number out of range", code="invalid_number")
    return number


def _constant(text: str) -> float:
    raise BodyError("NaN or infinity, which JSON does not have", code="invalid_number")


_decode = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
).decode


def parse_json(body: bytes) -> Any:
    """The value of strict JSON in UTF-8; BodyError with a code for everything else.

    Refused, because some reader further on would see something else or fail: a key twice in an
    object, numbers out of range, depth over 64, NUL, half a surrogate pair, BOM, UTF-16. And more
    than 100,000 values.
    """
    if len(body) <= VALUES:
        return _parse(body)
    _check_crowd(body)
    # What is made of a body is no garbage: to look through all of it again and again, as there is
    # more and more of it, takes several times as long as to read it.
    is_on = gc.isenabled()
    gc.disable()
    try:
        return _parse(body)
    finally:
        if is_on:
            gc.enable()


def _parse(body: bytes) -> Any:
    if (tree := _quickly(body)) is not None:
        return tree
    if not body.strip(b" \t\r\n"):
        raise BodyError("the body is empty", code="empty_body")
    if body.startswith(codecs.BOM_UTF8) or b"\0" in body[:4]:
        raise BodyError("JSON is UTF-8 without a byte order mark", code="not_utf8")
    try:
        tree = _decode(body.decode())
    except UnicodeDecodeError:
        reason, code = "the body is not UTF-8", "not_utf8"
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        reason, code = f"the body is not JSON: {error.msg} ({where})", "not_json"
    except RecursionError:
        reason, code = _TOO_DEEP, "too_deep"
    else:
        # A body of few brackets cannot be deep, and only escapes can spell what is no text.
        if body.count(b"[") + body.count(b"{") > DEPTH or b"\\u" in body:
            _look(tree)
        return tree
    # Out here, so that the error does not drag along one that quotes the body.
    raise BodyError(reason, code=code)


def _check_crowd(body: bytes) -> None:
    """Refuse a crowd of values by counting what stands before each, before one of them is made.

    A comma or an opening bracket stands before each value but the outermost; the bracket of an
    empty list or object before none.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") < VALUES:
        return  # wherever they stand
    bare = _without_escapes(body)
    if bare.count(b'"') > 4 * VALUES:  # a text is a value, or the key of one
        raise BodyError(_TOO_MANY, code="too_many_values")
    bare = b'"'.join(bare.split(b'"')[::2])  # of each text a quote is left
    bare = bare.translate(None, b" \t\r\n")
    commas, openings = bare.count(b","), bare.count(b"[") + bare.count(b"{")
    empty = bare.count(b"[]") + bare.count(b"{}")
    if commas + openings - empty < VALUES:
        return
    if openings > DEPTH * (commas + 1):  # what opens without a comma between opens inside
        raise BodyError(_TOO_DEEP, code="too_deep")
    raise BodyError(_TOO_MANY, code="too_many_values")


def _quickly(body: bytes) -> Any:
    """The value if it is surely strict; None sends it the long way, which says what is wrong.

    msgspec is as strict and several times faster, but for three things: it takes integers of any
    length, NUL, and the last of two equal keys. But for those escaped there are two quotes to a
    text, be it a key or a value; so fewer texts in the value than pairs of quotes, and a key came
    twice.
    """
    if b"\\u0000" in body:
        return None
    try:
        tree = _swift(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    texts = depth = 0
    level: list[Any] = [tree]
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            if value.__class__ is str:
                texts += 1
            elif value.__class__ is dict:
                texts += len(value)
                below.extend(value.values())
            elif value.__class__ is list:
                below.extend(value)
            elif value.__class__ is int and not _SMALLEST <= value <= _LARGEST:
                return None
        level = below
    quotes = (_without_escapes(body) if b"\\" in body else body).count(b'"')
    return tree if depth <= DEPTH and 2 * texts == quotes else None


def _without_escapes(body: bytes) -> bytes:
    """JSON in which every quote begins or ends a text."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


_swift = msgspec.json.Decoder().decode


def _look(tree: Any) -> None:
    level: list[Any] = [tree]
    depth = 0
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _look_at(value)
            elif isinstance(value, dict | list):
                if depth > DEPTH:
                    raise BodyError(_TOO_DEEP, code="too_deep")
                below += cast("Iterable[Any]", value)
                below += cast("dict[str, Any]", value).values() if isinstance(value, dict) else ()
        level = below


def _look_at(text: str) -> None:
    if "\0" in text or (not text.isascii() and _SURROGATE.search(text)):
        raise BodyError("NUL, or half of a surrogate pair, is not text", code="invalid_text")
