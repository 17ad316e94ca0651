"""What a word in a search may mean beyond itself: a state, or a sentence that relevo wrote down.

States and sentences are stored in English and said in the reader's language; what somebody read on
a page must lead there in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlencode

from relevo.dashboard.reasons import REASONS
from relevo.job import State
from relevo.store import DeliveryState, EffectState
from relevo.web.sentences import Sentences, folded
from relevo.web.translate import Words

SHORTEST = 3
MOST = 5
"""Sentences offered; a word that more of them have says little."""

_STORED = Sentences(REASONS)
_STATES: tuple[tuple[str, str, Iterable[str]], ...] = (
    ("Jobs", "/jobs", State),
    ("Effects", "/effects", EffectState),
    ("Deliveries", "/deliveries", DeliveryState),
)


class Meant(NamedTuple):
    """A way on: what it is called, and where it leads."""

    what: str  # in English, to be translated; empty for words that are looked for as they are
    said: str
    path: str


def meant(words: Words, text: str | None, path: str, name: str) -> list[Meant]:
    """The states called so, and the stored words, to be looked for as `name` at `path`."""
    if text is None or len(text) < SHORTEST:
        return []
    found = [
        Meant(what, words(str(state)), f"{place}?{urlencode({'state': state})}")
        for what, place, states in _STATES
        for state in states
        if _stem(text) in (_stem(str(state)), _stem(words(str(state))))
    ]
    stored = _STORED.stored(words, text)
    if len(stored) <= MOST:
        found += [Meant("", each, f"{path}?{urlencode({name: each})}") for each in stored]
    return found


def _stem(word: str) -> str:
    """The same for one and many, for he and she: muerto, muertas."""
    plain = folded(word).strip().removesuffix("s")
    return plain[:-1] if plain.endswith(("a", "o")) else plain
