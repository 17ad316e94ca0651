"""The steps of a store's tables: their numbers, and what each says of older code."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.errors import SchemaMismatch
from relevo.store import Schema
from relevo.stores.postgres import schema as postgres
from relevo.stores.redis import life
from relevo.stores.sqlite import schema as sqlite
from relevo.stores.versions import Step, judge, steps_in

ALL = {"sqlite": sqlite.steps(), "postgres": postgres.steps(), "redis": tuple(life.STEPS)}


@pytest.mark.parametrize("store", ALL)
def test_every_step_has_a_number_and_says_which_code_works_after_it(store: str) -> None:
    steps = ALL[store]
    numbers = [step.number for step in steps]
    assert numbers == sorted(set(numbers))
    for step in steps:
        assert step.readable_from in numbers and step.readable_from <= step.number, step.name
        # A line that is written in another way would be passed over, and shut older code out.
        assert ("eadable from" in step.sql) == (step.readable_from < step.number), step.name


def test_a_step_that_says_nothing_is_for_code_of_its_own_age(tmp_path: Path) -> None:
    (tmp_path / "0002_less.sql").write_text("drop table t;\n")
    (tmp_path / "0001_more.sql").write_text("-- Readable from 0000 on.\ncreate table t (a);\n")
    assert [step[:2] + step[3:] for step in steps_in((tmp_path,))] == [
        (1, "0001_more", 0),
        (2, "0002_less", 2),
    ]
    assert isinstance(steps_in((tmp_path,))[0], Step)


def test_code_works_between_what_it_needs_and_what_is_for_newer_code_only() -> None:
    judge(Schema(number=7, readable_from=7, known=7), "shop.db")
    judge(Schema(number=9, readable_from=7, known=7), "shop.db")
    for schema, told in (
        (Schema(0, 0, 7), "shop.db has no tables yet: run `relevo migrate`"),
        (Schema(6, 5, 7), "shop.db is of version 6 and this relevo needs 7: run `relevo migrate`"),
        (Schema(9, 8, 7), "for relevo that knows version 8 or later, and this one knows 7"),
    ):
        with pytest.raises(SchemaMismatch, match=told):
            judge(schema, "shop.db")
