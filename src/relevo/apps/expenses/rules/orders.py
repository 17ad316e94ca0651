"""What a person may ask for besides writing down an expense."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal, TypeAlias

from relevo.apps.expenses.rules.dates import month_named

Wish: TypeAlias = Literal["total", "undo", "export", "help"]


@dataclass(frozen=True, slots=True)
class Order:
    """A wish, for the days from `since` until before `until`."""

    wish: Wish
    since: date
    until: date
    period: str = "month"  # month, day, week, year


_UNDO = re.compile(
    r"(?:borra|borrar|elimina|eliminar|deshacer|deshace|cancela|cancelar|quita|quitar|anular|anula)"
    r"(?: (?:el|lo|mi))?(?: gasto)?(?: ultimo)?(?: gasto)?"
    r"|(?:delete|remove|undo|cancel)(?: (?:the|my))?(?: last)?(?: (?:one|expense|entry))?"
)
_UNDOING = re.compile(  # "goma de borrar 500" is a rubber
    r"(?<!de )\b(?:(?:borra|elimina|anula|cancela|quita|deshace)(?:r|me|lo|la)?|deshaz|"
    r"delete|remove|erase|undo|cancel)\b"
)
_EXPORT = re.compile(
    r"(?:exporta|exportar|export|descargar|descarga|download|excel|csv|planilla|spreadsheet|"
    r"resumen en excel|mandame el excel)\b.*"
)
_TOTAL = re.compile(
    r"(?:(?:el |mi |my |the )?(?:total|resumen|summary|balance)\b.*"
    r"|(?:cuanto|quanto) (?:gaste|llevo|vengo|va|gastamos)\b.*"
    r"|how much (?:did i|have i|was)\b.*|what did i spend\b.*)"
)
_HELP = re.compile(
    r"(?:ayuda|help|hola|hello|hi|hey|buenas|buen dia|buenos dias|buenas tardes|buenas noches|menu|"
    r"start|empezar|comandos|commands|que podes hacer|que puedes hacer|gracias|thanks|thank you)"
)
_TODAY = re.compile(r"\b(?:hoy|today|del dia)\b")
_YESTERDAY = re.compile(r"\b(?:ayer|yesterday)\b")
_WEEK = re.compile(r"\b(?:semana|week)\b")
_YEAR = re.compile(r"\b(?:ano|anio|year)\b")


def find_order(folded: str, today: date) -> Order | None:
    """The order of a text that is nothing but an order."""
    plain = re.sub(r"[^a-z0-9 ]+", " ", folded)
    plain = re.sub(r" +", " ", plain).strip()
    plain = re.sub(r"^(?:por favor|please) | (?:por favor|please)$", "", plain)
    if not plain or len(plain) > 80:
        return None
    if _HELP.fullmatch(plain):
        return Order("help", today, today)
    if _UNDO.fullmatch(plain):
        return Order("undo", today, today)
    digits = re.sub(r"\b20\d\d\b", "", plain)
    if re.search(r"\d", digits):
        return None  # "total 500 super" is an expense, or a question
    for wish, pattern in (("export", _EXPORT), ("total", _TOTAL)):
        if pattern.fullmatch(plain):
            return _period("export" if wish == "export" else "total", plain, today)
    return None


def asks_to_undo(folded: str) -> bool:
    """Whether it speaks of deleting: whatever number stands there was not spent now."""
    return _UNDOING.search(folded) is not None


def _period(wish: Wish, plain: str, today: date) -> Order:
    if (named := month_named(plain, today)) is not None:
        return Order(wish, named, after(named))
    if _TODAY.search(plain):
        return Order(wish, today, today + timedelta(days=1), "day")
    if _YESTERDAY.search(plain):
        return Order(wish, today - timedelta(days=1), today, "day")
    if _WEEK.search(plain):
        monday = today - timedelta(days=today.weekday())
        return Order(wish, monday, monday + timedelta(days=7), "week")
    if _YEAR.search(plain):
        return Order(wish, date(today.year, 1, 1), date(today.year + 1, 1, 1), "year")
    first = today.replace(day=1)
    return Order(wish, first, after(first))


FIRST_YEAR, LAST_YEAR = 2000, 2100


def month_of(text: str) -> date | None:
    """The first day of a month written as 2026-03; None if it is none that we keep."""
    match = re.fullmatch(r"(\d{4})-(0?[1-9]|1[0-2])", text, re.ASCII)
    if match is None or not FIRST_YEAR <= int(match[1]) <= LAST_YEAR:
        return None
    return date(int(match[1]), int(match[2]), 1)


def before(month: date) -> date:
    """The first day of the month before that of a day."""
    return (month.replace(day=1) - timedelta(days=1)).replace(day=1)


def after(month: date) -> date:
    """The first day of the month after that of a day."""
    return (month.replace(day=1) + timedelta(days=32)).replace(day=1)
