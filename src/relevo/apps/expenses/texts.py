"""What people are told, in their language and with their commas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from relevo.apps.expenses.records import Expense, Row
from relevo.apps.expenses.rules import Order, Question, Region, Spent

_MONTHS = {
    "en": "January February March April May June July August September October November December",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre "
    "diciembre",
}
CATEGORY = {
    "groceries": "supermercado",
    "dining": "comidas y salidas",
    "transport": "transporte",
    "home": "casa",
    "utilities": "servicios",
    "health": "salud",
    "leisure": "ocio",
    "subscriptions": "suscripciones",
    "clothing": "ropa",
    "education": "educación",
    "travel": "viajes",
    "pets": "mascotas",
    "beauty": "cuidado personal",
    "gifts": "regalos",
    "taxes": "impuestos y seguros",
    "other": "otros",
}
_HELP = {
    "es": "Escribime un gasto, por ejemplo «gasté 2500 en supermercado» o «uber 12.50 usd ayer»; "
    "también podés mandar la foto de un ticket o un audio.\n"
    "Varios juntos también: «pan 500, leche 300 y queso 1200».\n"
    "Para corregir: «no, eran 600», «corregir último a 700», «era en dólares», «categoría salud», "
    "«borrar último».\n"
    "Además entiendo: «total del mes», «total de la semana», «cuánto gasté en salud», "
    "«mis gastos» (tu página), «exportar csv».",
    "en": "Write an expense, such as “spent 25 on lunch” or “uber 12.50 usd yesterday”; a photo of "
    "a receipt or a voice note works too.\n"
    "Several at once, too: “bread 5, milk 3 and cheese 12”.\n"
    "To correct one: “no, it was 6”, “change last to 7”, “it was in euros”, “category health”, "
    "“delete last”.\n"
    "I also understand: “total this month”, “total this week”, “how much did I spend on health”, "
    "“my expenses” (your page), “export csv”.",
}
_ASK = {
    "amount": (
        "¿Cuánto fue? Escribilo con el monto, por ejemplo «pan 500».",
        "How much was it? Write it with the amount, such as “bread 5”.",
    ),
    "number": (
        "No estoy seguro de ese número y no quiero errarle. ¿Me lo escribís así: «pan {number}»?",
        "I am not sure about that number. Could you write it like “bread {number}”?",
    ),
    "size": (
        "Ese monto no lo puedo anotar. ¿Lo revisás?",
        "I cannot write down that amount. Could you check it?",
    ),
    "several": (
        (
            "Veo más de un monto y no sé de qué es cada uno. ¿Me los escribís así: "
            "«pan 500, leche 300»?"
        ),
        (
            "I see more than one amount and cannot tell what each is for. Could you write them "
            "like “bread 5, milk 3”?"
        ),
    ),
    "spread": (
        "¿Cuánto fue en total? Mandámelo con un solo monto.",
        "How much was it in all? Send it with one amount.",
    ),
    "currency": (
        "¿En qué moneda fue? Escribila junto al monto, por ejemplo «20 usd».",
        "In which currency was it? Write it beside the amount, such as “20 usd”.",
    ),
    "income": (
        "Parece un ingreso; yo anoto gastos. Si fue un gasto, escribilo como «pan 500».",
        "That looks like income; I write down expenses. If it was one, write it like “bread 5”.",
    ),
    "not": (
        "No me queda claro si lo gastaste. Si fue así, escribilo como «pan 500».",
        "I am not sure that you spent it. If you did, write it like “bread 5”.",
    ),
    "undo": (
        "Puedo borrar el último gasto: escribí solo «borrar último».",
        "I can delete the last expense: write just “delete last”.",
    ),
    "days": (
        "¿Qué día fue? Escribí una sola fecha, por ejemplo «ayer» o «12 de marzo».",
        "Which day was it? Write one date, such as “yesterday” or “March 12”.",
    ),
    "future": (
        "Esa fecha todavía no llegó; contámelo cuando lo hayas gastado.",
        "That day is still to come; tell me when you have spent it.",
    ),
    "long": (
        "Es un mensaje muy largo para mí. ¿Me mandás el gasto en una línea?",
        "That message is too long for me. Could you send the expense in one line?",
    ),
    "media": (
        "No pude leer el archivo. ¿Me escribís el gasto, por ejemplo «farmacia 3500»?",
        "I could not read the file. Could you write the expense, such as “pharmacy 35”?",
    ),
    "unclear": (
        "No pude leer un gasto ahí. ¿Me lo escribís, por ejemplo «farmacia 3500»?",
        "I could not read an expense there. Could you write it, such as “pharmacy 35”?",
    ),
    "kind": (
        "Entiendo texto, fotos de tickets y audios. ¿Me escribís el gasto?",
        "I understand text, photos of receipts and voice notes. Could you write the expense?",
    ),
}


def _pick(pair: tuple[str, str], language: str) -> str:
    return pair[0] if language == "es" else pair[1]


def money(cents: int, currency: str, decimal: str) -> str:
    """`ARS 1.234,56`, with the signs of whoever reads it."""
    whole = f"{cents // 100:,}"
    if decimal == ",":
        whole = whole.replace(",", ".")
    return f"{currency} {whole}{decimal}{cents % 100:02}"


def month(day: date, language: str) -> str:
    return f"{_MONTHS[language].split()[day.month - 1]} {day.year}"


def category(slug: str, language: str) -> str:
    return CATEGORY.get(slug, slug) if language == "es" else slug


def written_down(spent: Spent, language: str, region: Region) -> str:
    amount = money(int(spent.amount * 100), spent.currency, region.decimal)
    what = f" · {spent.description}" if spent.description else ""
    kind = category(spent.category, language)
    head = "Anotado" if language == "es" else "Written down"
    undo = "«borrar último» lo deshace" if language == "es" else "“delete last” undoes it"
    return f"✅ {head}: {amount}{what} · {kind} · {spent.on:%Y-%m-%d}\n{undo}."


def all_written_down(spents: Sequence[Spent], language: str, region: Region) -> str:
    """One confirmation for several, numbered as "borrar 2" and "corregir 2 a 700" mean them."""
    lines = [
        _pick((f"✅ Anoté {len(spents)} gastos:", f"✅ {len(spents)} written down:"), language)
    ]
    sums: dict[str, int] = {}
    for number, spent in enumerate(spents, 1):
        cents = int(spent.amount * 100)
        sums[spent.currency] = sums.get(spent.currency, 0) + cents
        amount = money(cents, spent.currency, region.decimal)
        kind = category(spent.category, language)
        lines.append(f"{number}. {spent.description}: {amount} · {kind} · {spent.on:%Y-%m-%d}")
    total = " + ".join(money(cents, code, region.decimal) for code, cents in sums.items())
    lines.append(f"Total: {total}")
    lines.append(
        _pick(
            (
                "«borrar 2» borra uno, «borrar todo» los borra, «corregir 2 a 700» lo cambia.",
                "“delete 2” deletes one, “delete all” all of them, “change 2 to 700” changes it.",
            ),
            language,
        )
    )
    return "\n".join(lines)


def _one_line(row: Row, language: str, region: Region) -> str:
    amount = money(row.cents, row.currency, region.decimal)
    what = f"{row.description} · " if row.description else ""
    return f"{what}{amount} · {category(row.category, language)} · {row.spent_on}"


def changed(before: Row, after: Row, language: str, region: Region) -> str:
    head = _pick(("Corregido", "Changed"), language)
    old, new = _one_line(before, language, region), _one_line(after, language, region)
    return f"✏️ {head}: {new}\n({_pick(('antes', 'before'), language)}: {old})"


def which(rows: Sequence[Row], found: Sequence[Expense], language: str, region: Region) -> str:
    """Ask which of several is meant, by the numbers that they have."""
    head = _pick(
        (
            "¿Cuál? Escribime su número, por ejemplo «corregir 2 a 700» o «borrar 2»:",
            "Which one? Write its number, such as “change 2 to 700” or “delete 2”:",
        ),
        language,
    )
    lines = [
        f"{each.position + 1}. {_one_line(row, language, region)}"
        for row, each in zip(rows, found, strict=True)
    ]
    return "\n".join([head, *lines])


def not_found(target: str, language: str) -> str:
    return _pick(
        (
            f"No encuentro ningún gasto que se llame «{target}».",
            f"I find no expense that is called “{target}”.",
        ),
        language,
    )


def nothing_to_change(language: str) -> str:
    return _pick(
        (
            (
                "No anoté el mensaje anterior, así que no tengo qué corregir. Escribime el gasto "
                "entero, por ejemplo «pan 600»."
            ),
            (
                "I did not write down your last message, so there is nothing to correct. Write the "
                "whole expense, such as “bread 6”."
            ),
        ),
        language,
    )


def question(why: str, language: str, region: Region) -> str:
    number = "1.234,50" if region.decimal == "," else "1,234.50"
    return _pick(_ASK[why], language).format(number=number)


def asked(found: Question, language: str, region: Region) -> str:
    return question(found.why, language, region)


def help_text(language: str) -> str:
    return _HELP[language]


def taken_back(rows: Sequence[Row], language: str, region: Region) -> str:
    shown = [
        money(row.cents, row.currency, region.decimal)
        + (f" · {row.description}" if row.description else "")
        for row in rows
    ]
    head = _pick(("Borrado", "Deleted"), language)
    return f"🗑️ {head}: {'; '.join(shown)}."


def nothing_to_take_back(language: str) -> str:
    return _pick(("No hay ningún gasto para borrar.", "There is no expense to delete."), language)


def period(order: Order, language: str) -> str:
    match order.period:
        case "day":
            return f"{order.since:%Y-%m-%d}"
        case "week":
            return _pick((f"semana del {order.since}", f"week of {order.since}"), language)
        case "year":
            return str(order.since.year)
        case _:
            return month(order.since, language)


def total(rows: Iterable[Row], order: Order, language: str, region: Region) -> str:
    """What was spent in a period, by currency and category."""
    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        if order.category and row.category != order.category:
            continue
        of = sums.setdefault(row.currency, {})
        of[row.category] = of.get(row.category, 0) + row.cents
    when = period(order, language)
    if order.category:
        when = f"{when} · {category(order.category, language)}"
    if not sums:
        return _pick((f"Sin gastos en {when}.", f"No expenses in {when}."), language)
    lines = [f"📊 Total {when}:"]
    for currency, parts in sorted(sums.items()):
        lines.append(money(sum(parts.values()), currency, region.decimal))
        for slug, cents in sorted(parts.items(), key=lambda part: -part[1]):
            shown = money(cents, currency, region.decimal)
            lines.append(f"  · {category(slug, language)}: {shown}")
    return "\n".join(lines)


def export(link: str, order: Order, language: str) -> str:
    when = period(order, language)
    return _pick(
        (
            f"📎 Tus gastos de {when} (el enlace dura 24 horas):\n{link}",
            f"📎 Your expenses of {when} (the link lasts 24 hours):\n{link}",
        ),
        language,
    )
