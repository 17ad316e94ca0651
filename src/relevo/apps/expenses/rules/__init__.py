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
from relevo.apps.expenses.rules.dates import find_day
from relevo.apps.expenses.rules.money import money_of
from relevo.apps.expenses.rules.orders import (
    Order,
    after,
    asks_to_undo,
    before,
    find_order,
    month_of,
)
from relevo.apps.expenses.rules.regions import HOME, REGIONS, SOMEWHERE, Region, region_of
from relevo.apps.expenses.rules.text import fold, is_readable, normal, words

__all__ = [
    "CATEGORIES",
    "HOME",
    "LONGEST",
    "OTHER",
    "REGIONS",
    "SOMEWHERE",
    "Order",
    "Question",
    "Reading",
    "Region",
    "Spent",
    "after",
    "before",
    "language_of",
    "month_of",
    "read",
    "region_of",
]

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


Reading: TypeAlias = Spent | Question | Order

_INCOME = re.compile(
    r"\b(?:cobre|cobramos|gane|ganamos|recibi|herede|encontre|sueldo|aguinaldo|ingreso|ingresaron|"
    r"me (?:pag|d|devolv|deposit|prest|regal|transfir|reintegr|reembols|acredit|mand|envi|gir)"
    r"(?:aron|ieron|io|o)|vendi|reembolso|reintegro|devolucion|cashback|refund|refunded|reimbursed|"
    r"salary|earned|received|borrowed|won|got paid|(?:paid|gave|lent|sent|owed) me|sold|income)\b"
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
    order = find_order(folded, today)
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
    if len(amounts.found) == 1 and amounts.found[0].is_count:
        return Question("number")  # "2 cafes"
    if _INCOME.search(folded):
        return Question("income")
    if _NOT.search(folded) or "?" in plain:
        return Question("not")
    values = tuple(dict.fromkeys(amount.value for amount in amounts.found))
    on = day.on
    one = _the_one(amounts.found)
    home = region.currency
    if one is None or amounts.problem:
        marks = {amount.mark for amount in amounts.found if amount.mark}
        currency = money_of(marks.pop(), home) if len(marks) == 1 else home
        return Question("spread" if amounts.problem else "several", values, currency, on)
    if day.problem:
        return Question("future" if day.problem == "future" else "days")
    currency = home if one.mark is None else money_of(one.mark, home)
    if not currency:
        return Question("currency")
    spans = (*day.spans, *(span for span in one.spans))
    description = _description(plain, _without(folded, spans), spans)
    return Spent(one.value, currency, category_of(left), description, on)


def _the_one(found: tuple[Amount, ...]) -> Amount | None:
    """The amount, if it is the only one, or the only one with a currency beside plain counts."""
    if len(found) == 1:
        return found[0]
    marked = [amount for amount in found if amount.mark is not None]
    counts = [amount for amount in found if amount.mark is None]
    is_clear = len(marked) == 1 and all(each.is_count for each in counts)
    return marked[0] if is_clear else None


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
