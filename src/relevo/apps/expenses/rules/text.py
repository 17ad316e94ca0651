"""A message's text made comparable: one form for each letter, every letter in its place."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufe0e\ufe0f\ufeff]")
_TURNED = re.compile("[\u202a-\u202e\u2066-\u2069]")


def is_readable(text: str) -> bool:
    """Whether its digits mean what a person sees.

    Not so: writing turned around, digits of other scripts, raised and boxed ones, fractions, which
    a normal form would quietly turn into others.
    """
    if _TURNED.search(text) or "\u20e3" in text:
        return False
    return not any(unicodedata.category(each) in ("No", "Nl") for each in text) and not any(
        each.isdigit() and not each.isascii() for each in unicodedata.normalize("NFKC", text)
    )


def normal(text: str) -> str:
    """The text in its plainest form, without what nobody sees."""
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).strip()


def fold(text: str) -> str:
    """Lower case and without accents, character by character, so that places stay the same."""
    return "".join(_folded(each) for each in text)


def _folded(each: str) -> str:
    if each.isascii():
        return each.lower()
    bare = unicodedata.normalize("NFD", each)[0].lower()
    return bare if len(bare) == 1 else each


def words(text: str) -> frozenset[str]:
    """The words of a list that is written as one text."""
    return frozenset(text.split())
