"""Expenses by rules: the right amount or a question back, never a wrong number (B57)."""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.apps.expenses.rules import (
    REGIONS,
    SOMEWHERE,
    Order,
    Question,
    Spent,
    language_of,
    read,
    region_of,
)
from relevo.apps.expenses.rules.area_codes import (
    CANADA,
    DOMINICAN_REPUBLIC,
    PUERTO_RICO,
    UNITED_STATES,
)

TODAY = date(2026, 3, 13)  # a Friday
AR, US, MX, ES, GB = (REGIONS[each] for each in ("AR", "US", "MX", "ES", "GB"))

# text | amount | currency | category | days ago
SPANISH = """
gasté 2500 en supermercado | 2500 | ARS | groceries | 0
uber 12.50 usd ayer | 12.50 | USD | transport | 1
$ 1.234,56 farmacia | 1234.56 | ARS | health | 0
pan 12.5 | 12.5 | ARS | groceries | 0
pan 12,5 | 12.5 | ARS | groceries | 0
$500 café | 500 | ARS | dining | 0
$500.- pan | 500 | ARS | groceries | 0
500 pesos de nafta | 500 | ARS | transport | 0
500$ taxi | 500 | ARS | transport | 0
Pagué $15.000 de luz | 15000 | ARS | utilities | 0
1.500 verdulería | 1500 | ARS | groceries | 0
1.234.567,89 alquiler | 1234567.89 | ARS | home | 0
alquiler 350.000 | 350000 | ARS | home | 0
cena 45 euros hace 3 días | 45 | EUR | dining | 3
cena €45 | 45 | EUR | dining | 0
45€ cena | 45 | EUR | dining | 0
hotel u$s 120 | 120 | USD | travel | 0
hotel US$120,50 | 120.50 | USD | travel | 0
usd500 hotel | 500 | USD | travel | 0
500usd hotel | 500 | USD | travel | 0
20 dólares netflix | 20 | USD | subscriptions | 0
500 en dólares de libros | 500 | USD | leisure | 0
R$ 80 en playa | 80 | BRL | other | 0
80 reais almuerzo | 80 | BRL | dining | 0
100 pesos mexicanos tacos | 100 | MXN | dining | 0
3000 pesos chilenos metro | 3000 | CLP | transport | 0
ars 4500 carne | 4500 | ARS | groceries | 0
15 lucas de nafta | 15000 | ARS | transport | 0
nafta 20 mil anteayer | 20000 | ARS | transport | 2
20mil super | 20000 | ARS | groceries | 0
1,5 mil verdura | 1500 | ARS | groceries | 0
15k ropa | 15000 | ARS | clothing | 0
1.5k nafta | 1500 | ARS | transport | 0
2 millones alquiler | 2000000 | ARS | home | 0
gasté mil en pan | 1000 | ARS | groceries | 0
dos mil quinientos en pan | 2500 | ARS | groceries | 0
quinientos pesos de fruta | 500 | ARS | groceries | 0
treinta y cinco dólares de spotify | 35 | USD | subscriptions | 0
ciento veinte euros en zapatillas | 120 | EUR | clothing | 0
cinco pesos de pan | 5 | ARS | groceries | 0
pan cien | 100 | ARS | groceries | 0
farmacia mil doscientos | 1200 | ARS | health | 0
un café 900 | 900 | ARS | dining | 0
una pizza 8000 | 8000 | ARS | dining | 0
2 cafés $500 | 500 | ARS | dining | 0
3 empanadas 900 pesos | 900 | ARS | dining | 0
2 kg de pollo 4500 | 4500 | ARS | groceries | 0
500g de queso 3200 | 3200 | ARS | groceries | 0
7up 500 | 500 | ARS | other | 0
pan - 500 | 500 | ARS | groceries | 0
pan: 500 | 500 | ARS | groceries | 0
pan (500) | 500 | ARS | groceries | 0
pan 500! | 500 | ARS | groceries | 0
pan, 500. | 500 | ARS | groceries | 0
Gasté: $2.350,50 en el chino | 2350.50 | ARS | groceries | 0
PAGUÉ 3000 DE INTERNET | 3000 | ARS | utilities | 0
el lunes pagué 3000 de luz | 3000 | ARS | utilities | 4
el viernes super 9000 | 9000 | ARS | groceries | 7
sábado pasado cine 6000 | 6000 | ARS | leisure | 6
anoche birra 4000 | 4000 | ARS | dining | 1
antes de ayer peaje 700 | 700 | ARS | transport | 2
anteanoche birra 4000 | 4000 | ARS | dining | 2
antes de anoche birra 4000 | 4000 | ARS | dining | 2
trasanteayer pan 700 | 700 | ARS | groceries | 3
me compré un libro 5000 | 5000 | ARS | leisure | 0
cerveza sin alcohol 900 | 900 | ARS | dining | 0
café doble 900 | 900 | ARS | dining | 0
hace una semana veterinaria 12000 | 12000 | ARS | pets | 7
hace dos semanas dentista 40000 | 40000 | ARS | health | 14
hace 10 días colegio 90000 | 90000 | ARS | education | 10
hoy subte 650 | 650 | ARS | transport | 0
esta mañana desayuno 3500 | 3500 | ARS | dining | 0
ayer a la noche cena 15000 | 15000 | ARS | dining | 1
500 el 12 | 500 | ARS | other | 1
regalo 5000 el 12 de febrero | 5000 | ARS | gifts | 29
12/03 super 4500 | 4500 | ARS | groceries | 1
super 4500 12/03/2026 | 4500 | ARS | groceries | 1
super 4500 12/03/26 | 4500 | ARS | groceries | 1
super 4500 2026-03-10 | 4500 | ARS | groceries | 3
10-03-2026 multa 30000 | 30000 | ARS | taxes | 3
1 de marzo alquiler 300000 | 300000 | ARS | home | 12
a las 5 taxi 900 | 900 | ARS | transport | 0
taxi 900 a las 22:30 | 900 | ARS | transport | 0
almuerzo 13hs 7500 | 7500 | ARS | dining | 0
cafe 0,50 | 0.50 | ARS | dining | 0
cafe 0.5 euros | 0.5 | EUR | dining | 0
pan １２ | 12 | ARS | groceries | 0
gasté 1​2​0 en pan | 120 | ARS | groceries | 0
peluquería 6500 | 6500 | ARS | beauty | 0
seguro del auto 45.300,75 | 45300.75 | ARS | taxes | 0
flores 3.000 | 3000 | ARS | gifts | 0
monotributo 26.600,10 | 26600.10 | ARS | taxes | 0
curso de inglés 18.000 | 18000 | ARS | education | 0
covid19 test 5000 | 5000 | ARS | other | 0
gasté 999999999 en todo | 999999999 | ARS | other | 0
100 verdes de ropa | 100 | USD | clothing | 0
cine 2x1 5000 | 5000 | ARS | leisure | 0
coca 1.5l 2000 | 2000 | ARS | other | 0
*pan* 500 | 500 | ARS | groceries | 0
cien mil de alquiler | 100000 | ARS | home | 0
nafta 45 litros 60000 | 60000 | ARS | transport | 0
30 facturas $4500 | 4500 | ARS | dining | 0
alquiler marzo 2026 300000 | 300000 | ARS | home | 0
12,5 marzo pan | 12.5 | ARS | groceries | 0
pan 800 mar 10 | 800 | ARS | groceries | 3
"""
ENGLISH = """
coffee 4.50 | 4.50 | USD | dining | 0
coffee 4.50 yesterday | 4.50 | USD | dining | 1
spent $12 on lunch | 12 | USD | dining | 0
paid $1,200.00 rent | 1200.00 | USD | home | 0
rent 1,200 | 1200 | USD | home | 0
$1,234,567.89 house | 1234567.89 | USD | other | 0
groceries 85.3 | 85.3 | USD | groceries | 0
groceries 85 dollars | 85 | USD | groceries | 0
twenty five dollars on lunch | 25 | USD | dining | 0
twenty-five dollars on lunch | 25 | USD | dining | 0
five bucks coffee | 5 | USD | dining | 0
one hundred and twenty dollars shoes | 120 | USD | clothing | 0
two thousand dollars flight | 2000 | USD | travel | 0
2k flight | 2000 | USD | travel | 0
gas 40 last night | 40 | USD | transport | 1
dinner 60 eur 3 days ago | 60 | EUR | dining | 3
a week ago dentist 200 | 200 | USD | health | 7
£20 pub | 20 | GBP | dining | 0
20 pounds pub | 20 | GBP | dining | 0
movie 15 on saturday | 15 | USD | leisure | 6
uber 18.75 last monday | 18.75 | USD | transport | 4
bought books for 30 | 30 | USD | leisure | 0
03/12 parking 8 | 8 | USD | transport | 1
march 1st rent $1500 | 1500 | USD | home | 12
rent $1500 on march 1, 2026 | 1500 | USD | home | 12
2 coffees $9 | 9 | USD | dining | 0
pharmacy 22.10 today | 22.10 | USD | health | 0
vet $75 | 75 | USD | pets | 0
spotify 10.99 | 10.99 | USD | subscriptions | 0
taxi 15 at 5pm | 15 | USD | transport | 0
haircut $35 this morning | 35 | USD | beauty | 0
"""
ELSEWHERE = [
    (MX, "tacos 1,500", "1500", "MXN"),
    (MX, "tacos $1,500.50", "1500.50", "MXN"),
    (ES, "cena 1.500,50", "1500.50", "EUR"),
    (ES, "cena 1.500", "1500", "EUR"),
    (GB, "lunch 12.50", "12.50", "GBP"),
    (GB, "rent £1,250", "1250", "GBP"),
]
# text | why
QUESTIONS = """
gasté -5 | number
pan -500 | number
pan $-500 | number
-$500 pan | number
pan −500 | number
1e9 | number
gasté 1e9 en pan | number
12,5,5 | number
pan 12.5.5 | number
pan 1.23.456 | number
pan 1,234,56 | number
pan 1.2345 | number
pan 1.234,567 | number
pan 1,500 | number
pan 1'500 | number
pan 1 500 | number
pan 0500 | number
pan 00 | number
pan .50 | number
pan $.50 | number
pan 5² | number
pan ½ | number
pan ①② | number
pan ١٢ | number
pan १२ | number
pan \u202e005\u202c | number
pan 5️⃣0️⃣ | number
pan 500-600 | number
pan 500+300 | number
pan 3x500 | number
pan 500x3 | number
pan 500 x 3 | number
pan 500/2 | number
pan #500 | number
2 mil 500 pan | number
2 mil quinientos pan | number
dos mil y pan cien mil mil | several
0,00 | size
pan 0 | size
pan $0.00 | size
pan 99999999999 | number
pan 4111111111111111 | number
pan 20.000.000.000 | size
pan | amount
compré pan | amount
dos cafés | amount
dos palos | amount
pan 2kg | amount
pan 500 leche 300 | several
pan 500, leche 300, total 800 | several
tenía 1000, gasté 500 | several
pan 500, 300 | several
pan 500, leche 12,5,5 | number
cena 20 usd y taxi 15 | currency
peugeot 208, patente 50000 | several
cumple de 15, regalo 5000 | several
cafe 15 medialunas 20 | several
entre 500 y 600 | number
pagué con 1000 y me dieron 200 | income
$20 nafta 15 almuerzo | several
20 usd taxi 15 | several
almuerzo $900 propina 20 | several
pan 500 cada uno | spread
pan 500 c/u | spread
$500 taxi dos veces | spread
$20 coffee twice | spread
$20 coffee 3 times | spread
gasté más de 500 | spread
pan menos de 500 | spread
tele 6 cuotas de 50000 | spread
netflix 5000 por mes | spread
cena 8000 por persona | spread
cena 8000 con 10% de propina | number
500 y medio | spread
usd uber 12.50 | currency
compré dólares 50000 | currency
usd 50 euros | currency
cobré 5000 | income
me devolvieron 500 | income
vendí la bici 90000 | income
me regalaron 500 | income
me prestaron 500 | income
Juan me transfirió 500 | income
mi hermana me dio 500 | income
Anna lent me 500 | income
no gasté 500 | not
no me cobraron 500 de envío | not
no llegué a pagar 500 | not
ni 500 gasté | not
sin gastar 500 | not
hay que pagar 500 de luz | not
falta pagar 500 | not
pagaré 500 de luz | not
gastaría 500 | not
never paid 500 | not
I need to pay 500 | not
casi gasto 500 | not
voy a gastar 500 | not
presupuesto 5000 | not
mañana gasto 500 | future
super 4500 2026-12-31 | future
el lunes que viene pago 500 | future
el próximo lunes luz 500 | future
next monday 500 | future
el finde 500 | days
el fin de semana asado 9000 | days
el otro lunes pan 500 | days
ayer o anteayer pan 500 | days
gasté 1000000000 en todo | number
2 cafés | number
12 facturas | number
5 euros 20 | number
$5 20 | number
100 pesos con 20 | number
100 pesos con 50 centavos | number
50 centavos | number
12 con 50 | number
veinte con cincuenta | number
cien cincuenta | number
dos cincuenta | number
500 a 600 | number
500 o 600 | number
pan 500 300 | number
2 kg de papas a 500 | spread
papas 500 el kilo | spread
cambié 100 usd a 1200 | number
cena 30 más iva | spread
cena 30 + iva | spread
dni 30123456 | number
ruta 40 | number
talle 42 | number
3 gambas | number
¿pan 500? | not
~500~ 600 pan | number
5OO pan | number
pan 500 y cien | number
usd500eur | currency
alquiler mayo 2026 | amount
lunch may 12 | amount
lunch march 5 | amount
estacionamiento 1.5 hs | amount
"""
ORDERS = [
    ("total del mes", "total", date(2026, 3, 1), date(2026, 4, 1)),
    ("Total", "total", date(2026, 3, 1), date(2026, 4, 1)),
    ("¿cuánto gasté este mes?", "total", date(2026, 3, 1), date(2026, 4, 1)),
    ("cuanto gaste hoy", "total", TODAY, date(2026, 3, 14)),
    ("total de ayer", "total", date(2026, 3, 12), TODAY),
    ("total de la semana", "total", date(2026, 3, 9), date(2026, 3, 16)),
    ("total de febrero", "total", date(2026, 2, 1), date(2026, 3, 1)),
    ("total de diciembre", "total", date(2025, 12, 1), date(2026, 1, 1)),
    ("total mes pasado", "total", date(2026, 2, 1), date(2026, 3, 1)),
    ("total del año", "total", date(2026, 1, 1), date(2027, 1, 1)),
    ("how much did I spend this month?", "total", date(2026, 3, 1), date(2026, 4, 1)),
    ("month total please", None, None, None),
    ("total for last month", "total", date(2026, 2, 1), date(2026, 3, 1)),
    ("borrar último", "undo", TODAY, TODAY),
    ("Borrar el último gasto", "undo", TODAY, TODAY),
    ("delete last", "undo", TODAY, TODAY),
    ("undo", "undo", TODAY, TODAY),
    ("exportar", "export", date(2026, 3, 1), date(2026, 4, 1)),
    ("exportar febrero", "export", date(2026, 2, 1), date(2026, 3, 1)),
    ("export january 2026", "export", date(2026, 1, 1), date(2026, 2, 1)),
    ("excel", "export", date(2026, 3, 1), date(2026, 4, 1)),
    ("ayuda", "help", TODAY, TODAY),
    ("Hola!", "help", TODAY, TODAY),
    ("help", "help", TODAY, TODAY),
]


def rows(table: str) -> list[tuple[str, ...]]:
    return [tuple(cell.strip() for cell in line.split("|")) for line in table.strip().splitlines()]


CERTAIN = [(AR, *row) for row in rows(SPANISH)] + [(US, *row) for row in rows(ENGLISH)]


@pytest.mark.parametrize(
    ("region", "text", "amount", "currency", "category", "ago"),
    CERTAIN,
    ids=[f"{at:03}" for at in range(len(CERTAIN))],
)
def test_an_expense_is_read(
    region: object, text: str, amount: str, currency: str, category: str, ago: str
) -> None:
    """B57"""
    spent = read(text, TODAY, region)  # type: ignore[arg-type]  # pytest's tables are untyped
    assert isinstance(spent, Spent), spent
    told = (spent.amount, spent.currency, spent.category, (TODAY - spent.on).days)
    assert told == (Decimal(amount), currency, category, int(ago))


@pytest.mark.parametrize(("region", "text", "amount", "currency"), ELSEWHERE)
def test_numbers_are_read_as_the_country_writes_them(
    region: object, text: str, amount: str, currency: str
) -> None:
    """B57"""
    spent = read(text, TODAY, region)  # type: ignore[arg-type]  # pytest's tables are untyped
    assert isinstance(spent, Spent)
    assert (spent.amount, spent.currency) == (Decimal(amount), currency)


@pytest.mark.parametrize(
    ("text", "why"), rows(QUESTIONS), ids=[f"{at:03}" for at in range(len(rows(QUESTIONS)))]
)
def test_a_doubt_is_asked_about(text: str, why: str) -> None:
    """B57"""
    text = text.replace("\\u202e", "\u202e").replace("\\u202c", "\u202c")
    asked = read(text, TODAY, AR)
    assert isinstance(asked, Question), asked
    assert asked.why == why


@pytest.mark.parametrize(("text", "wish", "since", "until"), ORDERS)
def test_an_order_is_told_from_an_expense(
    text: str, wish: str | None, since: date, until: date
) -> None:
    found = read(text, TODAY, AR)
    if wish is None:
        assert isinstance(found, Question)
        return
    assert isinstance(found, Order), found
    assert (found.wish, found.since, found.until) == (wish, since, until)


def test_there_are_enough_phrases() -> None:
    assert len(CERTAIN) + len(ELSEWHERE) + len(rows(QUESTIONS)) + len(ORDERS) >= 150


@pytest.mark.parametrize(
    "text", ["9" * 4096, "5 " * 2048, "a" * 4096, "-" * 4096, "1," * 2048, "mil " * 1024]
)
def test_four_thousand_characters_are_answered_with_a_question(text: str) -> None:
    """B57"""
    assert isinstance(read(text, TODAY, AR), Question)


@given(st.text(max_size=80))
@example("gasté \u0130 500")
@example("\ud800 5")
@example("5\u0660")
def test_any_text_is_read_without_an_accident(text: str) -> None:
    """B57"""
    found = read(text, TODAY, AR)
    if isinstance(found, Spent):
        assert 0 < found.amount < 1_000_000_000
        assert found.amount == round(found.amount, 2)


@given(
    st.integers(1, 99_999_999),
    st.sampled_from(["gasté {} en pan", "pan {}", "$ {} pan", "{} pesos de pan"]),
)
def test_what_is_written_the_usual_way_comes_back_exactly(cents: int, frame: str) -> None:
    whole, rest = divmod(cents, 100)
    amount = Decimal(cents) / 100
    for written in (f"{whole},{rest:02}", f"{whole:,}".replace(",", ".") + f",{rest:02}"):
        found = read(frame.format(written), TODAY, AR)
        assert isinstance(found, Spent)
        assert found.amount == amount


WORDS = """
pan 500 1.500 1,500 12,5 $ usd euros y con mil a 2 cafés el 12 / ayer - x cada 0 00 1e3 % 20 pesos
3 kg lucas centavos de en + la docena 10:30 hs march 5 mayo 2026 12/03 .5 7, am days ago
"""
BITS = WORDS.split()
WORTH = {Decimal(each) for each in ("500", "1500", "12.5", "2", "12", "20", "3", "5", "2026", "7")}


@given(st.lists(st.sampled_from(BITS), min_size=1, max_size=6).map(" ".join))
@example("12,5 march")
@example("mayo 10:30")
@example("12,5 hs")
@example("7, 5 days ago")
def test_no_part_of_a_number_is_ever_taken_for_the_amount(text: str) -> None:
    """B57"""
    found = read(text, TODAY, AR)
    if isinstance(found, Spent):
        assert found.amount in WORTH | {each * 1_000 for each in (*WORTH, Decimal(1))}, found


def test_a_description_keeps_what_matters() -> None:
    spent = read("Ayer gasté $ 2.500 en el almuerzo con Ana", TODAY, AR)
    assert isinstance(spent, Spent)
    assert spent.description == "almuerzo con Ana"


@pytest.mark.parametrize(
    ("user_id", "wa_id", "country"),
    [
        ("AR.1000000000000001", None, "AR"),
        (None, "5491100000001", "AR"),
        (None, "5215500000001", "MX"),
        (None, "59899000001", "UY"),
        (None, "12125550111", "US"),
        (None, "14165550111", "CA"),
        (None, "18675550111", "CA"),
        (None, "18095550111", "DO"),
        (None, "18495550111", "DO"),
        (None, "17875550111", "PR"),
        (None, "19395550111", "PR"),
        (None, "18765550111", ""),  # Jamaica
        (None, "18005550111", ""),  # free of charge, wherever it is
        (None, "15550001111", ""),  # no area code at all
        ("US.ENT.100", "5491100000001", "US"),
        ("ZZ.1", "34600000001", "ES"),
        (None, None, "AR"),
        (None, "999", "AR"),
    ],
)
def test_a_person_is_somewhere(user_id: str | None, wa_id: str | None, country: str) -> None:
    assert region_of(user_id, wa_id).country == country


def test_no_area_code_is_of_two_countries() -> None:
    codes = [*UNITED_STATES, *CANADA, *DOMINICAN_REPUBLIC, *PUERTO_RICO]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch("[2-9][0-8][0-9]", code) for code in codes)


@pytest.mark.parametrize("number", ["18765550111", "15550001111"])
@pytest.mark.parametrize("text", ["lunch 20", "lunch $20", "lunch 20 dollars", "almuerzo 20 pesos"])
def test_whose_dollar_it_is_is_asked_and_never_guessed(number: str, text: str) -> None:
    assert read(text, TODAY, region_of(None, number)) == Question("currency")


@pytest.mark.parametrize("text", ["lunch 20 usd", "lunch us$20", "usd 20 dollars lunch"])
def test_a_currency_that_is_told_needs_no_country(text: str) -> None:
    found = read(text, TODAY, SOMEWHERE)
    assert isinstance(found, Spent)
    assert (found.amount, found.currency) == (20, "USD")


@pytest.mark.parametrize(
    ("country", "text", "currency"),
    [
        ("CA", "lunch 20", "CAD"),
        ("CA", "lunch $20", "CAD"),
        ("CA", "lunch 20 dollars", "CAD"),
        ("CA", "lunch 20 usd", "USD"),
        ("AU", "lunch 20 bucks", "AUD"),
        ("DO", "colmado 500", "DOP"),
        ("DO", "colmado rd$500", "DOP"),
        ("DO", "colmado 500 pesos", "DOP"),
        ("DO", "colmado 20 dolares", "USD"),
        ("AR", "cena 500 pesos dominicanos", "DOP"),
        ("PR", "almuerzo 20 dolares", "USD"),
        ("GB", "lunch 20 dollars", "USD"),
    ],
)
def test_a_dollar_is_that_of_where_one_is(country: str, text: str, currency: str) -> None:
    found = read(text, TODAY, REGIONS[country])
    assert isinstance(found, Spent)
    assert found.currency == currency


@pytest.mark.parametrize("country", ["CA", "PR"])
def test_where_both_orders_are_in_use_a_date_that_may_be_two_is_asked_about(country: str) -> None:
    assert read("lunch 20 usd 3/4", TODAY, REGIONS[country]) == Question("days")
    for text in ("lunch 20 usd 13/2", "lunch 20 usd 2/13", "lunch 20 usd 2/2"):
        found = read(text, TODAY, REGIONS[country])
        assert isinstance(found, Spent)
        assert found.on.month == 2


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("gasté 2500 en supermercado", "es"),
        ("spent 20 on lunch", "en"),
        ("uber 12.50 usd", "es"),
        ("delete last", "en"),
        ("total del mes", "es"),
    ],
)
def test_a_person_is_answered_in_their_language(text: str, language: str) -> None:
    assert language_of(text, AR) == language
