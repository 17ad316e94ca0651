"""A quick look at encoded JSON passes over no key that a vendor's own form gives away."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest

from relevo.sensitive import looks_clean
from relevo.vendor_keys import KEY

_TOKEN = "A1b2C3d4E5f6G7h8J9k0mNpQrStUvWxYz_-"
_chance = random.Random(7)


def _spelled(parsed: Any) -> Iterator[str]:
    """Texts of a parsed expression: each alternative, and each character of a small class."""
    return map("".join, product(*[list(_part(str(kind), told)) for kind, told in parsed]))


def _part(kind: str, told: Any) -> Iterator[str]:
    match kind:
        case "LITERAL":
            yield chr(told)
        case "IN":
            yield from _characters(told)
        case "BRANCH":
            for alternative in told[1]:
                yield from _spelled(alternative)
        case "SUBPATTERN":
            yield from _spelled(told[-1])
        case "MAX_REPEAT":
            least, _, repeated = told
            some = list(islice(_spelled(repeated), 64))
            yield "".join(_chance.choice(some) for _ in range(max(least, 1)))
        case "ASSERT_NOT":
            yield ""
        case _:
            raise AssertionError(f"{kind} is new here")


def _characters(told: Any) -> Iterator[str]:
    for kind, what in told:
        match str(kind):
            case "LITERAL":
                yield chr(what)
            case "RANGE":
                yield from map(chr, range(what[0], what[1] + 1))
            case "CATEGORY":
                yield from "0123456789" if "DIGIT" in str(what) else _TOKEN[:-1]
            case _:
                raise AssertionError(f"{kind} is new here")


INNOCENT = """
    store_id user_key-1 risk_live_x task-ant where_it_is a.b-c_d bearer_token basic_plan api_KEY_id
    user-u1234 surveys.monkey-2 2024-05-01T10:20:30Z 2024_0001_0002 abb:ana@example.com oauth dapper
"""

KEYS = sorted(
    {
        key
        for _ in range(3)
        for key in _spelled(importlib.import_module("re._parser").parse(KEY.pattern))
    }
)


def test_every_vendor_has_a_key_here() -> None:
    assert len({key[:4] for key in KEYS}) > 70


@pytest.mark.parametrize("around", ["{}", "see {} here", "a line\n{}\tand more", "x={},y", "ñ/{}"])
def test_a_vendors_key_is_not_passed_over(around: str) -> None:
    for key in KEYS:
        for is_ascii in (True, False):
            data = json.dumps({"note": around.format(key)}, ensure_ascii=is_ascii).encode()
            assert not looks_clean(data), key


def test_what_only_begins_like_a_key_looks_clean() -> None:
    for words in INNOCENT.split():
        assert looks_clean(json.dumps({words: f"{words} {words}"}).encode()), words
