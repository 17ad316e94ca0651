"""The amounts in a text. One, for certain, or a question: never a guess."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from relevo.apps.expenses.rules.money import (
    AFTER,
    BEFORE,
    LOCALLY,
    NATIONS,
    NEARBY,
    OTHERS,
    agreed,
)
from relevo.apps.expenses.rules.numbers import MOST, NUMBER_WORDS, read_digits, read_words
from relevo.apps.expenses.rules.regions import Region
from relevo.apps.expenses.rules.text import words

_TIMES = {
    **dict.fromkeys(words("k mil luca lucas thousand grand"), 1000),
    **dict.fromkeys(words("millon millones million"), 1000000),
}
_UNITS = words(
    "kg kgs kilo kilos g gr grs gramos l lt lts litro litros liter liters ml cc km kms m mts "
    "cm mm lb lbs oz onzas gb mb tb h hr hrs hs hora horas hour hours min mins minutos minutes "
    "dia dias days noches nights personas people pax unidades u un uds docena docenas dozen packs "
    "pack bolsas cajas latas botellas bottles bags cans m2 m3 km2"
)
_FRACTION = re.compile(r"(?:1/2|1/3|1/4|3/4)")
_FOR_PEOPLE = re.compile(r"(?:1\d|[1-9])")  # "pizza para 4"
_WORN = words("large small medium big new used iced")  # "2 large pizzas"
_BRANDS = words("7up 7-up 5g 4g 3g 3d 4k 24hs 2x1 3x2 7eleven 7-eleven")
_SPREAD = re.compile(
    r"\b(?:c/u|cada un[oa]|cada|each|apiece|por persona|per person|per|por cabeza|al mes|por mes|"
    r"cuotas|cuota \d{1,2}|\d+ cuota|installments?|off|mitad|"
    r"(?<!con )(?<!con un )(?<!con el )descuento|(?<!with )(?<!with a )discount|"
    r"half(?! an? (?:dozen|pound|pint|hour))|"
    r"dividido|entre|between|split|pico|y algo|something|palos?|gambas?|"
    r"(?<!kilo )(?<!kg )(?<!litro )(?<!docena )(?<!hora )(?<!luca )(?<!lucas )y medi[oa]|"
    r"el kilo|por kilo|la docena|el litro|por litro|la unidad|mas (?:iva|propina|envio)|"
    r"plus (?:tax|tip|shipping)|sin iva|veces|(?:\d+|two|three|four|five) times|twice|"
    r"(?:mas|menos) de|(?:more|less) than|up to)\b|%|\+"
)
_NO_AMOUNT = words(
    "+ menos minus # nro numero x dni cuit cbu cvu codigo cod ref code ruta linea calle piso depto "
    "talle size km"
)
_PHONES = words("tel telefono cel celular phone movil")  # a bill, or a number of seven digits
_LONG = Decimal(1_000_000)
_PRICE_OF_ONE = words("a @ at")
_JOINTS = words("x + * / con y o u a and or to point punto coma - – menos mas plus")
_NOTES = {"fiver": Decimal(5), "tenner": Decimal(10)}
_CENTS = words("centavo centavos cent cents ctvs centimo centimos gamba gambas")
_NO_MONEY = words("sol real pe q peso pesos pound pounds francos")  # words of their own
_LEADING = words(
    "compre compramos gaste gastamos pague pagamos pedi pedimos comi comimos tome tomamos lleve "
    "bought got had ordered paid spent i we me y and con with en in on de of + - los las the unos "
    "unas"
)
_OPENING, _CLOSING = "([{\"'¿¡«“‘*~=:>|", ")]}\"'?!.,;:»”’…*~|"
_SIGNS = frozenset("".join(BEFORE))
_SIGN = "|".join(sorted(map(re.escape, BEFORE), key=len, reverse=True))
_CHUNK = re.compile(rf"(?P<pre>{_SIGN})?(?P<num>\d[\d.,]*\d|\d)(?P<post>[^\d.,].*)?", re.ASCII)
_TIMES_SO_MANY = re.compile(r"x\d[\d.,]*(?:u|un|uds)?", re.ASCII)  # "pan 500 x2"
_AFTER_WORD = words("en de por para al el la in on for at the con with y and ayer hoy - , .")


class Chunk(NamedTuple):
    """A word of the text, and its place."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Amount:
    """One number that may be what was spent."""

    value: Decimal
    mark: str | None
    spans: tuple[tuple[int, int], ...]
    is_count: bool = False  # it may tell how many of something
    is_leading: bool = False  # nothing before it that it could be the price of


@dataclass(frozen=True, slots=True)
class Amounts:
    """Every number in a text; `problem` if some of them cannot be told for certain."""

    found: tuple[Amount, ...]
    problem: str = ""


def chunks_of(folded: str) -> list[Chunk]:
    """The words of a text without the punctuation around them."""
    found: list[Chunk] = []
    for match in re.finditer(r"\S+", folded):
        start, end = match.span()
        while start < end and folded[start] in _OPENING:
            start += 1
        if folded[start:end].endswith((".-", ",-")):
            end -= 2  # "$500.-"
        while start < end and folded[end - 1] in _CLOSING:
            end -= 1
        if start < end:
            found.append(Chunk(folded[start:end], start, end))
    return found


def find_amounts(folded: str, region: Region) -> Amounts:
    """The amounts of a text from which the day has been taken out already."""
    chunks = chunks_of(folded)
    found: list[Amount] = []
    problem = ""
    at = 0
    while at < len(chunks):
        chunk = chunks[at]
        taken = 1
        if any(map(str.isdigit, chunk.text)) and chunk.text not in _BRANDS:
            amount, taken, wrong = _digits(chunks, at, region)
            problem = problem or wrong
            found += [amount] if amount is not None else []
        elif _is_word(chunk):
            amount, taken, wrong = _words(chunks, at, region)
            problem = problem or wrong
            found += [amount] if amount is not None else []
        elif chunk.text == "luca" or (chunk.text in _NOTES and region.country == "GB"):
            amount, taken, wrong = (
                _lucas(chunks, at, at, [])
                if chunk.text == "luca"
                else (Amount(_NOTES[chunk.text], "GBP", ((chunk.start, chunk.end),)), 1, "")
            )
            problem = problem or wrong
            found += [amount] if amount is not None else []
        at += taken
    if found and not problem and any(map(_is_other_money, chunks)):
        problem = "currency"
    if found and not problem:
        found, problem = _with_stray_money(chunks, found)
    if found and not problem and _SPREAD.search(folded):
        problem = "spread"
    return Amounts(tuple(found), problem)


def _is_other_money(chunk: Chunk) -> bool:
    """Whether it is money that we do not know: "500 btc", "₹ 500"."""
    signs = [each for each in chunk.text if unicodedata.category(each) == "Sc"]
    return chunk.text in OTHERS or not _SIGNS.issuperset(signs)


def _with_stray_money(chunks: list[Chunk], found: list[Amount]) -> tuple[list[Amount], str]:
    """A currency that stands apart: clear in "500 en dolares", a question anywhere else."""
    used = {span for amount in found for span in amount.spans}
    stray = [
        at
        for at, chunk in enumerate(chunks)
        if chunk.text in AFTER
        and chunk.text not in _NO_MONEY
        and not any(start <= chunk.start < end for start, end in used)
    ]
    if not stray:
        return found, ""
    at = stray[0]
    is_clear = len(stray) == len(found) == 1 and found[0].mark is None and at > 0
    if not is_clear or chunks[at - 1].text not in ("en", "in"):
        return found, "currency"
    spans = (*found[0].spans, (chunks[at - 1].start, chunks[at].end))
    return [Amount(found[0].value, AFTER[chunks[at].text], spans)], ""


def _digits(chunks: list[Chunk], at: int, region: Region) -> tuple[Amount | None, int, str]:
    """The amount of a chunk with digits, how many chunks it takes, and what is wrong with it."""
    chunk = chunks[at]
    rest = chunks[at + 1 :]
    if _FRACTION.fullmatch(chunk.text) and rest and rest[0].text.isalpha():
        return None, 1, ""  # "1/2 kg", "1/4 de helado"
    match = _CHUNK.fullmatch(_with_apostrophe(chunk.text, region))
    if match is None:
        # A word with digits in it is a name (covid19), unless it begins like a number or a sign.
        is_name = chunk.text[0].isalpha() and chunk.text[-1:] != "%" and "-" not in chunk.text
        return None, 1, "" if is_name and not _TIMES_SO_MANY.fullmatch(chunk.text) else "number"
    value = read_digits(match["num"], region.grouping)
    mark = BEFORE.get(match["pre"] or "")
    spans = [(chunk.start, chunk.end)]
    post = (match["post"] or "").strip(".")
    before = chunks[at - 1] if at else None
    if mark is None and before is not None and before.text in BEFORE:
        mark = BEFORE[before.text]
        spans.insert(0, (before.start, before.end))
    elif before is not None and before.text in ("libra", "libras"):
        return None, 1, "currency"
    elif (before is not None and before.text in _NO_AMOUNT) or (
        before is not None and before.text in _PHONES and (value is None or value >= _LONG)
    ):
        return None, 1, "number"
    elif before is not None and before.text in _PRICE_OF_ONE:
        return None, 1, "spread"
    taken = 1
    if post:
        if (told := told_by(post, region)) is not None:
            mark = agreed(mark, told)
            if mark is None:
                return None, 1, "currency"
        elif post in _UNITS:
            return None, 1, ""
        elif post in OTHERS or post in NEARBY:
            return None, 1, "currency"
        elif post in _TIMES:
            value = _times(value, post)
        elif post == "p" and mark is None and region.country == "GB" and value is not None:
            value, mark = value / 100, "GBP"
            if value >= 1 or value.as_tuple().exponent != -2:
                return None, 1, "number"
        else:
            return None, 1, "number"
    if rest and rest[0].text in _TIMES and not post:
        value = _times(value, rest[0].text)
        spans.append((rest[0].start, rest[0].end))
        taken += 1
        if _is_and_a_half(rest) and value is not None:
            value += _TIMES[rest[0].text] // 2
            spans.append((rest[1].start, rest[2].end))
            taken += 2
            rest = rest[2:]
        rest = rest[1:]
        if rest and (rest[0].text in NUMBER_WORDS or rest[0].text[0].isdigit()):
            return None, taken, "number"
    if rest and (told := told_by(rest[0].text, region)) is not None:
        nation = _nation(rest)
        spans.append((rest[0].start, rest[1].end if nation else rest[0].end))
        taken += 2 if nation else 1
        mark = agreed(mark, nation or told)
        if mark is None:
            return None, taken, "currency"
        rest = rest[2 if nation else 1 :]
    elif rest and rest[0].text in _UNITS and mark is None:
        return None, taken + 1, ""
    is_for = before is not None and before.text == "para" and mark is None
    if is_for and _FOR_PEOPLE.fullmatch(chunk.text):
        return Amount(Decimal(match["num"]), None, tuple(spans), True, True), taken, ""
    # "1 500" and "5 euros 20" are one number or two; "500 y 20", "12 con 50", "3 a 5" likewise.
    if rest and (_is_number(rest) or (rest[0].text in _JOINTS and _is_number(rest[1:]))):
        return None, taken, "number"
    if rest and rest[0].text in _CENTS:
        return None, taken, "number"
    if value is None:
        return None, taken, "number"
    if not 0 < value <= MOST:
        return None, taken, "size"
    is_near = bool(rest) and rest[0].text in NEARBY
    is_count = mark is None and value < 100 and (is_near or _is_counted(match["num"], rest))
    is_leading = before is None or before.text in _LEADING
    if is_near and not is_count:
        return None, taken, "currency"
    return Amount(value, mark, tuple(spans), is_count, is_leading), taken, ""


def _with_apostrophe(text: str, region: Region) -> str:
    """Spain writes 12'50 for 12,50; an apostrophe before three digits is read nowhere."""
    if region.country != "ES":
        return text
    return re.sub(r"^(\W?\d{1,4})['’](\d\d)(?!\d)", r"\1,\2", text)


def told_by(word: str, region: Region) -> str | None:
    """The mark that a word behind a number is: everywhere, or in this country alone."""
    if word in LOCALLY.get(region.country, {}):
        return LOCALLY[region.country][word]
    return AFTER.get(word)


def _is_and_a_half(rest: list[Chunk]) -> bool:
    """Whether "lucas y media" begins here."""
    said = [chunk.text for chunk in rest[:3]]
    return said in (["luca", "y", "media"], ["lucas", "y", "media"])


def _times(value: Decimal | None, word: str) -> Decimal | None:
    return None if value is None or value >= 1_000 else (value * _TIMES[word]).quantize(Decimal(1))


def _nation(rest: list[Chunk]) -> str | None:
    pair = " ".join(chunk.text for chunk in rest[:2])
    return next((code for pattern, code in NATIONS.items() if pattern.fullmatch(pair)), None)


def _is_number(rest: list[Chunk]) -> bool:
    if not rest:
        return False
    is_named = rest[0].text in _BRANDS or rest[0].text[0].isalpha()
    return (not is_named and any(map(str.isdigit, rest[0].text))) or (
        _is_word(rest[0]) and rest[0].text not in ("un", "una", "uno", "one")
    )


def _is_counted(written: str, rest: list[Chunk]) -> bool:
    """Whether it may tell how many: "2 cafes", "12 facturas"."""
    if not written.isdigit() or not rest or rest[0].text in _AFTER_WORD:
        return False
    if written == "1" and rest[0].text.isalpha():
        return True  # "1 pizza"
    if rest[0].text in _WORN:
        rest = rest[1:]
    return (
        bool(rest)
        and rest[0].text.isalpha()
        and rest[0].text.endswith("s")
        and len(rest[0].text) > 3
    )


def _is_word(chunk: Chunk) -> bool:
    return all(part in NUMBER_WORDS for part in chunk.text.split("-"))


def _lucas(
    chunks: list[Chunk], at: int, end: int, run: list[str]
) -> tuple[Amount | None, int, str]:
    """ "quince lucas", "una luca", "luca y media": thousands by another name."""
    count = read_words(run) if run else 1
    value = Decimal(count * 1_000) if count and count < 1_000 else None
    until = end + 1
    if value is not None and _is_and_a_half(chunks[end:]):
        value, until = value + 500, end + 3
    rest = chunks[until:]
    if value is None or _is_number(rest) or (rest and rest[0].text in AFTER):
        return None, until - at, "number"
    spans = tuple((chunk.start, chunk.end) for chunk in chunks[at:until])
    return Amount(value, None, spans), until - at, ""


def _words(chunks: list[Chunk], at: int, region: Region) -> tuple[Amount | None, int, str]:
    """An amount in words: with its currency, or of 20 and more and nothing counted behind it."""
    end = at
    while end < len(chunks) and (
        _is_word(chunks[end])
        or (
            chunks[end].text in ("y", "and") and end + 1 < len(chunks) and _is_word(chunks[end + 1])
        )
    ):
        end += 1
    run = [part for chunk in chunks[at:end] for part in chunk.text.split("-")]
    rest = chunks[end:]
    if rest and rest[0].text in ("luca", "lucas"):
        return _lucas(chunks, at, end, run)
    mark = told_by(rest[0].text, region) if rest else None
    if run[0] in ("un", "una", "uno", "one") and len(run) == 1 and mark is None:
        return None, end - at, ""
    after = rest[1:] if mark is not None else rest
    if after and after[0].text in _JOINTS and _is_number(after[1:]):
        return None, end - at, "number"  # "veinte con cincuenta"
    if after and (after[0].text in _CENTS or _is_number(after)):
        return None, end - at, "number"
    if after and mark is not None and after[0].text in NEARBY and not _nation(rest):
        return None, end - at, "currency"  # "cien dolares neozelandeses"
    value = read_words(run)
    spans = tuple((chunk.start, chunk.end) for chunk in chunks[at:end])
    if mark is not None:
        nation = _nation(rest)
        value = value if value else None
        spans += ((rest[0].start, rest[1].end if nation else rest[0].end),)
        mark = nation or mark
        end += 2 if nation else 1
    elif value is not None and (value < 20 or (rest and rest[0].text not in _AFTER_WORD)):
        # "dos cafes" counts something; so may "veinte facturas".
        return None, end - at, "" if value < 20 else "number"
    if value is None:
        return None, end - at, "number"
    return Amount(Decimal(value), mark, spans), end - at, ""
