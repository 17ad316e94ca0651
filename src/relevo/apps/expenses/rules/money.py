"""Currencies as people write them, before a number or after it."""

from __future__ import annotations

import re

from relevo.apps.expenses.rules.text import words

CODES = words("ARS USD EUR GBP BRL MXN CLP COP UYU PYG PEN BOB GTQ CRC JPY CAD AUD CHF VES")

PESO = "peso"
"""Stands for the money of wherever the person is: `$ 100`, `100 pesos`."""

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
    "ca$": "CAD",
    "a$": "AUD",
}
_WORDS = {
    "peso": PESO,
    "pesos": PESO,
    "pe": PESO,
    "mangos": PESO,
    "dolar": "USD",
    "dolares": "USD",
    "dollar": "USD",
    "dollars": "USD",
    "buck": "USD",
    "bucks": "USD",
    "verdes": "USD",
    "euro": "EUR",
    "euros": "EUR",
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
_CODES = {code.lower(): code for code in CODES}

BEFORE: dict[str, str] = _SIGNS | _CODES
AFTER: dict[str, str] = {**_SIGNS, **_WORDS, **_CODES}
# Of their countries, whatever the sender's is: "100 pesos mexicanos".
NATIONS = {
    re.compile(r"pesos? argentinos?"): "ARS",
    re.compile(r"pesos? mexicanos?"): "MXN",
    re.compile(r"pesos? chilenos?"): "CLP",
    re.compile(r"pesos? colombianos?"): "COP",
    re.compile(r"pesos? uruguayos?"): "UYU",
    re.compile(r"canadian dollars?"): "CAD",
    re.compile(r"australian dollars?"): "AUD",
}


def money_of(mark: str, home: str) -> str:
    """The code that a mark stands for, where `home` is the money of the country."""
    return home if mark == PESO else mark
