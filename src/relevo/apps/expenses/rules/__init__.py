"""Reading expenses by rules: Spanish and English, the right amount or a question, never a guess.

read("uber 12.50 usd ayer", today, region)   →  Spent(12.50, "USD", "transport", …)
read("pan 12,5,5", today, region)            →  Question("number")
read("total del mes", today, region)         →  Order("total", …)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal, TypeAlias

from relevo.apps.expenses.rules.amounts import Amount, find_amounts
from relevo.apps.expenses.rules.categories import CATEGORIES, OTHER, category_of
from relevo.apps.expenses.rules.changes import Change, find_change
from relevo.apps.expenses.rules.dates import Day, find_day
from relevo.apps.expenses.rules.money import money_of
from relevo.apps.expenses.rules.orders import (
    ALL,
    FIRST_YEAR,
    Order,
    after,
    asks_to_undo,
    before,
    find_order,
    month_of,
)
from relevo.apps.expenses.rules.regions import HOME, REGIONS, SOMEWHERE, Region, region_of
from relevo.apps.expenses.rules.several import split, tells_more
from relevo.apps.expenses.rules.text import fold, is_readable, normal, words

__all__ = [
    "ALL",
    "CATEGORIES",
    "FIRST_YEAR",
    "HOME",
    "LONGEST",
    "OTHER",
    "REGIONS",
    "SOMEWHERE",
    "Change",
    "Order",
    "Question",
    "Reading",
    "Region",
    "Several",
    "Spent",
    "after",
    "before",
    "language_of",
    "month_of",
    "read",
    "region_of",
]

_SMALL = Decimal(100)
LONGEST = 300
"""Characters; whoever writes more tells a story, and not an expense."""

Why: TypeAlias = Literal[
    "amount",  # there is none
    "number",  # it can be read in two ways, or in none
    "size",  # zero, or beyond all measure
    "several",  # which of them
    "spread",  # each, per month, in instalments, a share
    "currency",
    "income",
    "not",  # did not, will, would
    "undo",  # but which one
    "days",
    "future",
    "long",
]


@dataclass(frozen=True, slots=True)
class Spent:
    """An expense that was read for certain."""

    amount: Decimal
    currency: str
    category: str
    description: str
    on: date


@dataclass(frozen=True, slots=True)
class Question:
    """What has to be asked back. `amounts` are those among which a cleverer reader may choose."""

    why: Why
    amounts: tuple[Decimal, ...] = ()
    currency: str = ""
    on: date | None = None


@dataclass(frozen=True, slots=True)
class Several:
    """Some expenses of one message, in its order; each number in it is the amount of one."""

    spents: tuple[Spent, ...]


Reading: TypeAlias = Spent | Several | Question | Change | Order

_INCOME = re.compile(
    r"\b(?:cobre|cobramos|gane|ganamos|recibi|herede|encontre|sueldo|aguinaldo|ingreso|ingresaron|"
    r"me (?:pag|d|devolv|deposit|prest|regal|transfir|reintegr|reembols|acredit|mand|envi|gir)"
    r"(?:aron|ieron|io|o)|vendi|reembolso|reintegro|devolucion|cashback|refund|refunded|reimbursed|"
    r"salary|earned|received|borrowed|won|got paid|(?:paid|gave|lent|sent|owed) me|sold|"
    r"income(?! tax))\b"
)
_ADDING = re.compile(
    r"\b(?:(?:quiero|quisiera|queria|necesito|podrias|puedes|podes|can you|i want to|want to|"
    r"i need to|need to) )?(?:anotar|agregar|registrar|cargar|apuntar|anotame|apuntame|agregame|"
    r"log|add|record|track)(?: (?:un|el|an?|my)(?: nuevo| new)?)?(?: (?:gasto|expense))?(?= |:)"
)
_NOT = re.compile(
    r"\b(?:no|ni|nunca|casi|voy a|vamos a|(?:hay|tengo|tenemos) que|faltan?|deberia|"
    r"sin (?:gast|pag|compr)ar|(?:gast|pag|compr)ar(?:e|emos|ia|iamos)|"
    r"quiero|quisiera|queria|podria|debo|me debe|me deben|presupuesto|ahorre|ahorrar|preste|"
    r"not|never|didn'?t|don'?t|won'?t|almost|will|would|going to|gonna|should|want to|need to|"
    r"have to|budget|saved|owe|owes|lent|if i|si gasto|si compro)\b"
)
_STRUCK = re.compile(r"~[^~]*\d[^~]*~")  # WhatsApp shows it crossed out
_MINUS = re.compile(r"(?:^|[\s(:$])[-−–—]\s?[$€£]?\d|\(-")
_EDGES = words(
    "gaste gastamos pague pagamos compre compramos puse pusimos me salio costo fueron son hoy fue "
    "spent paid bought cost got for on in at the a an my i we of from en de del por para un una el "
    "la los las al mi con y and total gasto expense compra pago es"
)
_SPANISH = words(
    "gaste pague compre en de del por para el la los las un una ayer hoy anoche hace dias pesos "
    "dolares mes total cuanto borrar ultimo exportar ayuda hola con y mil lunes martes miercoles "
    "jueves viernes sabado domingo anteayer esta manana supermercado super farmacia cafe nafta "
    "almuerzo cena alquiler luz gracias buenas regalo ropa colectivo verduleria"
)
_ENGLISH = words(
    "spent paid bought on in at the for my yesterday today last night days ago dollars bucks month "
    "how much delete undo export help hello hi and thousand monday tuesday wednesday thursday "
    "friday saturday sunday morning groceries pharmacy coffee gas lunch dinner rent thanks gift "
    "clothes rides week pounds"
)


def read(text: str, today: date, region: Region = HOME) -> Reading:
    """What a message says."""
    if not is_readable(text):
        return Question("number")
    plain = normal(text)
    folded = fold(plain)
    order = find_order(folded, today) or find_change(folded, today, region)
    if order is not None:
        return order
    if asks_to_undo(folded):
        return Question("undo")
    if len(plain) > LONGEST:
        return Question("long")
    if _STRUCK.search(plain):
        return Question("number")
    if _MINUS.search(folded.replace(" - ", "   ").replace(" – ", "   ")):
        return Question("number")
    day = find_day(folded, today, region)
    left = _without(folded, day.spans)
    if not _is_spending(plain, folded) and find_amounts(left, region).found:
        return Question("income" if _INCOME.search(folded) else "not")
    parts = split(left, region)
    if len(parts) > 1:
        return _several(plain, folded, left, parts, day, today, region)
    return _single(plain, left, day, region)


def _is_spending(plain: str, folded: str) -> bool:
    is_not = _NOT.search(_ADDING.sub(" ", folded)) or "?" in plain
    return not is_not and not _INCOME.search(folded)


def _several(
    plain: str,
    folded: str,
    left: str,
    parts: list[tuple[int, int]],
    day: Day,
    today: date,
    region: Region,
) -> Several | Question:
    """Each part as an expense of its own; one question for all when any of them is in doubt."""
    values = tuple(each.value for each in find_amounts(left, region).found)
    doubt = Question("several", values, "", day.on)
    if tells_more(folded):
        return doubt
    days = [find_day(folded[start:end], today, region) for start, end in parts]
    if day.problem:
        # Two days are clear only where each part has its own: "ayer pan 500, hoy leche 300".
        if not all(each.is_told and not each.problem for each in days):
            return Question("future" if day.problem == "future" else "days")
        left = "".join(
            _without(folded[start:end], each.spans) + folded[end:following]
            for (start, end), each, following in zip(
                parts, days, [*(start for start, _ in parts[1:]), len(folded)], strict=True
            )
        )
        left = folded[: parts[0][0]] + left
    spents: list[Spent] = []
    for (start, end), own in zip(parts, days, strict=True):
        on = own if day.problem else Day(day.on)
        shown = plain[start:end] if len(plain) == len(folded) else folded[start:end]
        found = _single(shown, left[start:end], on, region)
        if isinstance(found, Question):
            return found if found.why in ("spread", "currency", "size", "number") else doubt
        if not found.description:
            return doubt
        spents.append(found)
    amounts = [spent.amount for spent in spents]
    if min(amounts) < _SMALL and max(amounts) >= min(amounts) * 100:
        return doubt  # "cumple de 15, regalo 5000"
    marks = [bool(find_amounts(left[start:end], region).found[0].mark) for start, end in parts]
    if len({spent.currency for spent in spents}) > 1 and not all(marks):
        return Question("currency")  # "dinner 20 usd, taxi 15": of which money are the 15?
    return Several(tuple(spents))


def _single(plain: str, left: str, day: Day, region: Region) -> Spent | Question:
    """The one expense of a text from which its day has been taken out already."""
    amounts = find_amounts(left, region)
    if amounts.problem == "size":
        return Question("size")
    if amounts.problem == "number":
        return Question("number")
    if amounts.problem == "currency":
        return Question("currency")
    if amounts.problem == "spread" and not amounts.found:
        return Question("spread")
    if not amounts.found:
        return Question("amount")
    if all(each.is_count for each in amounts.found):
        return Question("number")  # "2 cafes"
    values = tuple(dict.fromkeys(amount.value for amount in amounts.found))
    one = _the_one(amounts.found)
    home = region.currency
    if one is None or amounts.problem:
        marks = {amount.mark for amount in amounts.found if amount.mark}
        currency = money_of(marks.pop(), home) if len(marks) == 1 else home
        why: Why = "spread" if amounts.problem else "several"
        prices = tuple(amount.value for amount in amounts.found if not amount.is_count)
        return Question(why, values if why == "spread" else prices, currency, day.on)
    if day.problem:
        return Question("future" if day.problem == "future" else "days")
    currency = home if one.mark is None else money_of(one.mark, home)
    if not currency:
        return Question("currency")
    spans = (*day.spans, *(span for span in one.spans))
    description = _description(plain, _without(left, one.spans), spans)
    return Spent(one.value, currency, category_of(left), description, day.on)


def _the_one(found: tuple[Amount, ...]) -> Amount | None:
    """The amount, if it is the only one beside counts: "2 coffees 9", "pizza para 4, 18000"."""
    prices = [amount for amount in found if not amount.is_count]
    if len(prices) != 1:
        return None
    # "coffee 15 croissants 20" may be two prices; "2 coffees 9" and "coffee, 2 rolls $9" are one.
    is_clear = prices[0].mark is not None or all(each.is_leading for each in found if each.is_count)
    return prices[0] if is_clear else None


def _without(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    """The text with these places blank, and everything else where it was."""
    letters = list(text)
    for start, end in spans:
        letters[start:end] = " " * (end - start)
    return "".join(letters)


def _description(plain: str, folded: str, spans: tuple[tuple[int, int], ...]) -> str:
    """What is left of the words when verbs, prepositions and numbers are taken off its ends."""
    shown = _without(plain, spans) if len(plain) == len(folded) else folded
    words = [word.strip(".,;:!?¡¿()\"'-–—$") for word in shown.split()]
    words = [word for word in words if word]
    while words and fold(words[0]) in _EDGES:
        words.pop(0)
    while words and fold(words[-1]) in _EDGES:
        words.pop()
    return " ".join(words)[:120]


def language_of(text: str, region: Region = HOME) -> str:
    """`es` or `en`, by the words that only one of them has; by the region if there are none."""
    words = set(re.findall(r"[a-z]+", fold(normal(text[:1_000]))))
    spanish, english = len(words & _SPANISH), len(words & _ENGLISH)
    return region.language if spanish == english else "es" if spanish > english else "en"
