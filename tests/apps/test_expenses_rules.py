"""What is not certain is asked about: deletions, money that is not kept, multiples, vague days."""

from __future__ import annotations

from datetime import date

import pytest

from relevo.apps.expenses import texts
from relevo.apps.expenses.rules import REGIONS, Question, Spent, after, before, month_of, read

TODAY = date(2026, 3, 13)  # a Friday

DELETIONS = [
    "borrar último 500",
    "delete last 500",
    "borrar pan 500",
    "eliminar 500",
    "undo 500",
    "por favor borrá el de 500",
    "pan 500 no, borralo",
]
MONEY = [
    "100 bolivares",
    "pan 500 libras",
    "500 libras esterlinas",
    "libras 500",
    "100 usdt",
    "$100 usdt",
    "500btc",
    "pan 500 btc",
    "btc 500",
    "500 en rublos",
    "₹ 500 pan",
    "500 ₽ pan",
    "100 pesos cubanos",
    "100 dólares neozelandeses",
    "cien dólares neozelandeses",
    "100 mexicanos",
]
DAYS = [
    "pan 500 hace 1000000000 días",
    "pan 500 hace 1.000 días",
    "pan 500 hace siete días",
    "pan 500 hace un mes",
    "pan 500 la semana pasada",
    "el lunes de la semana pasada pan 500",
    "pan 500 el otro día",
    "bread $5 last month",
    "bread $5 two months ago",
]


def why(text: str) -> str:
    found = read(text, TODAY)
    assert isinstance(found, Question), found
    return found.why


@pytest.mark.parametrize("text", DELETIONS)
def test_a_deletion_never_writes_an_expense(text: str) -> None:
    assert why(text) == "undo"
    assert "borrar último" in texts.question("undo", "es", REGIONS["AR"])


def test_a_question_shows_a_number_as_the_person_writes_them() -> None:
    assert "1.234,50" in texts.question("number", "es", REGIONS["AR"])
    assert "1,234.50" in texts.question("number", "es", REGIONS["MX"])
    assert "1,234.50" in texts.question("number", "en", REGIONS["US"])


@pytest.mark.parametrize("text", MONEY)
def test_money_that_is_not_kept_is_never_taken_for_that_of_home(text: str) -> None:
    assert why(text) == "currency"


@pytest.mark.parametrize("text", ["pan 500 x2", "pan 500 x3", "x2 pan 500", "coca x6u 5000"])
def test_so_many_times_is_asked_about_however_it_is_spaced(text: str) -> None:
    assert why(text) == why("pan 500 x 2") == "number"


@pytest.mark.parametrize("text", DAYS)
def test_a_vague_day_is_not_today(text: str) -> None:
    assert why(text) == "days"


@pytest.mark.parametrize("text", ["pan 500 el mes que viene", "pan 500 la próxima semana"])
def test_a_day_to_come_is_not_today(text: str) -> None:
    assert why(text) == "future"


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("goma de borrar 500", "ARS"),
        ("2 libras de carne $500", "ARS"),
        ("1 corona $900", "ARS"),
        ("corona 900", "ARS"),
        ("tacos mexicanos 500", "ARS"),
        ("viaje a córdoba 500", "ARS"),
        ("papas x2kg 1500", "ARS"),
        ("hace un rato pan 500", "ARS"),
        ("100 pesos mexicanos", "MXN"),
        ("100 dólares canadienses", "CAD"),
    ],
)
def test_words_that_only_look_so_stay_expenses(text: str, currency: str) -> None:
    found = read(text, TODAY)
    assert isinstance(found, Spent), found
    assert (found.currency, found.on) == (currency, TODAY)


def test_no_month_is_left_out() -> None:
    for month in (date(2027 + n // 12, 1 + n % 12, 1) for n in range(24)):
        assert before(after(month)) == after(before(month)) == month
        assert before(month.replace(day=28)) == before(month)


def test_a_month_is_one_of_the_years_that_are_kept() -> None:
    assert month_of("2026-03") == month_of("2026-3") == date(2026, 3, 1)
    assert after(date(2100, 12, 1)) == date(2101, 1, 1)
    for odd in ("9999-12", "0001-01", "1999-12", "2101-01", "2026-13", "2026-00", "march", ""):
        assert month_of(odd) is None
