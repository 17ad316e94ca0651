"""Where one expense ends and the next begins, in a message of several."""

from __future__ import annotations

import re

from relevo.apps.expenses.rules.amounts import chunks_of, find_amounts
from relevo.apps.expenses.rules.numbers import NUMBER_WORDS
from relevo.apps.expenses.rules.regions import Region

_BETWEEN = re.compile(
    # One space behind: where a day stood, there are only spaces now, and they belong to its part.
    r"\s*\n(?:[-*•·]\s)?|\s*;|,\s(?:\s*(?:y|e|and)\s)?|,(?=[^\d\s])|\s+\+\s"
    r"|\s+(?:y|e|and|mas|plus|tambien|also|luego|then)\s"
)
_NUMBER = re.compile(rf"[$€£]?\d.*|{'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))}")
_FIRST = re.compile(
    r"\W*(?:(?:hoy|gaste|gastamos|pague|pagamos|compre|compramos|fueron|puse|he|gastado|pagado|"
    r"spent|paid|bought|i|we|log|add|anota|anotame|agrega)\b\W*)*(?:[$€£]\s*)?\d"
)
_MORE = re.compile(
    r"\b(?:total|todo|in all|altogether|vuelto|sobr(?:o|aron|an)|qued(?:o|aron|a|an|aba)|tenia|"
    r"habia|eramos|somos|costaba|salia|valia|antes|ahora|en vez|en lugar|de los cuales|incluye|"
    r"incluid[oa]s?|descuento|rebaja|oferta|pague con|pagando con|devolv\w*|dieron|mesa|ticket nro|"
    r"faltan?|falto|resto|"
    r"change|left|was|were|now|instead|of which|includes?|including|included|discount|off|"
    r"on sale|(?:peugeot|renault|fiat|mazda|bmw|iphone|galaxy|windows|xbox|playstation) \d+|"
    r"refund|balance|remaining|started|table|used to)\b"
)
"""Words that make a second number something else than a second expense."""


def tells_more(folded: str) -> bool:
    """Whether a text of several numbers tells more than what was spent on what."""
    return _MORE.search(folded) is not None


def split(folded: str, region: Region) -> list[tuple[int, int]]:
    """The parts of a text with one price in each; a single part when it does not fall apart so."""
    cuts = [match for match in _BETWEEN.finditer(folded) if not _is_within(folded, match)]
    starts = [0, *(match.end() for match in cuts)]
    ends = [*(match.start() for match in cuts), len(folded)]
    pieces = [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]
    priced = [_has_number(folded[start:end], region) for start, end in pieces]
    if sum(priced) < 2:
        return [(0, len(folded))]
    # "pan y leche 500, queso 300" prices what came before; "500 de pan y leche, 300 de queso" what
    # comes behind.
    first = priced.index(True)
    is_behind = _FIRST.match(folded[pieces[first][0] : pieces[first][1]]) is not None
    parts: list[tuple[int, int]] = []
    waiting: int | None = None
    for (start, end), has_price in zip(pieces, priced, strict=True):
        if has_price:
            parts.append((start if waiting is None else waiting, end))
            waiting = None
        elif is_behind and parts:
            parts[-1] = (parts[-1][0], end)
        elif waiting is None:
            waiting = start
    if waiting is not None:
        parts[-1] = (parts[-1][0], pieces[-1][1])
    return parts


def _has_number(piece: str, region: Region) -> bool:
    """Whether there is a price in a piece, or a number that may be one."""
    amounts = find_amounts(piece, region)
    if amounts.problem and not amounts.found:
        return True
    return any(not each.is_count for each in amounts.found)


def _is_within(folded: str, cut: re.Match[str]) -> bool:
    """Whether a cut would go through a number: "treinta y cinco", "45 y 12", "1, 500"."""
    before = chunks_of(folded[: cut.start()])
    behind = chunks_of(folded[cut.end() :])
    if not before or not behind or "\n" in cut[0] or ";" in cut[0]:
        return False
    is_number = _NUMBER.fullmatch(before[-1].text) and _NUMBER.fullmatch(behind[0].text)
    # "pan 500, 2 cafes 900" and "$20, $15 lunch": a comma with a space is in no number.
    return bool(is_number) and "," not in cut[0]
