"""The tables of what is proved."""

from __future__ import annotations

from pathlib import Path

from tests.matrix import rows_in, rows_named
from tests.rows import FAULTS
from tests.tables import TITLES, Cell, Result, cells_of, merged, page, told, unproved


def test_every_row_has_a_test() -> None:
    """On which stores, and with which result, the tables tell."""
    assert {*TITLES} - rows_in(Path(__file__).parents[1]) == set()


def test_a_row_is_named_in_a_name_or_a_docstring() -> None:
    assert rows_named("test_f09_resets", "", "") == ["F09"]
    assert rows_named("test_b41_names", "C20, B42: and no secret.", "F01: all") == [
        *("B41", "C20", "B42"),
    ]
    assert rows_named("test_b20_to_b22_json", "", "") == ["B20", "B21", "B22"]
    assert rows_named("test_b08_b10_long", "", "") == ["B08", "B10"]
    assert rows_named("test_keys_in_b64", "", "") == []
    assert rows_named("test_x", "", "F41: a foreign producer") == ["F41"]
    assert rows_named("test_x", "F99 and B99", "") == []


def test_the_worst_of_a_row_is_shown() -> None:
    cell = Cell(passed=2)
    cell.told({"lost": 0, "doubled": 0, "recovery": 1.25}, "")
    cell.told({"lost": None, "doubled": 1, "recovery": 0.5}, "twice as long")

    [line] = told({("F09", "redis"): cell})

    assert line == (
        "| F09 | connections reset every second | redis | 0 | 1 | 1.2 | 2 passed; twice as long |"
    )


def test_what_failed_or_could_not_be_made_is_said() -> None:
    lines = told(
        {
            ("F01", "sqlite"): Cell(passed=1, failed=["test_a"]),
            ("F20", "sqlite"): Cell(unmade=["only root may mount"]),
            ("F33", "any"): Cell(),
        }
    )

    results = [line.split(" | ")[-1] for line in lines]
    assert results == [
        "**failed**: `test_a` |",
        "not tested: only root may mount |",
        "**no test** |",
    ]


def test_other_rows_tell_the_files_that_prove_them() -> None:
    results = [
        Result("a::test_1", [("C39", "edges/test_web.py"), ("F01", "sqlite")], "passed"),
        Result("a::test_2", [("C39", "edges/test_image.py")], "skipped", ["no builder"]),
    ]

    lines = told(cells_of(results))

    assert [line.split(" | ")[-2:] for line in lines] == [
        ["–", "1 passed |"],
        [
            "`edges/test_image.py`, `edges/test_web.py`",
            "1 passed; not tested: no builder |",
        ],
    ]


def test_rows_that_were_left_out_stay_as_they_were() -> None:
    old = ["| F01 | a | sqlite | old |", "| F02 | b | sqlite | old |", "| B01 | c | `x.py` | old |"]
    kept = page([*old, "| C01 | d | `x.py` | old |"], "").splitlines()

    lines = merged(
        kept,
        ["| F01 | a | redis | new |", "| F02 | b | sqlite | new |", "| B01 | c | `y.py` | new |"],
    )

    assert lines == [
        "| F01 | a | sqlite | old |",
        "| F01 | a | redis | new |",
        "| F02 | b | sqlite | new |",
        "| B01 | c | `y.py` | new |",
        "| C01 | d | `x.py` | old |",
    ]


def test_a_row_is_proved_on_every_store_it_names() -> None:
    tests = [(row, store) for row, (_, stores) in FAULTS.items() for store in stores.split()]
    tests += [(row, "edges/test_web.py") for row in TITLES if row not in FAULTS]
    assert unproved(tests) == {}

    tests.remove(("F12", "redis"))
    tests = [one for one in tests if one[0] != "B41"]
    assert unproved(tests) == {"F12": ["redis"], "B41": ["any"]}
