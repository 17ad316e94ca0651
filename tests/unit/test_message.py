"""Commands and events: what their class keywords mean, and what is refused where it is written."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Union
from uuid import UUID

import pytest

from relevo import Breaker, Command, DefinitionError, Event, PayloadError, exponential, per_key
from relevo.message import KEY_MAX, Template, codec, rate


class Book(
    Command,
    queue="cars:suppliers:book",
    attempts=6,
    backoff=exponential("15s", cap="10m"),
    timeout="45s",
    key="book:{code}",
    unique="unfinished",
    breaker="supplier:{supplier}",
):
    code: str
    supplier: int


def test_a_command_is_a_frozen_dataclass() -> None:
    order = Book("RES-1", supplier=28)

    assert order == Book("RES-1", 28)
    with pytest.raises(dataclasses.FrozenInstanceError):
        order.code = "RES-2"  # pyright: ignore[reportAttributeAccessIssue] - the point


def test_class_keywords_become_its_spec() -> None:
    spec = Book.__relevo__

    assert (spec.kind, spec.queue, spec.attempts) == ("Book", "cars:suppliers:book", 6)
    assert spec.timeout == timedelta(seconds=45)
    assert spec.key is not None
    assert spec.key.fill(Book("RES-1", 28)) == "book:RES-1"
    assert spec.dependency is not None
    assert spec.dependency.fill(Book("RES-1", 28)) == "supplier:28"


def test_a_message_travels_and_comes_back() -> None:
    order = Book("RES-1", 28)

    assert codec(Book).encode(order) == b'{"code":"RES-1","supplier":28}'
    assert codec(Book).decode(b'{"code":"RES-1","supplier":28,"new_field":1}') == order


def test_a_key_made_of_nothing_is_refused() -> None:
    class Mail(Command, queue="shop:mail:send", key="mail:{order}", unique="unfinished"):
        order: str | None

    template = Mail.__relevo__.key
    assert template is not None
    for nothing in (None, ""):
        with pytest.raises(PayloadError, match="needs a value in 'order'") as raised:
            template.fill(Mail(nothing))
        assert raised.value.path == "order"
    with pytest.raises(PayloadError, match="characters long"):
        template.fill(Mail("x" * 600))


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("{order}", "A-1"),
        ("mail:{order}", "mail:A-1"),
        ("mail:{order}:first", "mail:A-1:first"),
        ("{{mail}}:{order}:{{first}}", "{mail}:A-1:{first}"),
        ("{order}/{order}", "A-1/A-1"),
    ],
)
def test_a_template_is_filled_wherever_its_field_stands(template: str, key: str) -> None:
    @dataclasses.dataclass
    class Order:
        order: str

    assert Template(template, Order).fill(Order("A-1")) == key
    with pytest.raises(PayloadError, match="characters long"):
        Template(template, Order).fill(Order("A" * KEY_MAX + "A"))


def test_a_number_and_a_uuid_in_a_key_are_text() -> None:
    class Ship(Command, queue="shop:orders:ship", key="ship:{id}:{line}", unique="forever"):
        id: Any
        line: Any

    template = Ship.__relevo__.key
    assert template is not None
    assert template.fill(Ship(UUID(int=7), 12)) == f"ship:{UUID(int=7)}:12"
    for wrong, kind in (
        (True, "bool"),
        (1.5, "float"),
        (["x"], "list"),
        (date(2026, 1, 2), "date"),
    ):
        with pytest.raises(PayloadError, match=rf"UUID in 'line', not {kind}") as raised:
            template.fill(Ship(1, wrong))
        assert raised.value.path == "line"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Decimal, "Decimal"),
        (float, "float"),
        ("float", "float"),
        (bool, "bool"),
        (Decimal | None, "Decimal"),
        (Union[int, float], "float"),  # noqa: UP007 - as older code spells it
        (list[str], "list"),
        (Annotated[date, "of arrival"], "date"),
        ("date", "date"),
    ],
)
def test_a_field_that_no_key_is_made_of_is_refused_at_definition(kind: Any, told: str) -> None:
    with pytest.raises(DefinitionError, match=rf"'{{price}}' in 'pay:{{price}}' is a {told}, of"):
        of_type(kind, key="pay:{price}", unique="forever")
    with pytest.raises(DefinitionError, match="Make the field a text"):
        of_type(kind, breaker="shop:{price}")


@pytest.mark.parametrize(
    "kind",
    [str, int, UUID, str | None, Literal["a", "b"], StrEnum("Size", "S M"), Any, "Unknown"],
)
def test_a_field_that_may_be_a_key_is_taken(kind: Any) -> None:
    assert of_type(kind, key="pay:{price}", unique="forever") is not None


def of_type(kind: Any, **options: Any) -> Any:
    """A command whose only field, price, has this type."""
    body = {"__annotations__": {"price": kind}, "__module__": __name__}
    options["queue"] = "a:b:c"
    return types.new_class("Pay", (Command,), options, lambda names: names.update(body))


def make(**options: Any) -> Callable[[], object]:
    def define() -> object:
        class Wrong(Command, **({"queue": "a:b:c"} | options)):
            code: str

        return Wrong

    return define


@pytest.mark.parametrize(
    "define",
    [
        make(queue="a:b"),
        make(queue="a:b:c\n"),
        make(queue=None),
        make(attempts=0),
        make(attempts=-1),
        make(attempts=10**9),
        make(attempts="3"),
        make(attempts=True),
        make(timeout="soon"),
        make(timeout=timedelta(seconds=-1)),
        make(timeout="200000000d"),
        make(key="book:{missing}"),
        make(key="book:{code.upper}"),
        make(key="book:{code!r}"),
        make(key="book:{code:>5}"),
        make(key="{0}"),
        make(key="book:{code"),
        make(key=7),
        make(unique="forever"),
        make(unique="always", key="{code}"),
        make(priority="urgent"),
        make(limit=0),
        make(limit="4"),
        make(limit=2.5),
        make(limit=per_key("{code}", "4")),
        make(rate="60"),
        make(rate=60),
        make(rate="0/m"),
        make(burst=5),
        make(rate="60/m", burst=0),
        make(rate="60/m", burst=True),
        make(limit=per_key("{code}", 4), ordered="other:{code}"),
        make(keep="-1d"),
        make(breaker="{nobody}"),
        make(breaker=7),
        make(ordered=True),
        make(backoff=None),
        make(backoff="15s"),
    ],
)
def test_bad_options_are_refused_where_they_are_written(define: Callable[[], object]) -> None:
    """B30, B34."""
    with pytest.raises(DefinitionError):
        define()


def test_a_keyword_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="'retries'"):
        make(retries=3)()


def test_a_burst_goes_with_a_rate() -> None:
    class Call(Command, queue="a:b:d", rate="5/s", burst=10):
        code: str

    assert (Call.__relevo__.rate, Call.__relevo__.burst) == ((5, 1_000), 10)
    with pytest.raises(DefinitionError, match="burst= needs a rate="):
        make(burst=5)()


def test_lanes_may_be_shared_by_several_limits() -> None:
    class Call(
        Command,
        queue="a:b:c",
        limit=per_key("s:{code}", 4),
        rate=per_key("s:{code}", "60/m"),
        fair="s:{code}",
    ):
        code: str

    spec = Call.__relevo__
    assert (spec.lane_limit, spec.lane_rate, spec.limit) == (4, (60, 60_000), None)
    assert spec.lane is not None
    assert spec.lane.fill(Call("28")) == "s:28"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("10/s", (10, 1_000)),
        ("60/m", (60, 60_000)),
        ("5/h", (5, 3_600_000)),
        ("1/d", (1, 86_400_000)),
    ],
)
def test_rates_are_read(text: str, meaning: tuple[int, int]) -> None:
    assert rate(text) == meaning


@pytest.mark.parametrize(
    "name", ["user", "User.Registered", "user.", ".x", "a.b\n", "user registered", ""]
)
def test_event_names_are_facts_with_dots(name: str) -> None:
    with pytest.raises(DefinitionError):

        class Wrong(Event, name=name):
            pass


@pytest.mark.parametrize(
    "options", [{"failures": 0}, {"failures": True}, {"release": 0}, {"cooldown": "never"}]
)
def test_a_breaker_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Breaker("x:{code}", **options)
