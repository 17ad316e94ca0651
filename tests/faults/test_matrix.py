"""The table of faults itself."""

from __future__ import annotations

from tests.matrix import ROWS, Cell, merged, page, told, unproved


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
            ("F20", "sqlite"): Cell(passed=1, unmade=["only root may mount"]),
            ("F33", "any"): Cell(),
        }
    )

    results = [line.split(" | ")[-1] for line in lines]
    assert results == [
        "**failed**: `test_a` |",
        "not tested: only root may mount |",
        "**no test** |",
    ]


def test_rows_that_were_left_out_stay_as_they_were() -> None:
    kept = page(["| F01 | a | sqlite | old |", "| F02 | b | sqlite | old |"], "").splitlines()

    lines = merged(kept, ["| F01 | a | redis | new |", "| F02 | b | sqlite | new |"])

    assert lines == [
        "| F01 | a | sqlite | old |",
        "| F01 | a | redis | new |",
        "| F02 | b | sqlite | new |",
    ]


def test_a_row_is_proved_on_every_store_it_names() -> None:
    tests = [(row, store) for row, (_, stores) in ROWS.items() for store in stores.split()]
    assert unproved(tests) == {}

    tests.remove(("F12", "redis"))
    assert unproved(tests) == {"F12": ["redis"]}
