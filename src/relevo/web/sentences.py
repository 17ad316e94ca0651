"""Sentences of ours that reach a page filled in, said again in the reader's language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from relevo.web.translate import Words

QUOTED: Final = frozenset({"error", "failure", "how", "note", "times", "what", "whom", "why"})
"""What a sentence may quote, and that may be one of ours too."""
NAMED: Final = frozenset({"state", "role", "needed", "field"})
"""What has a word of its own; the rest are names, which nobody translates."""
DEPTH: Final = 4
"""So many sentences one inside the other; strangers may have written what is quoted."""

_HOLE: Final = re.compile(r"\{(\w+)\}")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)
_PLACE: Final = re.compile(r"[A-Za-z_][\w.\[\]…]*")


class _Shape(NamedTuple):
    phrase: str
    parts: tuple[str, ...]  # what stands between the holes
    pattern: re.Pattern[str]


class Sentences:
    """Ways of saying something, known by their shape: `no queue is called {name}`."""

    def __init__(self, *phrases: Iterable[str]) -> None:
        self._phrases = dict.fromkeys(phrase for some in phrases for phrase in some)

    @cached_property
    def _shapes(self) -> list[_Shape]:
        # Those that leave least to fill in come first: the others fit almost anything.
        return [_shape(each) for each in sorted(self._phrases, key=_told, reverse=True)]

    def retold(self, words: Words, text: str, depth: int = DEPTH) -> str:
        """A sentence of ours in the reader's language, as far as it is one that is known.

        What it quotes may be another: an error after its type, a second reason after a semicolon.
        """
        if words.language == "en" or not depth:
            return text
        for phrase, parts, pattern in self._shapes:
            if all(part in text for part in parts) and (found := pattern.fullmatch(text)):
                return words(phrase, **self.quoted(words, found.groupdict(), depth - 1))
        place, colon, said = text.partition(": ")
        if colon and _PLACE.fullmatch(place):
            return f"{place}: {self.retold(words, said, depth - 1)}"
        first, semicolon, more = text.partition("; ")
        if semicolon and (known := self.retold(words, first, depth - 1)) != first:
            return f"{known}; {self.retold(words, more, depth - 1)}"
        return text

    def stored(self, words: Words, text: str) -> list[str]:
        """What to look for in English, where these words of the reader's language are ours.

        A whole sentence gives the very one that is stored; a part of one, what is most its own.
        """
        if words.language == "en":
            return []
        wanted, found = folded(text), dict[str, None]()
        for phrase, parts, _ in self._shapes:
            said = _shape(words(phrase))
            is_near = all(part in text for part in said.parts)
            if is_near and (whole := said.pattern.fullmatch(text)):
                return [phrase.format(**whole.groupdict())]
            if parts and any(wanted in folded(part) for part in said.parts):
                found[max(parts, key=len).strip()] = None
        return list(found)

    def quoted(self, words: Words, values: Mapping[str, Any], depth: int = DEPTH) -> dict[str, Any]:
        """What a sentence is filled in with, in the reader's language."""
        return {name: self._filled(words, name, value, depth) for name, value in values.items()}

    def _filled(self, words: Words, name: str, value: Any, depth: int) -> Any:
        if name in QUOTED:
            return self.retold(words, value, depth)
        if name in NAMED:
            return words(str(value))
        if isinstance(value, str) and _THOUSANDS.fullmatch(value):
            return words.number(int(value.replace(",", "")))
        return value


def folded(text: str) -> str:
    """Without accents or capitals, which nobody types into a search."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


def _told(phrase: str) -> int:
    return len(_HOLE.sub("", phrase))


def _shape(phrase: str) -> _Shape:
    parts = tuple(part for part in _HOLE.split(phrase)[::2] if part)
    known = set[str]()

    def group(hole: re.Match[str]) -> str:
        name = hole[1]
        if name in known:
            return f"(?P={name})"
        known.add(name)
        return f"(?P<{name}>.+)"

    pattern = re.sub(r"\\{(\w+)\\}", group, re.escape(phrase))
    return _Shape(phrase, parts, re.compile(pattern, re.DOTALL))
