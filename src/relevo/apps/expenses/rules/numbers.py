"""Numbers as people write them, in digits and in words; None wherever there is a doubt."""

from __future__ import annotations

import re
from decimal import Decimal

MOST = Decimal("999999999.99")

_GROUPED = re.compile(r"[1-9]\d{0,2}(?:([.,])\d{3})(?:\1\d{3})*", re.ASCII)
_WHOLE = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_PLAIN = re.compile(r"(0|[1-9]\d{0,8})[.,](\d{1,2})", re.ASCII)
_BOTH = re.compile(r"([1-9]\d{0,2}(?:([.,])\d{3})(?:\2\d{3})*)([.,])(\d{1,2})", re.ASCII)


def read_digits(written: str, grouping: str) -> Decimal | None:
    """What `1.234,56` is worth; None when it could be two numbers, or is none.

    `1.234` is a thousand only to those who group with a dot; to others it may be 1 and a bit.
    """
    if _WHOLE.fullmatch(written):
        return Decimal(written)
    if match := _BOTH.fullmatch(written):
        whole, group, point, cents = match.groups()
        return None if group == point else Decimal(f"{whole.replace(group, '')}.{cents}")
    if match := _PLAIN.fullmatch(written):
        return Decimal(f"{match[1]}.{match[2]}")
    if match := _GROUPED.fullmatch(written):
        group = match[1]
        is_sure = group == grouping or written.count(group) > 1
        return Decimal(written.replace(group, "")) if is_sure else None
    return None


def _table(words: str, values: list[int]) -> dict[str, int]:
    return dict(zip(words.split(), values, strict=True))


_ONES = {
    **_table(
        "cero un uno una dos tres cuatro cinco seis siete ocho nueve", [0, 1, 1, 1, *range(2, 10)]
    ),
    **_table(
        "diez once doce trece catorce quince dieciseis diecisiete dieciocho diecinueve "
        "veinte veintiuno veintiun veintidos veintitres veinticuatro veinticinco veintiseis "
        "veintisiete veintiocho veintinueve",
        [*range(10, 20), 20, 21, 21, *range(22, 30)],
    ),
    **_table(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
        "fifteen sixteen seventeen eighteen nineteen",
        list(range(20)),
    ),
}
_TENS = {
    **_table(
        "treinta cuarenta cincuenta sesenta setenta ochenta noventa", list(range(30, 100, 10))
    ),
    **_table("twenty thirty forty fifty sixty seventy eighty ninety", list(range(20, 100, 10))),
}
_HUNDREDS = {
    **_table(
        "cien ciento doscientos trescientos cuatrocientos quinientos seiscientos setecientos "
        "ochocientos novecientos",
        [100, 100, 200, 300, 400, 500, 600, 700, 800, 900],
    ),
    **_table(
        "doscientas trescientas cuatrocientas quinientas seiscientas setecientas ochocientas "
        "novecientas",
        list(range(200, 1000, 100)),
    ),
}
_THOUSANDS = {"mil": 1_000, "thousand": 1_000}
_MILLIONS = {"millon": 1_000_000, "millones": 1_000_000, "million": 1_000_000}
_LINKS = {"y", "and"}

NUMBER_WORDS = frozenset(_ONES | _TENS | _HUNDREDS | _THOUSANDS | _MILLIONS | {"hundred": 100})


def read_words(words: list[str]) -> int | None:
    """What `dos mil quinientos` is worth; None when the words do not add up to one number."""
    total, part, floor = 0, 0, 10**9  # `floor`: the size of the last word within this part
    scale, is_linked = 10**9, False
    for word in words:
        if word in _LINKS:
            if is_linked or not (part or total):
                return None
            is_linked = True
            continue
        if word in _THOUSANDS or word in _MILLIONS:
            size = (_THOUSANDS | _MILLIONS)[word]
            if is_linked or size >= scale or (part == 0 and size > 1_000):
                return None
            total, part, floor, scale = total + (part or 1) * size, 0, 10**9, size
            continue
        if word == "hundred":
            if is_linked or not 1 <= part <= 9:
                return None
            part, floor = part * 100, 100
            continue
        size, value = _sized(word)
        if size >= floor or value >= scale:
            return None
        # "cien" stands alone or before a thousand: "cien cincuenta" may be 100.50.
        part, floor, is_linked = part + value, 0 if word == "cien" else size, False
    return None if is_linked else total + part


def _sized(word: str) -> tuple[int, int]:
    if word in _HUNDREDS:
        return 100, _HUNDREDS[word]
    if word in _TENS:
        return 10, _TENS[word]
    value = _ONES[word]
    return (10 if value >= 10 else 1), value
