"""What a person may ask for besides writing down an expense."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Literal, TypeAlias

from relevo.apps.expenses.rules.categories import category_named
from relevo.apps.expenses.rules.dates import month_named

Wish: TypeAlias = Literal["total", "undo", "export", "page", "help"]
ALL = "*"
"""The target of an order that means every expense of the message before."""


@dataclass(frozen=True, slots=True)
class Order:
    """A wish, for the days from `since` until before `until`."""

    wish: Wish
    since: date
    until: date
    period: str = "month"  # month, day, week, year
    category: str = ""  # empty: all of them
    file: str = ""  # csv or xlsx, where the order names one
    target: str = ""  # which expense: its number in our reply, its name, ALL; empty: the last


_UNDO = re.compile(
    r"(?:borra|borrar|elimina|eliminar|deshacer|deshace|cancela|cancelar|quita|quitar|anular|anula)"
    r"(?: (?:el|lo|mi|eso|ese|este|esto))?(?: gasto)?(?: ultimo)?(?: gasto)?"
    r"|(?:borr|elimin)[ae]l[oa]|(?:delete|remove|undo) (?:it|that|this)"
    r"|(?:delete|remove|undo|cancel)(?: (?:the|my))?(?: last)?(?: (?:one|expense|entry))?"
)
_UNDO_ONE = re.compile(
    r"(?:borra|borrar|borrame|elimina|eliminar|quita|quitar|delete|remove)"
    r"(?: (?:el|la|los|las|the|my|mi))?(?: (?:gasto|expense))?(?: (?:de|del|number|numero|of|for))?"
    r"(?: (?:el|la|los|las|the))? (?P<target>[1-9]|[a-z][a-z ]{1,60})"
)
_EVERYTHING = re.compile(r"todos?|todas?|all|everything|all of (?:it|them)|both|ambos|los dos")
_PAGE = re.compile(
    r"(?:(?:ver|mostrar|mostrame|show|see|open|abrir) )?(?:(?:mis|los|my|la|el|mi|the) )?"
    r"(?:gastos|expenses|pagina|pagina web|web|web page|page|link|enlace|dashboard|panel|lista|"
    r"list)"
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
    r"(?:(?:el |mi |my |the )?(?:total|resumen|reporte|informe|summary|balance|report)\b.*"
    r"|(?:cuanto|quanto) (?:gaste|llevo|vengo|va|gastamos|he gastado|hemos gastado)\b.*"
    r"|how much (?:did i|have i|was)\b.*|what did i spend\b.*|what have i spent\b.*"
    r"|(?:(?:mis|los|my) )?(?:gastos|expenses|spending) "
    r"(?:de |del |de la |of |in |on |for |por |en )?"
    r"(?:hoy|ayer|la |el |esta |este |this |last |today|yesterday|semana|mes|week|month|ano|year"
    r"|categoria|category|by ).*"
    r"|(?:esta |this |la )?(?:semana|week)|(?:este |this |el )?(?:mes|month)"
    r"|(?:semana|mes) pasad[oa]|last (?:week|month)|(?:weekly|monthly) (?:report|summary|total)"
    r"|por categorias?|by category)"
)
_HELP = re.compile(
    r"(?:ayuda|help|hola|hello|hi|hey|buenas|buen dia|buenos dias|buenas tardes|buenas noches|menu|"
    r"start|empezar|comandos|commands|que podes hacer|que puedes hacer|gracias|thanks|thank you)"
)
_TODAY = re.compile(r"\b(?:hoy|today|del dia)\b")
_YESTERDAY = re.compile(r"\b(?:ayer|yesterday)\b")
_WEEK = re.compile(r"\b(?:semana|week|semanal|weekly)\b")
_LAST_WEEK = re.compile(r"\bsemana pasada\b|\blast week\b")
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
    if (one := _UNDO_ONE.fullmatch(plain)) is not None:
        target = ALL if _EVERYTHING.fullmatch(one["target"]) else one["target"]
        return Order("undo", today, today, target=target)
    if _PAGE.fullmatch(plain):
        return _period("page", plain, today)
    digits = re.sub(r"\b20\d\d\b", "", plain)
    if re.search(r"\d", digits):
        return None  # "total 500 super" is an expense, or a question
    for wish, pattern in (("export", _EXPORT), ("total", _TOTAL)):
        if pattern.fullmatch(plain):
            found = _period("export" if wish == "export" else "total", plain, today)
            file = "csv" if "csv" in plain else "xlsx" if "excel" in plain else ""
            return replace(found, category=_category(plain), file=file)
    return None


def _category(plain: str) -> str:
    """The category that a report is asked of: "cuanto gaste en salud", "health this month"."""
    told = re.sub(r"\b(?:por categorias?|by category)\b", " ", plain)
    return category_named(told) or ""


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
    if _LAST_WEEK.search(plain):
        monday = today - timedelta(days=today.weekday() + 7)
        return Order(wish, monday, monday + timedelta(days=7), "week")
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
