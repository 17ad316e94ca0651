"""The day that a message speaks of, and the places in the text that say so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta

from relevo.apps.expenses.rules.regions import Region

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "enero ene january jan",
            "febrero feb february",
            "marzo mar march",
            "abril abr april apr",
            "mayo may",
            "junio jun june",
            "julio jul july",
            "agosto ago august aug",
            "septiembre setiembre sep sept set september",
            "octubre oct october",
            "noviembre nov november",
            "diciembre dic december dec",
        ),
        1,
    )
    for name in names.split()
}
_DAYS = {
    name: number
    for number, names in enumerate(
        (
            "lunes monday",
            "martes tuesday",
            "miercoles wednesday",
            "jueves thursday",
            "viernes friday",
            "sabado saturday",
            "domingo sunday",
        )
    )
    for name in names.split()
}
_COUNTS = {
    word: number
    for number, words in enumerate(
        ("un una a one", "dos two", "tres three", "cuatro four", "cinco five", "seis six"), 1
    )
    for word in words.split()
}
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_WHOLE = r"(?<![\d.,:/$-])"  # not the tail of another number: "12,5 march", "1.5 hs"
_COUNT = rf"\d+|{'|'.join(sorted(_COUNTS, key=len, reverse=True))}"
_UNIT = r"(?P<unit>dias?|semanas?|mes(?:es)?|anos?)"
_UNIT_EN = r"(?P<unit2>days?|weeks?|months?|years?)"

_AGO = re.compile(rf"\b(?:hace (?P<a>{_COUNT}) {_UNIT}|{_WHOLE}(?P<b>{_COUNT}) {_UNIT_EN} ago)\b")
_NEAR = (
    (re.compile(r"\b(?:trasanteayer|trasantier)\b"), 3),
    (
        re.compile(
            r"\b(?:anteayer|antes de ayer|antier|the day before yesterday|anteanoche|antenoche"
            r"|antes de anoche)\b"
        ),
        2,
    ),
    (
        re.compile(
            r"\b(?:ayer|yesterday)"
            r"(?: a la (?:manana|tarde|noche)| (?:morning|afternoon|evening))?\b"
        ),
        1,
    ),
    (re.compile(r"\b(?:anoche|last night)\b"), 1),
    (
        re.compile(
            r"\b(?:(?:hoy|today)(?: a la (?:manana|tarde|noche))?|esta (?:manana|tarde|noche)"
            r"|this (?:morning|afternoon)|tonight|recien|just now)\b"
        ),
        0,
    ),
)
_DAY = "|".join(_DAYS)
_SOON = rf"(?:semana|mes|ano|finde|{_DAY})"
_FUTURE = re.compile(
    rf"\b(?:pasado manana|manana|tomorrow|{_SOON} que viene|proxim[oa] {_SOON}|{_SOON} proxim[oa]"
    rf"|next (?:week|weekend|month|year|{_DAY}))\b"
)
_VAGUE = re.compile(
    r"\bhace (?:\S+ ){1,3}?(?:dias?|semanas?|mes(?:es)?|anos?)\b"
    r"|\b(?:days?|weeks?|months?|years?) ago\b"
    r"|\b(?:semana|mes|ano) pasad[oa]\b|\blast (?:week|month|year)\b"
    r"|\b(?:finde|fin de semana|weekend)\b"
    rf"|\bel otro (?:dia|{_DAY})\b|\bthe other (?:day|{_DAY})\b"
)
_MORNING = re.compile(r"\b(?:a|por|en|de) la manana\b")
_WEEKDAY = re.compile(rf"\b(?:(?:el|este|last|on|this) )?(?P<day>{_DAY})(?: pasado| que paso)?\b")
_ISO = re.compile(r"(?<![\d.,/-])(?P<y>20\d\d)-(?P<m>\d\d)-(?P<d>\d\d)(?![\d/-])")
_SLASHED = re.compile(
    r"(?<![\d.,/$-])(?P<a>\d{1,2})/(?P<b>\d{1,2})(?:/(?P<y>20\d\d|\d\d))?(?![\d/]|[.,]\d)"
    r"(?!\s*(?:kg|kilo|kilos|docena|litro|litros|lt|l|doc|dozen|lb|pizza|pollo|"
    rf"de (?!{_MONTH}|\d)[a-z]+|helado|queso|jamon|cafe|sandia)\b)"
)
_DASHED = re.compile(
    r"(?<![\d.,/$-])(?P<a>\d{1,2})(?P<s>[-.])(?P<b>\d{1,2})(?P=s)(?P<y>20\d\d)(?!\d)"
)
_NAMED = re.compile(
    rf"\b(?:el |on |the )?{_WHOLE}(?P<d>\d{{1,2}})(?:st|nd|rd|th|ro)?(?: de| of)? (?P<m>{_MONTH})"
    r"(?:(?: de| del|,)? (?P<y>20\d\d))?\b(?![.,:]\d|/)"
)
_NAMED_EN = re.compile(
    rf"\b(?:on )?(?P<m>{_MONTH}) (?P<d>\d{{1,2}})(?P<th>st|nd|rd|th)?"
    r"(?:,? (?P<y>20\d\d))?\b(?![.,:]\d|/)"
)
_OF_MONTH = re.compile(
    r"\b(?:el|el dia|(?<!del )dia) (?P<d>\d{1,2})\b"
    r"(?![.,:/'’]\d|\s*(?:mil|k|pesos?|usd|dolares|euros|\$|lucas|hs?)\b|%)"
)
_CLOCK = re.compile(
    rf"\b(?:(?:a las|tipo|las|at) )?{_WHOLE}(?:[01]?\d|2[0-3]):[0-5]\d(?: ?(?:hs?|hrs|am|pm))?\b"
    rf"|\b(?:(?:a las|tipo|at) )?{_WHOLE}(?:[01]?\d|2[0-3]) ?(?:hs|hrs|am|pm)\b"
    r"|\ba las (?:[01]?\d|2[0-3])\b(?![.,:]\d)"
)
_MONTH_YEAR = re.compile(rf"\b(?:{_MONTH})(?: de| del)? 20\d\d\b(?![.,]\d)")


@dataclass(frozen=True, slots=True)
class Day:
    """A day, where the text says so, and whether that makes sense."""

    on: date
    spans: tuple[tuple[int, int], ...] = ()
    is_told: bool = False
    problem: str = ""  # "future", "days": two of them, or one that no calendar has


def find_day(folded: str, today: date, region: Region) -> Day:
    """The day of a text; today when it names none."""
    free = list(folded)
    days: list[date] = []
    spans: list[tuple[int, int]] = []
    problem = ""

    def take(match: re.Match[str], day: date | None) -> None:
        nonlocal problem
        spans.append(match.span())
        free[match.start() : match.end()] = " " * (match.end() - match.start())
        if day is None:
            problem = problem or "days"
        elif day > today:
            problem = "future"
        else:
            days.append(day)

    def rest() -> str:
        return "".join(free)

    for match in _AGO.finditer(rest()):
        take(match, _ago(match, today))
    for pattern in (_ISO, _DASHED, _SLASHED, _NAMED, _NAMED_EN):
        for match in pattern.finditer(rest()):
            if (day := _calendar(match, today, region)) is not None:
                take(match, None if _is_either(match, region) else day)
    for match in _MONTH_YEAR.finditer(rest()):  # "alquiler mayo 2026" names no day, and no amount
        take(match, today)
        days.pop()
    for pattern, back in _NEAR:
        for match in pattern.finditer(rest()):
            take(match, today - timedelta(days=back))
    for match in _MORNING.finditer(rest()):
        take(match, today)
        days.pop()
    for match in _FUTURE.finditer(rest()):
        take(match, today + timedelta(days=1))
    for match in _CLOCK.finditer(rest()):
        take(match, today)
        days.pop()
    for match in _VAGUE.finditer(rest()):
        take(match, None)
    for match in _WEEKDAY.finditer(rest()):
        back = (today.weekday() - _DAYS[match["day"]] - 1) % 7 + 1
        take(match, today - timedelta(days=back))
    for match in _OF_MONTH.finditer(rest()):
        if (day := _in_month(int(match["d"]), today)) is not None:
            take(match, day)
    if len(set(days)) > 1:
        problem = problem or "days"
    return Day(days[0] if days else today, tuple(sorted(spans)), bool(days), problem)


def _ago(match: re.Match[str], today: date) -> date | None:
    """So many days ago; None where a month or a year ago may be any day, or it is too long ago."""
    word = match["a"] or match["b"]
    unit = match["unit"] or match["unit2"]
    count = _COUNTS.get(word) or int(word)
    days = count * (7 if unit.startswith(("s", "w")) else 1)
    is_sure = unit.startswith(("d", "s", "w")) and days <= 400
    return today - timedelta(days=days) if is_sure else None


def _calendar(match: re.Match[str], today: date, region: Region) -> date | None:
    found = match.groupdict()
    year = int(found["y"]) if found.get("y") else None
    if year is not None and year < 100:
        year += 2000
    if "m" in found:
        name = found["m"]
        day = int(found["d"])
        month = int(name) if name.isdigit() else _MONTHS[name]
    else:
        first, second = int(found["a"]), int(found["b"])
        day, month = (second, first) if region.month_first else (first, second)
        if month > 12:
            day, month = month, day
    return _date(year, month, day, today)


def _is_either(match: re.Match[str], region: Region) -> bool:
    """Whether it is two days, by who reads it: 3/4, where both orders are in use."""
    found = match.groupdict()
    if region.month_first is not None or "a" not in found:
        return False
    first, second = int(found["a"]), int(found["b"])
    return max(first, second) <= 12 and first != second


def _date(year: int | None, month: int, day: int, today: date) -> date | None:
    """The day meant; without a year, the last one that has passed."""
    for each in (year,) if year is not None else (today.year, today.year - 1):
        try:
            found = date(each, month, day)
        except ValueError:
            continue
        if year is not None or found <= today:
            return found
    return None


def _in_month(day: int, today: date) -> date | None:
    """`el 12`: the last twelfth."""
    if not 1 <= day <= 31:
        return None
    month = today.replace(day=1)
    for _ in range(3):
        try:
            found = month.replace(day=day)
        except ValueError:
            found = None
        if found is not None and found <= today:
            return found
        month = (month - timedelta(days=1)).replace(day=1)
    return None


def month_named(folded: str, today: date) -> date | None:
    """The first day of the month that a text names, such as `total de mayo`; None if none."""
    if re.search(r"\bmes pasado\b|\blast month\b", folded):
        return (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    match = re.search(rf"\b({_MONTH})(?: (?:de |del )?(20\d\d))?\b", folded)
    if match is None:
        return None
    month = _MONTHS[match[1]]
    year = int(match[2]) if match[2] else today.year - (month > today.month)
    return date(year, month, 1)
