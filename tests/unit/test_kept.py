"""What is kept of an effect's result, and what a run reads of it."""

from __future__ import annotations

import copy
import json
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import attrs
import httpx
import msgspec
import pydantic
import pytest
import requests

from relevo.errors import MisuseError, PayloadError, ProviderUncertain
from relevo.kept import Answer, Record, keep, not_kept, recorded, with_raw
from relevo.payload import plain


class Color(Enum):
    RED = "red"


@dataclass
class Line:
    id: str
    cents: int


class Struct(msgspec.Struct, rename="camel"):
    order_id: str


class Model(pydantic.BaseModel):
    order_id: str = pydantic.Field(alias="orderId")


@attrs.define
class Attrs:
    id: int


Pair = namedtuple("Pair", "id cents")


class Sdk:
    """An object as SDKs give it."""

    secrets: ClassVar[dict[str, Any]] = {"id": "pi_1", "client_secret": "pi_1_secret_x1y2z3"}

    def to_dict(self) -> dict[str, Any]:
        return dict(self.secrets)


def _kept(value: Any) -> Any:
    data, why = keep(value)
    assert data is not None, why
    return recorded(data)


@pytest.mark.parametrize(
    ("value", "gives"),
    [
        ("CONF-1", "CONF-1"),
        (7, 7),
        (True, True),
        (None, None),
        (Decimal("12.50"), "12.50"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=1), str(UUID(int=1))),
        (Color.RED, "red"),
        ({"id": 1, "lines": [{"id": 2}]}, {"id": 1, "lines": [{"id": 2}]}),
        ([1, "a"], [1, "a"]),
        ({1: 2}, {"1": 2}),
        (Line("a", 5), {"id": "a", "cents": 5}),
        (Pair("a", 5), {"id": "a", "cents": 5}),
        (Struct("a"), {"order_id": "a"}),
        (Model(orderId="a"), {"order_id": "a"}),
        (Attrs(1), {"id": 1}),
        (Sdk(), {"id": "pi_1"}),
        ({"at": Color.RED, "raw": b"x"}, {"at": "red"}),
        ({"big": 2**70}, {"big": str(2**70)}),
        ({"ratio": float("nan")}, {"ratio": None}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_can_say_is_kept(value: Any, gives: Any) -> None:
    assert _kept(value) == gives


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object is not JSON"),
        (b"bytes", "bytes are not JSON"),
        (lambda: None, "not JSON"),
        ({"password": "correct horse"}, "password: a secret by its name"),
        ("x" * 70_000, "bytes of JSON"),
        (["x" * 1_000] * 70, "bytes of JSON"),
        (SimpleNamespace(a=1), "SimpleNamespace is not JSON"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_says_why(value: Any, why: str) -> None:
    kept = keep(value)
    assert kept.data is None
    assert why in kept.why


def test_what_holds_itself_ends() -> None:
    endless: dict[str, Any] = {"id": 1}
    endless["self"] = endless
    assert _kept(endless).id == 1


def test_a_secret_is_left_out_and_the_rest_kept() -> None:
    key = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
    record = _kept({"id": 1, "api_key": key, "note": f"with {key}", "card": {"cvc": "123"}})
    assert record == {"id": 1, "card": {}}
    with pytest.raises(AttributeError, match="looks like a secret, is left out"):
        _ = record.note


def test_a_record_is_read_by_attribute_and_item() -> None:
    record = _kept({"id": "pi_1", "charges": {"data": [{"id": "ch_1"}]}, "items": [1]})
    assert record.id == record["id"] == "pi_1"
    assert record.charges.data[0].id == "ch_1"
    assert (len(record), list(record)) == (3, ["id", "charges", "items"])
    assert record["items"] == [1]
    assert record == {"id": "pi_1", "charges": {"data": [{"id": "ch_1"}]}, "items": [1]}
    assert repr(record).startswith("Record({'id'")
    assert json.loads(json.dumps(record)) == record
    assert json.loads(plain(record)) == record
    assert copy.deepcopy(record).charges.data[0].id == "ch_1"
    assert record.get("nothing") is None and "nothing" not in record


def test_a_record_cannot_be_changed() -> None:
    record: Any = _kept({"id": "pi_1"})
    for change in (
        lambda: record.__setitem__("id", 1),
        lambda: setattr(record, "id", 1),
        lambda: record.update(id=1),
        lambda: record.pop("id"),
        lambda: record.setdefault("x", 1),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert dict(record) | {"id": 2} == {"id": 2}


def test_raw_is_the_object_of_the_run_that_made_the_call() -> None:
    sdk = Sdk()
    assert with_raw(_kept(sdk), sdk).raw is sdk
    with pytest.raises(MisuseError, match="run that made the call"):
        _ = _kept(sdk).raw


def test_what_was_not_kept_holds_what_reads_it() -> None:
    stands = not_kept("'call' happened, but its result could not be kept")
    for read in (
        lambda: stands.id,
        lambda: stands["id"],
        lambda: bool(stands),
        lambda: f"{stands}",
        lambda: len(stands),
        lambda: list(stands),
        lambda: stands == 1,
        lambda: stands.raw,
    ):
        with pytest.raises(ProviderUncertain, match="could not be kept"):
            read()
    assert "could not be kept" in repr(stands)
    assert stands is not None


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (Line("a", 5), Line),
        (Struct("a"), Struct),
        (Model(orderId="a"), Model),
        (Decimal("1.5"), Decimal),
        ([Model(orderId="a")], list[Model]),
        ({"id": "a", "cents": 5}, Line),
    ],
)
def test_a_type_reads_back_what_was_kept(value: Any, type: Any) -> None:
    data, _ = keep(value, is_exact=True)
    assert data is not None
    read = recorded(data, type)
    assert read == (Line("a", 5) if type is Line else value)


def test_what_does_not_fit_its_type_is_told_without_the_value() -> None:
    for type in (Line, Model, int):
        with pytest.raises(PayloadError, match="it does not fit") as raised:
            recorded(b'{"id":"hunter2","orderId":{"a":"hunter2"}}', type)
        assert "hunter2" not in str(raised.value)
        assert raised.value.__cause__ is raised.value.__context__ is None


def test_a_response_is_kept_with_its_status_and_body() -> None:
    other = requests.Response()
    other.status_code = 200
    other._content = b'{"id": 1}'  # pyright: ignore[reportPrivateUsage] - as requests itself does
    for response in (httpx.Response(200, json={"id": 1}), other):
        answer = _kept(response)
        assert isinstance(answer, Answer) and isinstance(answer, Record)
        assert (answer.status_code, answer.json()["id"], answer.json().id) == (200, 1, 1)
        assert answer.ok and answer.is_success and answer.raise_for_status() is answer
        assert json.loads(answer.text) == {"id": 1}
    text = _kept(httpx.Response(201, text="created"))
    assert (text.status_code, text.text) == (201, "created")


def test_a_text_that_holds_a_secret_is_left_out_of_a_response() -> None:
    form = "oauth_token=abcdefghij1234567890&oauth_token_secret=zzzzzzzz1234567890abcdef&id=7"
    data, _ = keep(httpx.Response(200, content=form.encode()))
    assert data == b'{"status_code":200}'
    with pytest.raises(AttributeError, match="looks like a secret"):
        _ = recorded(data).text
    plain = "id=7&state=queued\r\n\tdone"
    assert _kept(httpx.Response(200, text=plain)).text == plain


def test_a_field_goes_before_a_method_of_dicts() -> None:
    """A subscription of Stripe has `items`, and so has a search of GitHub."""
    found = {"items": [{"id": 1}], "keys": {"a": 1}, "get": "x", "values": None, "pop": 3}
    record = _kept(found)

    assert (record.items[0].id, record.keys.a, record.get, record.values, record.pop) == (
        *(1, 1, "x", None, 3),
    )
    assert record["items"] == record.items == [{"id": 1}]
    assert record == found
    assert json.loads(json.dumps(record)) == found
    assert json.loads(json.dumps({"of": [record]})) == {"of": [found]}
    assert msgspec.json.decode(msgspec.json.encode(record)) == found
    assert dict(record) == {**record} == found
    assert list(record.items()) == list(found.items())
    assert copy.deepcopy(record.items) == found["items"]
    assert copy.deepcopy(record) == found
    again = keep(record)
    assert msgspec.json.decode(again.data or b"") == found
    with pytest.raises(TypeError):
        record.update({"id": 2})
    assert _kept({"id": 1}).get("name", "none") == "none"


@pytest.mark.parametrize("name", ["token", "session", "Tokens", "jwt", "cookie"])
def test_a_long_value_under_the_name_of_a_session_is_left_out(name: str) -> None:
    long = "a8f5f167f44f4964e6c998dee827110c"
    assert msgspec.json.decode(keep({"id": 1, name: long}).data or b"") == {"id": 1}
    nested = keep({"id": 1, "of": {name: [long]}}).data or b""
    assert long.encode() not in nested
    for honest in ("tok_1Nv0FGQ9RKHgCVdK", "cs_test_a1UQPOMH2RHXe1FD0kiKn7", "A-17", "expired", 7):
        assert msgspec.json.decode(keep({"id": 1, name: honest}).data or b"")[name] == honest
    assert keep({"next_page_token": long}).data is not None
