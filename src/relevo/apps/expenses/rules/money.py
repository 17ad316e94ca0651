"""Currencies as people write them, before a number or after it."""

from __future__ import annotations

import re

from relevo.apps.expenses.rules.text import words

CODES = words("ARS USD EUR GBP BRL MXN CLP COP UYU PYG PEN BOB GTQ CRC JPY CAD AUD CHF VES DOP")

PESO = "peso"
"""Stands for the money of wherever the person is: `$ 100`, `100 pesos`."""

DOLLAR = "dollar"
"""Stands for the dollar of wherever the person is, or for that of the United States."""
DOLLARS = frozenset({"USD", "CAD", "AUD"})

_SIGNS = {
    "$": PESO,
    "us$": "USD",
    "u$s": "USD",
    "u$d": "USD",
    "usd$": "USD",
    "ar$": "ARS",
    "mx$": "MXN",
    "r$": "BRL",
    "s/": "PEN",
    "s/.": "PEN",
    "€": "EUR",
    "£": "GBP",
    "¥": "JPY",
    "₲": "PYG",
    "rd$": "DOP",
    "ca$": "CAD",
    "a$": "AUD",
}
_WORDS = {
    "peso": PESO,
    "pesos": PESO,
    "pe": PESO,
    "mangos": PESO,
    "pesito": PESO,
    "pesitos": PESO,
    "dolar": DOLLAR,
    "dolares": DOLLAR,
    "dollar": DOLLAR,
    "dollars": DOLLAR,
    "buck": DOLLAR,
    "bucks": DOLLAR,
    "verdes": "USD",
    "euro": "EUR",
    "euros": "EUR",
    "eurillos": "EUR",
    "euritos": "EUR",
    "pound": "GBP",
    "pounds": "GBP",
    "quid": "GBP",
    "real": "BRL",
    "reais": "BRL",
    "reales": "BRL",
    "sol": "PEN",
    "soles": "PEN",
    "guaranies": "PYG",
    "bolivianos": "BOB",
    "quetzales": "GTQ",
    "colones": "CRC",
    "yen": "JPY",
    "yenes": "JPY",
    "francos": "CHF",
}
OTHERS = words(
    "aed afn amd aoa azn bbd bdt bgn bhd bif bmd bnd bsd bwp byn bzd cdf cny cuc cve czk djf dkk "
    "dzd egp etb fjd ghs gmd gnf gyd hkd hnl htg huf idr ils inr iqd irr isk jmd jod kes kgs khr "
    "krw kwd kyd kzt lbp lkr lrd lyd mdl mga mkd mmk mnt mur mvr mwk myr mzn ngn nio nok npr nzd "
    "omr pab pgk pkr pln qar rmb rsd rwf sek sgd srd syp thb tnd ttd twd tzs uah ugx uzs vnd xaf "
    "xcd xof xpf yer zar zmw btc eth ltc usdc usdt xrp bitcoin bitcoins ethereum sats satoshis "
    "bolivares rublo rublos ruble rubles rupia rupias rupee rupees yuan yuanes renminbi wones "
    "dirham dirhams dinar dinares dinars lempira lempiras cordobas balboas gourdes forint forints "
    "zloty zlotys shekel shekels baht bahts ringgit naira nairas peseta pesetas"
)
"""Money that we do not write down, wherever it stands."""
NEARBY = words(
    "libra libras esterlinas bolivar colon corona coronas crown crowns krone kroner lira liras "
    "rand rands won lei dong leones sucre sucres franc francs franco guarani boliviano quetzal "
    "dai mad php rub try "
    "argentinos mexicanos chilenos colombianos uruguayos dominicanos cubanos filipinos "
    "canadienses australianos neozelandeses jamaiquinos"
)
"""Words of their own, which after a number may be money: "500 libras"."""
_CODES = {code.lower(): code for code in CODES}

LOCALLY = {
    "MX": {"varo": PESO, "varos": PESO, "baro": PESO, "baros": PESO},
    "ES": {"pavo": "EUR", "pavos": "EUR", "pavito": "EUR", "pavitos": "EUR"},
}
"""Words that are money in one country, and birds or nothing elsewhere."""
BEFORE: dict[str, str] = _SIGNS | _CODES
AFTER: dict[str, str] = {**_SIGNS, **_WORDS, **_CODES}
# Of their countries, whatever the sender's is: "100 pesos mexicanos".
NATIONS = {
    re.compile(r"pesos? argentinos?"): "ARS",
    re.compile(r"pesos? mexicanos?"): "MXN",
    re.compile(r"pesos? chilenos?"): "CLP",
    re.compile(r"pesos? colombianos?"): "COP",
    re.compile(r"pesos? uruguayos?"): "UYU",
    re.compile(r"pesos? dominicanos?"): "DOP",
    re.compile(r"dolares canadienses"): "CAD",
    re.compile(r"dolares australianos"): "AUD",
    re.compile(r"canadian dollars?"): "CAD",
    re.compile(r"australian dollars?"): "AUD",
}


def money_of(mark: str, home: str) -> str:
    """The code that a mark stands for, where `home` is the money of the country.

    Empty where `home` is, and the mark does not say it alone.
    """
    if mark == DOLLAR and home and home not in DOLLARS:
        return "USD"
    return home if mark in (PESO, DOLLAR) else mark


def agreed(mark: str | None, told: str) -> str | None:
    """What two marks of one number say together: `$ 20 usd`; None when they contradict."""
    if mark in (None, PESO) or (mark == DOLLAR and told in DOLLARS):
        return told
    is_so = told in (mark, PESO) or (told == DOLLAR and mark in DOLLARS)
    return mark if is_so else None
