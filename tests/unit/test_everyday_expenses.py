"""Everyday messages of four countries: read without a question, and never with a wrong amount."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from relevo.apps.expenses.rules import (
    REGIONS,
    Change,
    Order,
    Question,
    Several,
    Spent,
    read,
)

TODAY = date(2026, 3, 13)  # a Friday

# text | amounts | currency | category of the first | days ago
ARGENTINA = """
gasté 15 mil en el super | 15000 | ARS | groceries | 0
me gasté 23.450 en la verdulería | 23450 | ARS | groceries | 0
almuerzo con los pibes 12 lucas | 12000 | ARS | dining | 0
pagué la luz, 23.450 | 23450 | ARS | utilities | 0
le di 500 al pibe del delivery | 500 | ARS | dining | 0
media docena de facturas 4500 | 4500 | ARS | dining | 0
medio kilo de pan 1800 | 1800 | ARS | groceries | 0
1/2 kg de pan 1800 | 1800 | ARS | groceries | 0
1/4 de helado 6000 | 6000 | ARS | dining | 0
kilo y medio de asado 15000 | 15000 | ARS | dining | 0
2 cafés 5000 | 5000 | ARS | dining | 0
3 empanadas y una coca 7500 | 7500 | ARS | dining | 0
1 pizza 9800 | 9800 | ARS | dining | 0
pizza para 4, 18000 | 18000 | ARS | dining | 0
cena para 4 personas 32000 | 32000 | ARS | dining | 0
celular 15000 | 15000 | ARS | utilities | 0
teléfono 8.900 | 8900 | ARS | utilities | 0
cuota del colegio 90000 | 90000 | ARS | education | 0
cuota del auto 250.000 | 250000 | ARS | other | 0
abono mensual del gimnasio 25000 | 25000 | ARS | health | 0
dos lucas de caramelos | 2000 | ARS | other | 0
quince lucas de nafta | 15000 | ARS | transport | 0
una luca en el kiosco | 1000 | ARS | dining | 0
luca y media de pan | 1500 | ARS | groceries | 0
3 lucas y media en el chino | 3500 | ARS | groceries | 0
tres mil quinientos en el chino | 3500 | ARS | groceries | 0
cargué la sube con 5000 | 5000 | ARS | transport | 0
cargué nafta 45 mil | 45000 | ARS | transport | 0
anotame 3200 de farmacia | 3200 | ARS | health | 0
quiero anotar 4500 de la veterinaria | 4500 | ARS | pets | 0
agregá un gasto de 2000 en el cine | 2000 | ARS | leisure | 0
registrar 12000 peluquería | 12000 | ARS | beauty | 0
ayer a la tarde merienda con mamá 9500 | 9500 | ARS | dining | 1
el sábado cancha 20000 | 20000 | ARS | leisure | 6
anoche birras con los chicos 18 lucas | 18000 | ARS | dining | 1
zapatillas nuevas 120 lucas | 120000 | ARS | clothing | 0
regalo para el cumple de sofi 15000 | 15000 | ARS | gifts | 0
expensas marzo 180.000 | 180000 | ARS | home | 0
alquiler $ 450.000,00 | 450000 | ARS | home | 0
netflix 8999,99 | 8999.99 | ARS | subscriptions | 0
mercado libre 34.567 funda del celu | 34567 | ARS | other | 0
le pagué 20000 al plomero | 20000 | ARS | home | 0
tuve que pagar 3000 de estacionamiento | 3000 | ARS | transport | 0
hoy gasté 2000 pesos en el bondi | 2000 | ARS | transport | 0
super 45mil | 45000 | ARS | groceries | 0
uber al laburo 4300 | 4300 | ARS | transport | 0
sanguchito de milanesa 7000 mangos | 7000 | ARS | dining | 0
cena 8000 propina incluida | 8000 | ARS | dining | 0
remera 18000 con descuento | 18000 | ARS | clothing | 0
pan 500, leche 300 y queso 1200 | 500+300+1200 | ARS | groceries | 0
500 de pan y 300 de leche | 500+300 | ARS | groceries | 0
gasté 2000 en nafta, 500 en peaje y 3000 en almuerzo | 2000+500+3000 | ARS | transport | 0
ayer: taxi 3000 + cena 12000 | 3000+12000 | ARS | transport | 1
"""
MEXICO = """
gasté 250 en el súper | 250 | MXN | groceries | 0
tacos 120 varos | 120 | MXN | dining | 0
cien varos de gasolina | 100 | MXN | transport | 0
gasolina $800 | 800 | MXN | transport | 0
recibo de luz 1,245.50 | 1245.50 | MXN | utilities | 0
la renta 8,500 pesos | 8500 | MXN | home | 0
uber al aeropuerto $320.75 | 320.75 | MXN | transport | 0
2 tortas y un refresco 145 | 145 | MXN | dining | 0
3 tacos al pastor 66 pesos | 66 | MXN | dining | 0
pagué 350 del internet | 350 | MXN | utilities | 0
despensa 1,830 en soriana | 1830 | MXN | groceries | 0
le eché 500 de gas al coche | 500 | MXN | transport | 0
camión 12 pesos | 12 | MXN | transport | 0
metro $5 | 5 | MXN | transport | 0
chela con los cuates 180 | 180 | MXN | dining | 0
oxxo 87.50 | 87.50 | MXN | groceries | 0
medicinas 430 pesos en farmacias del ahorro | 430 | MXN | health | 0
consulta con el dentista 900 | 900 | MXN | health | 0
colegiatura 4,500 | 4500 | MXN | education | 0
recarga de celular 200 | 200 | MXN | utilities | 0
netflix mensual 219 | 219 | MXN | subscriptions | 0
corte de pelo 150 | 150 | MXN | beauty | 0
croquetas del perro 650 | 650 | MXN | pets | 0
boletos de cine 180 pesos | 180 | MXN | leisure | 0
ayer en la noche cené unos tacos, 95 pesos | 95 | MXN | dining | 1
antier el súper 1200 | 1200 | MXN | groceries | 2
el lunes pagué mil doscientos de agua | 1200 | MXN | groceries | 4
2 mil de la tarjeta del predial | 2000 | MXN | taxes | 0
tenis nike $1,899 | 1899 | MXN | leisure | 0
mandado en el mercado 340 | 340 | MXN | groceries | 0
estacionamiento 45 pesitos | 45 | MXN | transport | 0
propina 50 | 50 | MXN | other | 0
café del starbucks 98 | 98 | MXN | dining | 0
un kilo de tortillas 24 | 24 | MXN | groceries | 0
medio kilo de aguacate 45 | 45 | MXN | groceries | 0
verdura y fruta 215 | 215 | MXN | groceries | 0
agua de garrafón 52 | 52 | MXN | groceries | 0
veterinario de la gata $750 | 750 | MXN | pets | 0
didi 68 | 68 | MXN | transport | 0
comida corrida 110 | 110 | MXN | dining | 0
caseta 163 pesos | 163 | MXN | transport | 0
spotify 129 | 129 | MXN | subscriptions | 0
anota 300 de la tintorería | 300 | MXN | home | 0
me compré unos jeans de 799 | 799 | MXN | clothing | 0
pastel de cumpleaños 420 | 420 | MXN | dining | 0
tacos 90 y refresco 25 | 90+25 | MXN | dining | 0
gas 600, luz 350, agua 180 | 600+350+180 | MXN | transport | 0
amazon 25 usd | 25 | USD | other | 0
hotel en cancún 3,200 mxn | 3200 | MXN | travel | 0
seguro del coche 6,780.00 | 6780 | MXN | taxes | 0
"""
SPAIN = """
café 1,50 | 1.50 | EUR | dining | 0
1,20€ el café | 1.20 | EUR | dining | 0
café con leche 1'40 | 1.40 | EUR | dining | 0
menú del día 12'50 € | 12.50 | EUR | dining | 0
cañas con los colegas 18€ | 18 | EUR | dining | 0
Mercadona 45,67 | 45.67 | EUR | groceries | 0
Mercadona 45,67 € | 45.67 | EUR | groceries | 0
he gastado 30 euros en gasolina | 30 | EUR | transport | 0
me he gastado 60 pavos en zapatillas | 60 | EUR | clothing | 0
he pagado 850 de alquiler | 850 | EUR | home | 0
el alquiler 1.100 euros | 1100 | EUR | home | 0
billete de metro 1,50 | 1.50 | EUR | transport | 0
abono transporte 21,80€ | 21.80 | EUR | transport | 0
parking 2h 5€ | 5 | EUR | transport | 0
2 entradas de cine 17,80 | 17.80 | EUR | leisure | 0
cine 2 entradas 14€ | 14 | EUR | leisure | 0
compra del súper 78,32 | 78.32 | EUR | groceries | 0
la compra semanal 92,10 | 92.10 | EUR | groceries | 0
ayer cené sushi por 24€ | 24 | EUR | dining | 1
anoche copas 35 euros | 35 | EUR | dining | 1
el viernes pasado restaurante 48,50 | 48.50 | EUR | dining | 7
factura de la luz 67,89 | 67.89 | EUR | utilities | 0
gas natural 43,20 | 43.20 | EUR | utilities | 0
móvil 15€ | 15 | EUR | utilities | 0
fibra 30,90 | 30.90 | EUR | utilities | 0
gimnasio 39,90 mensual | 39.90 | EUR | health | 0
farmacia: 8,75 | 8.75 | EUR | health | 0
peluquería 22 | 22 | EUR | beauty | 0
vaqueros en zara 29,95 | 29.95 | EUR | clothing | 0
libros de texto 120 euros | 120 | EUR | education | 0
taxi al aeropuerto 33 | 33 | EUR | transport | 0
cabify 11,40 | 11.40 | EUR | transport | 0
vuelo a Lisboa 89,99 | 89.99 | EUR | travel | 0
tren a valencia 27.50 | 27.50 | EUR | transport | 0
multa 100€ | 100 | EUR | taxes | 0
IBI 430 | 430 | EUR | taxes | 0
pienso del gato 19,99 | 19.99 | EUR | pets | 0
regalo de mamá 40 eurillos | 40 | EUR | gifts | 0
flores 15 euros ayer | 15 | EUR | gifts | 1
bocata y refresco 6,50 | 6.50 | EUR | dining | 0
3 cañas 7,50 | 7.50 | EUR | dining | 0
kebab 5 euritos | 5 | EUR | dining | 0
hbo 9,99 | 9.99 | EUR | subscriptions | 0
comunidad de vecinos 65 | 65 | EUR | home | 0
seguro de hogar 210,35 | 210.35 | EUR | taxes | 0
apúntame 20 de gasolina | 20 | EUR | transport | 0
fruta 8,30 y pan 1,20 | 8.30+1.20 | EUR | groceries | 0
taxi 12€, cena 30€ y copas 18€ | 12+30+18 | EUR | transport | 0
cien euros en ropa | 100 | EUR | clothing | 0
veinte pavos de propina | 20 | EUR | other | 0
"""
UNITED_STATES = """
coffee 4.75 | 4.75 | USD | dining | 0
grabbed coffee, 4.75 | 4.75 | USD | dining | 0
spent 32.50 on groceries | 32.50 | USD | groceries | 0
paid 1200 for rent | 1200 | USD | home | 0
uber home 14 | 14 | USD | transport | 0
$7 beer | 7 | USD | dining | 0
lunch was 11.25 | 11.25 | USD | dining | 0
took me 40 bucks to fill the tank | 40 | USD | transport | 0
netflix monthly 15.99 | 15.99 | USD | subscriptions | 0
gym membership $29.99 | 29.99 | USD | health | 0
2 tickets for 30 | 30 | USD | leisure | 0
3 beers 18 | 18 | USD | dining | 0
2 large pizzas 25.50 | 25.50 | USD | dining | 0
half a dozen eggs 4 | 4 | USD | groceries | 0
phone bill 45 | 45 | USD | utilities | 0
phone 45 | 45 | USD | utilities | 0
just spent 60 at target | 60 | USD | other | 0
i bought shoes for 89.90 | 89.90 | USD | clothing | 0
gas $38.20 | 38.20 | USD | transport | 0
had dinner out yesterday, 54 | 54 | USD | dining | 1
movie night 22 last friday | 22 | USD | leisure | 7
dentist 150 | 150 | USD | health | 0
pharmacy $12.49 | 12.49 | USD | health | 0
dog food 35 | 35 | USD | pets | 0
birthday gift for mom $50 | 50 | USD | gifts | 0
electric bill $87.12 | 87.12 | USD | utilities | 0
internet 60 bucks | 60 | USD | utilities | 0
costco run 213.44 | 213.44 | USD | groceries | 0
amazon order $19.99 | 19.99 | USD | other | 0
log 15 for parking | 15 | USD | transport | 0
add 8 dollars for a sandwich | 8 | USD | dining | 0
want to add 20 for lunch | 20 | USD | dining | 0
i need to log 12 for coffee | 12 | USD | dining | 0
takeout 27 tonight | 27 | USD | dining | 0
train ticket 9.50 this morning | 9.50 | USD | transport | 0
car wash 18 | 18 | USD | transport | 0
income tax 300 | 300 | USD | taxes | 0
textbooks 140 | 140 | USD | education | 0
flight to Denver $212.60 | 212.60 | USD | travel | 0
airbnb 340 usd | 340 | USD | travel | 0
two hundred dollars for a jacket | 200 | USD | clothing | 0
groceries 54 and gas 40 | 54+40 | USD | groceries | 0
lunch 12, coffee 4 and parking 8 | 12+4+8 | USD | dining | 0
spent 20 on gas and 15 on lunch | 20+15 | USD | transport | 0
"""
BRITAIN = """
20 quid on drinks | 20 | GBP | dining | 0
£3.20 latte | 3.20 | GBP | dining | 0
a fiver on crisps | 5 | GBP | groceries | 0
spent a tenner on lunch | 10 | GBP | dining | 0
tesco shop £43.15 | 43.15 | GBP | groceries | 0
99p chocolate bar | 0.99 | GBP | groceries | 0
council tax £142 | 142 | GBP | taxes | 0
tube 2.80 | 2.80 | GBP | transport | 0
petrol 55 quid yesterday | 55 | GBP | transport | 1
meal deal £3.90 | 3.90 | GBP | dining | 0
fish and chips 11.50 | 11.50 | GBP | dining | 0
train to leeds £48.20, coffee £3 | 48.20+3 | GBP | transport | 0
"""
EVERYDAY = [
    (country, *(cell.strip() for cell in line.split("|")))
    for country, table in (
        ("AR", ARGENTINA),
        ("MX", MEXICO),
        ("ES", SPAIN),
        ("US", UNITED_STATES),
        ("GB", BRITAIN),
    )
    for line in table.strip().splitlines()
]


def spents_of(text: str, country: str) -> tuple[Spent, ...]:
    found = read(text, TODAY, REGIONS[country])
    match found:
        case Spent():
            return (found,)
        case Several():
            return found.spents
        case _:
            raise AssertionError(found)


def test_there_are_two_hundred() -> None:
    assert len(EVERYDAY) >= 200


@pytest.mark.parametrize(
    ("country", "text", "amounts", "currency", "category", "ago"),
    EVERYDAY,
    ids=[f"{row[0]}-{at:03}" for at, row in enumerate(EVERYDAY)],
)
def test_an_everyday_message_is_read(
    country: str, text: str, amounts: str, currency: str, category: str, ago: str
) -> None:
    spents = spents_of(text, country)
    assert [spent.amount for spent in spents] == [Decimal(each) for each in amounts.split("+")]
    assert {spent.currency for spent in spents} == {currency}
    assert {(TODAY - spent.on).days for spent in spents} == {int(ago)}
    assert spents[0].category == category


@pytest.mark.parametrize(
    ("text", "days"),
    [("ayer pan 500 y hoy leche 300", (1, 0)), ("ayer pan 500, leche 300", (1, 1))],
)
def test_each_part_may_have_a_day_of_its_own(text: str, days: tuple[int, ...]) -> None:
    assert tuple((TODAY - each.on).days for each in spents_of(text, "AR")) == days


@pytest.mark.parametrize(
    ("text", "descriptions"),
    [
        ("pan y leche 500, queso 300", ("pan y leche", "queso")),
        ("500 de pan y leche, 300 de queso", ("pan y leche", "queso")),
        ("- pan 500\n- leche 300\n- queso 1200", ("pan", "leche", "queso")),
        ("taxi 12; cena 30", ("taxi", "cena")),
        ("treinta y cinco de pan y cuarenta de leche", ("pan", "leche")),
    ],
)
def test_what_belongs_to_which_amount(text: str, descriptions: tuple[str, ...]) -> None:
    assert tuple(each.description for each in spents_of(text, "AR")) == descriptions


TRAPS = """
cena 8000, éramos 4
super 5000 y pagué con 10000
taxi 900, mesa 4
tele 50000, 6 cuotas
fui al super, gasté 500 y me quedan 200
remera 8000, antes 10000
colectivo 60, 700
ruta 8, peaje 900
fernet 750, 9000
pan 500, leche -300
gasté 500, me devolvieron 200
pan 500 c/u, leche 300
pan 500, leche 300 cada una
alquiler 500 o 600, luz 300
super 5000, descuento 500
rent was 1200, now 1300
vuelo 1303, 90000
bread 5, milk 3 and $2 change
2 cafés y 3 medialunas
libro de 500 páginas 8000
windows 11 licencia 20000
pan 500, mañana pago luz 3000
gasté 1500 de 2000
12 facturas a 200
iphone 13, funda 5000
"""


@pytest.mark.parametrize("text", TRAPS.strip().splitlines())
def test_a_number_that_may_be_something_else_is_asked_about(text: str) -> None:
    assert isinstance(read(text, TODAY, REGIONS["AR"]), Question)


YESTERDAY = date(2026, 3, 12)
CHANGES = [
    ("no, eran 600", Change(Decimal(600))),
    ("No, fueron 600.", Change(Decimal(600))),
    ("perdón, 600", Change(Decimal(600))),
    ("eran 600", Change(Decimal(600))),
    ("no, eran 600 dólares", Change(Decimal(600), "USD")),
    ("corregir último a 700", Change(Decimal(700), names_last=True)),
    ("corregí el último a 1.200,50", Change(Decimal("1200.50"), names_last=True)),
    ("cambiar el monto a 700", Change(Decimal(700))),
    ("corregir 2 a 700", Change(Decimal(700), target="2")),
    ("corregir leche a 700", Change(Decimal(700), target="leche")),
    ("no, la leche eran 350", Change(Decimal(350), target="leche")),
    ("era en dólares", Change(currency="USD")),
    ("moneda usd", Change(currency="USD")),
    ("categoría salud", Change(category="health")),
    ("categoría farmacia", Change(category="health")),
    ("cambiar la categoría del último a ropa", Change(category="clothing", names_last=True)),
    ("fue ayer", Change(on=YESTERDAY)),
    ("fecha 12/3", Change(on=YESTERDAY)),
    ("sorry, it was 12.50", Change(Decimal("12.50"))),
    ("change last to 700", Change(Decimal(700), names_last=True)),
    ("make it 700", Change(Decimal(700))),
    ("change milk to 3.50", Change(Decimal("3.50"), target="milk")),
    ("it was in euros", Change(currency="EUR")),
    ("category health", Change(category="health")),
]


@pytest.mark.parametrize(("text", "change"), CHANGES)
def test_a_correction_is_understood(text: str, change: Change) -> None:
    assert read(text, TODAY, REGIONS["AR"]) == change


@pytest.mark.parametrize(
    "text", ["fueron 600", "la cena fue 8000", "cambio de aceite 9000", "eran 600 de pan"]
)
def test_what_only_looks_like_a_correction_is_an_expense(text: str) -> None:
    assert isinstance(read(text, TODAY, REGIONS["AR"]), Spent)


@pytest.mark.parametrize("text", ["no 500, 600", "no, gracias", "no gasté 600", "editar"])
def test_what_corrects_nothing_for_certain_is_asked_about(text: str) -> None:
    assert isinstance(read(text, TODAY, REGIONS["AR"]), Question)


@pytest.mark.parametrize(
    ("text", "wish", "since", "period", "category", "file", "target"),
    [
        ("borrar 2", "undo", TODAY, "month", "", "", "2"),
        ("borrar leche", "undo", TODAY, "month", "", "", "leche"),
        ("delete milk", "undo", TODAY, "month", "", "", "milk"),
        ("borrar todo", "undo", TODAY, "month", "", "", "*"),
        ("borralo", "undo", TODAY, "month", "", "", ""),
        ("gastos de la semana", "total", date(2026, 3, 9), "week", "", "", ""),
        ("semana pasada", "total", date(2026, 3, 2), "week", "", "", ""),
        ("cuánto gasté en salud", "total", date(2026, 3, 1), "month", "health", "", ""),
        ("total salud de febrero", "total", date(2026, 2, 1), "month", "health", "", ""),
        (
            "how much did I spend on food last week?",
            *("total", date(2026, 3, 2), "week", "dining", "", ""),
        ),
        ("weekly report", "total", date(2026, 3, 9), "week", "", "", ""),
        ("exportar csv", "export", date(2026, 3, 1), "month", "", "csv", ""),
        ("exportar csv de febrero", "export", date(2026, 2, 1), "month", "", "csv", ""),
        ("excel", "export", date(2026, 3, 1), "month", "", "xlsx", ""),
        ("mis gastos", "page", date(2026, 3, 1), "month", "", "", ""),
        ("my expenses", "page", date(2026, 3, 1), "month", "", "", ""),
    ],
)
def test_a_report_or_a_deletion_says_of_what(
    text: str, wish: str, since: date, period: str, category: str, file: str, target: str
) -> None:
    found = read(text, TODAY, REGIONS["AR"])
    assert isinstance(found, Order)
    told = (found.wish, found.since, found.period, found.category, found.file, found.target)
    assert told == (wish, since, period, category, file, target)
