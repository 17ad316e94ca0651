"""Corrections of what was written down: "no, eran 600", "corregir último a 700"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from relevo.apps.expenses.rules.amounts import find_amounts
from relevo.apps.expenses.rules.categories import OTHER, category_named, category_of
from relevo.apps.expenses.rules.dates import find_day
from relevo.apps.expenses.rules.money import AFTER, DOLLAR, PESO, money_of
from relevo.apps.expenses.rules.regions import Region


@dataclass(frozen=True, slots=True)
class Change:
    """What is different about an expense; None and "" leave that part as it is."""

    amount: Decimal | None = None
    currency: str = ""
    category: str = ""
    on: date | None = None
    target: str = ""  # which one: its number in our reply, or its name; empty: the last
    names_last: bool = False  # "corregir el último": said so, and not only meant


_LEAD = re.compile(
    r"(?:(?:no|nop|uy|ups|perdon|perdona|disculpa|sorry|oops|ops|wait|espera|me equivoque|"
    r"me confundi|en realidad|actually|correccion|correction|i meant|quise decir|error|my bad|"
    r"quiero decir|digo)\b[\s,.:;!…-]*)+"
)
_FIX = re.compile(
    r"(?:corregi(?:r|lo|la)?|corrige(?:lo|la)?|cambia(?:r|lo|la|le)?|modifica(?:r|lo|la)?|"
    r"edita(?:r|lo|la)?|arregla(?:r|lo|la)?|actualiza(?:r|lo)?|pone(?:lo|la|le|r|rlo)|ponlo|ponla|"
    r"fix|correct|change|edit|update|make|set|put|move|mover|move(?:lo|la))\b\s*"
)
_WAS_ONCE = re.compile(r"(?:eran?|it was|should be|should have been|tenia que ser)\b\s*")
_WAS = re.compile(
    r"(?:fue(?:ron)?|es|son|seria|it's|its|it is|was|were|that was|they were|debe ser|deberia ser)"
    r"\b\s*"
)
_LAST = re.compile(
    r"(?:(?:el|la|lo|mi|the|my|de|del|of)\s+)*(?P<last>ultim[oa]|last|previous|anterior)?\s*"
    r"(?:(?:gasto|expense|one|entry|it|that)\b\s*)?"
)
_FIELD = re.compile(
    r"(?:(?:el|la|the|its)\s+)?(?P<field>monto|importe|precio|valor|amount|price|categoria|category|"
    r"rubro|moneda|currency|fecha|date|dia|day)\b\s*"
)
_TO = re.compile(r"(?:a|por|to|in|en|como|as|de|con|is|was|es|era|[:=>→-]+)(?=\s|$|[\d$€£])\s*")
_NAMED = re.compile(
    r"(?P<target>[1-9]|[a-z][a-z ]{1,40}?)\s*(?:\ba\b|\bpor\b|\bto\b|\beran?\b|\bfue(?:ron)?\b|"
    r"\bwas\b|\bwere\b|:|→|=)\s*(?P<value>.+)"
)


def find_change(folded: str, today: date, region: Region) -> Change | None:
    """The correction that a text is, and nothing besides."""
    text = " ".join(folded.split()).strip(" .!")
    if len(text) > 100 or "?" in text:
        return None
    rest, is_led = _taken(_LEAD, text)
    rest, is_fix = _taken(_FIX, rest)
    last = _LAST.match(rest) if is_fix else None
    if last is not None:
        rest = rest[last.end() :]
    names_last = last is not None and last["last"] is not None
    field = _FIELD.match(rest)
    if field is not None:
        rest = rest[field.end() :]
        again = _LAST.match(rest)  # "la categoria del ultimo a salud"
        if again is not None and again["last"]:
            rest, names_last = rest[again.end() :], True
    rest, is_once = _taken(_WAS_ONCE, rest)
    was = "" if is_once else rest
    rest, is_was = _taken(_WAS, rest)
    named = field["field"] if field is not None else ""
    if not (is_led or is_fix or is_once or is_was or named):
        return None
    before = rest
    while (to := _TO.match(rest)) is not None:
        rest = rest[to.end() :]
    has_to = rest != before or text.startswith("make it ")
    found = _value(rest, named, today, region)
    if found is not None and _is_meant(found, named, is_led, is_fix and has_to, is_once, is_was):
        return Change(*found, names_last=names_last)
    if not (is_led or is_fix) or (split := _NAMED.fullmatch(was or before)) is None:
        return None
    target = re.sub(r"^(?:el|la|los|las|the|de|del)\s+", "", split["target"])
    said = split["value"]
    while (to := _TO.match(said)) is not None:
        said = said[to.end() :]
    found = _value(said, "", today, region)
    return None if found is None else Change(*found, target=target)


_Value = tuple[Decimal | None, str, str, date | None]


def _is_meant(
    found: _Value, named: str, is_led: bool, is_fix: bool, is_once: bool, is_was: bool
) -> bool:
    """Whether a value alone is a correction: "fueron 600" may be an expense, "fue ayer" is none."""
    amount = found[0]
    if named or is_led or is_fix or is_once:
        return True
    return is_was and amount is None


def _taken(pattern: re.Pattern[str], text: str) -> tuple[str, bool]:
    match = pattern.match(text)
    return (text, False) if match is None else (text[match.end() :], True)


def _value(text: str, named: str, today: date, region: Region) -> _Value | None:
    """The amount, currency, category or day that a text is, whole."""
    text = text.strip(" .,!")
    if not text:
        return None
    if named in ("categoria", "category", "rubro"):
        known = category_named(text) or category_of(text)
        is_named = known != OTHER or category_named(text) == OTHER
        return (None, "", known, None) if is_named else None
    if (mark := AFTER.get(text)) is not None:
        currency = money_of(mark, region.currency) if mark in (PESO, DOLLAR) else mark
        return (None, currency, "", None) if currency else None
    if (category := category_named(text)) is not None and re.fullmatch(r"[a-z ]+", text):
        if len(text.split()) <= 3:
            return None, "", category, None
        return None
    day = find_day(text, today, region)
    left = list(text)
    for start, end in day.spans:
        left[start:end] = " " * (end - start)
    amounts = find_amounts("".join(left), region)
    if day.problem or amounts.problem or len(amounts.found) > 1:
        return None
    for amount in amounts.found:
        for start, end in amount.spans:
            left[start:end] = " " * (end - start)
    if re.search(r"\w", "".join(left)):
        return None
    on = day.on if day.is_told else None
    if not amounts.found:
        return None if on is None else (None, "", "", on)
    [amount] = amounts.found
    currency = "" if amount.mark is None else money_of(amount.mark, region.currency)
    if amount.mark is not None and (not currency or amount.mark == PESO):
        currency = ""  # "eran $600": of the money that it was
    return amount.value, currency, "", on
