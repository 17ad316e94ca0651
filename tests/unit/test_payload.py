"""Messages to JSON and back, and everything that is refused on the way (B20–B26, B31–B33, C20)."""

from __future__ import annotations

import base64
import io
import json
import math
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, Required, TypedDict
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from relevo.errors import DefinitionError, PayloadError
from relevo.payload import Codec, guard, mask, plain
from relevo.sensitive import number_leak
from relevo.values import DEPTH, LIMIT
from tests.unit.test_sensitive import INNOCENT, JWT, SECRETS

CARD = "4111111111111111"
CANARY = "canary-7f3a"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Channel(StrEnum):
    WEB = "web"


class Guest(msgspec.Struct):
    name: str
    age: int | None = None


class Point(NamedTuple):
    x: int
    y: int


class Extra(TypedDict, total=False):
    beds: Required[int]
    cots: int


class Address(BaseModel):
    street: str
    since: datetime | None = None


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    at: datetime
    id: UUID = Field(alias="theId")


class Veiled(BaseModel):
    value: SecretStr


@dataclass(frozen=True)
class Money:
    cents: int
    currency: str = "MXN"


@dataclass(frozen=True)
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class BookSupplier:
    reservation_code: str
    supplier_id: int


@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    ratio: float
    flag: bool
    nothing: None
    colour: Colour
    level: Level
    at: datetime
    day: date
    hour: time
    length: timedelta
    id: UUID
    maybe: int | None
    either: int | str
    tags: list[str]
    pair: tuple[int, str]
    many: tuple[int, ...]
    prices: dict[str, float]
    channels: dict[Channel, int]
    listed: Literal["a", "b", 3]
    money: Money
    guest: Guest
    point: Point
    extra: Extra
    address: Address
    tree: Tree
    several: Sequence[Money]
    named: Mapping[str, Guest]
    short: Annotated[str, msgspec.Meta(max_length=3)]
    amount: Decimal
    shares: dict[str, Decimal | None]
    free: Any = None


@dataclass(frozen=True)
class Loose:
    data: Any = None
    entries: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Empty:
    pass


EVERYTHING = Everything(
    text="Señal 🚀 \u202e\u200b" + "e\u0301" * 10,
    number=-(2**63),
    ratio=0.1,
    flag=True,
    nothing=None,
    colour=Colour.BLUE,
    level=Level.LOW,
    at=datetime(2026, 1, 2, 3, 4, 5, 678, timezone(timedelta(hours=-6))),
    day=date(2026, 1, 2),
    hour=time(15),
    length=timedelta(minutes=90),
    id=UUID(int=7),
    maybe=None,
    either="x",
    tags=["a", ""],
    pair=(1, "x"),
    many=(1, 2, 3),
    prices={"a": 1.5, "b": 2},
    channels={Channel.WEB: 1},
    listed=3,
    money=Money(100),
    guest=Guest("Ana", 30),
    point=Point(1, 2),
    extra={"beds": 2},
    address=Address(street="Reforma 1", since=datetime(2026, 1, 1, tzinfo=UTC)),
    tree=Tree("root", [Tree("leaf")]),
    several=[Money(1), Money(2)],
    named={"ana": Guest("Ana")},
    short="abc",
    amount=Decimal("19.90"),
    shares={"ana": Decimal("0.1"), "eva": None},
    free={"list": [1, 2.5, None, True, {"deep": "er"}]},
)

everything = Codec(Everything)
loose = Codec(Loose)
book = Codec(BookSupplier)


def refusal(action: Callable[[], object]) -> PayloadError:
    """The PayloadError of an action; nothing that a traceback shows may hold the canary."""
    with pytest.raises(PayloadError) as caught:
        action()
    shown = "".join(traceback.format_exception(caught.value))
    chain: BaseException | None = caught.value
    while chain is not None:
        shown += repr(chain)
        chain = chain.__cause__ or chain.__context__
    assert CANARY not in shown
    assert CARD not in shown
    return caught.value


# There and back


def test_every_type_comes_back_as_it_left() -> None:
    assert everything.decode(everything.encode(EVERYTHING)) == EVERYTHING


def test_stored_json_may_come_as_raw() -> None:
    message = BookSupplier("RES-7K2M", 28)
    assert book.decode(msgspec.Raw(book.encode(message))) == message


def test_the_json_is_plain_and_compact() -> None:
    encoded = book.encode(BookSupplier("RES-7K2M", 28))
    assert encoded == b'{"reservation_code":"RES-7K2M","supplier_id":28}'


def test_a_message_without_fields_travels() -> None:
    assert Codec(Empty).decode(Codec(Empty).encode(Empty())) == Empty()


def test_a_field_that_a_newer_version_added_is_ignored_by_the_older() -> None:
    newer = b'{"reservation_code":"R","supplier_id":1,"colour":"red"}'
    assert book.decode(newer) == BookSupplier("R", 1)


def test_an_integer_may_stand_where_a_float_is_declared() -> None:
    codec = Codec(make_dataclass("Priced", [("price", float)], frozen=True))
    assert codec.decode(codec.encode(codec.type(2))).price == 2.0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1).filter(lambda number: not number_leak(number))
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abc"), inner, max_size=5),
    max_leaves=20,
)


@settings(deadline=None, database=None)
@given(json_values)
def test_b25_any_json_round_trips_and_passes_the_guard(value: Any) -> None:
    data = loose.encode(Loose(value))
    guard(data)
    assert loose.decode(data) == Loose(value)
    assert json.loads(plain(value)) == value
    assert isinstance(json.loads(mask(data)), dict)


# Wrong types are heard of at once


@pytest.mark.parametrize(
    ("name", "value", "expects"),
    [
        ("number", "28", "expects int, got str"),
        ("number", True, "expects int, got bool"),
        ("number", 1.0, "expects int, got float"),
        ("number", None, "expects int, got NoneType"),
        ("text", 28, "expects str, got int"),
        ("text", datetime(2026, 1, 1, tzinfo=UTC), "expects str, got datetime"),
        ("text", UUID(int=7), "expects str, got UUID"),
        ("text", b"x", "expects str, got bytes"),
        ("flag", 1, "expects bool, got int"),
        ("ratio", "1.5", "expects float, got str"),
        ("ratio", True, "expects float, got bool"),
        ("colour", "red", "expects Colour, got str"),
        ("amount", 19.9, "expects Decimal, got float"),
        ("amount", "19.90", "expects Decimal, got str"),
        ("amount", Decimal("sNaN"), "a Decimal that is NaN or infinity"),
        ("at", "2026-01-01T00:00:00Z", "expects datetime, got str"),
        ("at", date(2026, 1, 1), "expects datetime, got date"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC), "expects date, got datetime"),
        ("maybe", "x", "expects int or None, got str"),
        ("either", 1.5, "expects int or str, got float"),
        ("tags", "abc", "expects list of str, got str"),
        ("tags", {"a"}, "expects list of str, got set"),
        ("many", [1], "expects tuple of int, got list"),
        ("pair", (1, "x", 2), "expects tuple of 2, got tuple"),
        ("prices", [1], "expects dict of float, got list"),
        ("listed", "c", "expects one of "),
        ("listed", True, "expects one of "),
        ("money", {"cents": 1}, "expects Money, got dict"),
        ("guest", None, "expects Guest, got NoneType"),
        ("extra", {"stars": 5}, "holds a key that Extra does not declare"),
        ("address", {"street": "x"}, "expects Address, got dict"),
    ],
)
def test_a_wrong_type_is_refused_when_it_is_sent(name: str, value: Any, expects: str) -> None:
    error = refusal(lambda: everything.encode(replace(EVERYTHING, **{name: value})))
    assert error.path == name
    assert f"Everything.{name}: {expects}" in str(error)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (replace(EVERYTHING, tags=["a", 1]), "tags[1]"),
        (replace(EVERYTHING, pair=(1, 2)), "pair[1]"),
        (replace(EVERYTHING, prices={"a": "1"}), "prices.a"),
        (replace(EVERYTHING, prices={CANARY + "!": "1"}), "prices[…]"),
        (replace(EVERYTHING, money=Money("1")), "money.cents"),
        (replace(EVERYTHING, several=[Money(1), Money("2")]), "several[1].cents"),
        (replace(EVERYTHING, named={"ana": Guest("Ana", "30")}), "named.ana.age"),
        (
            replace(EVERYTHING, tree=Tree("r", [Tree("a", [Tree(1)])])),
            "tree.children[0].children[0].name",
        ),
        (replace(EVERYTHING, short="abcd"), "short"),
        (replace(EVERYTHING, extra={"beds": "2"}), "extra.beds"),
        (replace(EVERYTHING, extra={"cots": 1}), "extra.beds"),
        (replace(EVERYTHING, point=Point(1, "2")), "point.y"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_refusal_names_the_path(message: Everything, path: str) -> None:
    assert refusal(lambda: everything.encode(message)).path == path


def test_another_class_is_refused() -> None:
    assert "expects BookSupplier, got Empty" in str(refusal(lambda: book.encode(Empty())))


def test_a_subclass_of_a_nested_class_is_refused_as_it_would_lose_fields() -> None:
    @dataclass(frozen=True)
    class Tip(Money):
        waiter: str = "x"

    error = refusal(lambda: everything.encode(replace(EVERYTHING, money=Tip(1))))
    assert "expects Money, got Tip" in str(error)


# B31: what JSON bends


class Shout(str):
    pass


class Table(OrderedDict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (b"x", "signed storage URL"),
        (bytearray(b"x"), "signed storage URL"),
        (memoryview(b"x"), "signed storage URL"),
        (io.BytesIO(b"x"), "signed storage URL"),
        ({1}, "list"),
        (frozenset({1}), "list"),
        (Decimal("NaN"), "None"),
        (Decimal("-Infinity"), "None"),
        (datetime(2026, 1, 1), "time zone"),
        (datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=30))), "send UTC"),
        (math.nan, "None"),
        (math.inf, "None"),
        (-math.inf, "None"),
        (2**64, "str"),
        (-(2**63) - 1, "str"),
        (10**5_000, "str"),
        ("a\0b", "take it out"),
        ("\ud800", "take it out"),
        ({"k\0": 1}, "take it out"),
        ({"\udfff": 1}, "take it out"),
        ({1: 2}, "str(key)"),
        ({None: 2}, "str(key)"),
        ({(1, 2): 2}, "str(key)"),
        (Shout("x"), "str(value)"),
        (len, "id"),
        (lambda: 1, "id"),
        (Path("x"), "id"),
        (object(), "id"),
        (Money, "id"),
        (1j, "id"),
        (iter([1]), "id"),
        (ValueError("x"), "id"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: {"a": [{"b": (v,)}]}], ids=["flat", "deep"]
)
def test_b31_what_json_bends_is_refused(
    value: Any, advice: str, wrap: Callable[[Any], Any]
) -> None:
    path = "data" if wrap(1) == 1 else "data.a[0].b[0]"
    error = refusal(lambda: loose.encode(Loose(wrap(value))))
    assert error.path.startswith(path)
    assert advice in str(error)
    assert advice in str(refusal(lambda: plain(wrap(value))))


def test_a_decimal_travels_as_text_and_comes_back_to_the_digit() -> None:
    for amount in ("0", "-0.10", "1E+5", "12345678901234567890.12345678901234567890"):
        message = replace(EVERYTHING, amount=Decimal(amount), free={"paid": Decimal(amount)})
        data = everything.encode(message)
        assert json.loads(data)["amount"] == amount
        assert str(everything.decode(data).amount) == amount
        assert json.loads(data)["free"] == {"paid": amount}
        assert json.loads(plain([Decimal(amount)])) == [amount]


def test_kinds_of_dict_and_list_travel_as_what_they_are() -> None:
    assert plain(Table(a=1)) == b'{"a":1}'
    assert plain((1, Point(1, 2))) == b"[1,[1,2]]"
    assert plain({"guest": Guest("Ana"), "money": Money(1), "colour": Colour.RED}) == (
        b'{"guest":{"name":"Ana","age":null},"money":{"cents":1,"currency":"MXN"},"colour":"red"}'
    )


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_b21_sixty_four_levels_travel_and_one_more_does_not() -> None:
    assert plain(nested(DEPTH)) == b"[" * DEPTH + b"]" * DEPTH
    assert "64" in str(refusal(lambda: plain(nested(DEPTH + 1))))
    assert loose.encode(Loose(nested(DEPTH - 1)))
    assert refusal(lambda: loose.encode(Loose(nested(DEPTH)))).path.startswith("data[0][0]")
    refusal(lambda: plain(nested(100_000)))


def test_b31_what_contains_itself_is_refused() -> None:
    knot: list[Any] = []
    knot.append(knot)
    ring: dict[str, Any] = {}
    ring["ring"] = {"inner": ring}
    family = Tree("a")
    family.children.append(family)
    for value in (knot, ring, family):
        refusal(lambda value=value: plain(value))
        refusal(lambda value=value: loose.encode(Loose(value)))
    refusal(lambda: Codec(Tree).encode(family))


@pytest.mark.timeout(5)
def test_what_grows_without_end_when_written_out_is_refused_in_time() -> None:
    doubled: Any = "x"
    for _ in range(60):
        doubled = [doubled, doubled]
    assert "bytes" in str(refusal(lambda: plain(doubled)))
    assert "bytes" in str(refusal(lambda: plain(["x" * 60_000] * 1_000_000)))
    refusal(lambda: everything.encode(replace(EVERYTHING, tags=["x" * 60_000] * 1_000_000)))


def test_b31_sixty_four_kib_travel_and_one_byte_more_does_not() -> None:
    room = LIMIT - len(book.encode(BookSupplier("", 1)))
    assert len(book.encode(BookSupplier("x" * room, 1))) == LIMIT
    error = refusal(lambda: book.encode(BookSupplier("x" * (room + 1), 1)))
    assert error.path == "reservation_code"
    assert "signed storage URL" in str(error)
    assert len(plain("x" * (LIMIT - 2))) == LIMIT
    refusal(lambda: plain("x" * (LIMIT - 1)))
    refusal(lambda: plain("ñ" * (LIMIT // 2)))
    guard(b'"%s"' % (b"x" * (LIMIT - 2)))
    refusal(lambda: guard(b'"%s"' % (b"x" * (LIMIT - 1))))


# B32: secrets

SECRET_NAMES = ["password", "contraseña", "nueva_clave", "accessToken", "api_key", "senha"]


@pytest.mark.parametrize("name", [*SECRET_NAMES, "Authorization", "client_secret"])
def test_b32_a_secret_by_name_is_refused_five_deep(name: str) -> None:
    deep = {"a": {"b": [{"c": {name: CANARY}}]}}
    error = refusal(lambda: loose.encode(Loose(entries=deep)))
    assert error.path == f"entries.a.b[0].c.{name}"
    assert "send an id" in str(error)
    assert refusal(lambda: plain(deep)).path == f"a.b[0].c.{name}"
    assert refusal(lambda: guard(json.dumps(deep).encode())).path == f"a.b[0].c.{name}"


def test_a_truth_about_a_secret_is_no_secret() -> None:
    assert plain({"password": True, "pin": None}) == b'{"password":true,"pin":null}'
    Codec(make_dataclass("Account", [("password", bool | None)]))


@pytest.mark.parametrize("secret", SECRETS, ids=lambda text: text[:12])
def test_b32_a_secret_by_look_is_refused_wherever_it_is(secret: str) -> None:
    assert refusal(lambda: book.encode(BookSupplier(secret, 1))).path == "reservation_code"
    deep = {"customer": {"cards": [{"label": secret}]}}
    assert refusal(lambda: plain(deep)).path == "customer.cards[0].label"
    assert refusal(lambda: guard(json.dumps(deep).encode())).path == "customer.cards[0].label"
    assert refusal(lambda: everything.encode(replace(EVERYTHING, tags=[secret]))).path == "tags[0]"
    error = refusal(lambda: plain({secret: 1}))
    assert error.path == "[…]"
    assert secret not in str(error)


def test_b32_escapes_hide_nothing_from_the_guard() -> None:
    written = "".join(f"\\u{ord(c):04x}" for c in CARD)
    assert refusal(lambda: guard(f'{{"n":"{written}"}}'.encode())).path == "n"
    assert refusal(lambda: guard(b'{"p\\u0061ssword":"hunter2"}')).path == "password"


def test_b32_a_card_number_is_refused_as_an_integer_too() -> None:
    assert (
        refusal(lambda: everything.encode(replace(EVERYTHING, number=int(CARD)))).path == "number"
    )
    assert refusal(lambda: plain({"n": [int(CARD)]})).path == "n[0]"
    assert refusal(lambda: guard(b'{"n":%s}' % CARD.encode())).path == "n"


@pytest.mark.parametrize("text", INNOCENT, ids=lambda text: text[:24])
def test_b33_look_alikes_travel(text: str) -> None:
    message = BookSupplier(text, 1)
    assert book.decode(book.encode(message)) == message
    assert json.loads(plain({"text": text})) == {"text": text}
    guard(json.dumps({"text": text}).encode())


def test_b33_moments_and_ids_as_integers_travel() -> None:
    for number in (1767312000000, 1767312000000000, 1767312000000000000, 4111111111111112):
        assert book.decode(book.encode(BookSupplier("R", number))).supplier_id == number


def test_c20_a_refusal_never_holds_the_value() -> None:
    for data in (
        {"password": CANARY},
        {"x": f"Bearer {CANARY}"},
        {"x": f"postgresql://u:{CANARY}@host/db"},
        {"x": {CANARY}},
        {"x": f"{CANARY}\ud800"},
        {"x": f"{CANARY}\0"},
        {f"{CANARY} \0": 1},
    ):
        refusal(lambda data=data: plain(data))
        refusal(lambda data=data: loose.encode(Loose(data)))
    refusal(lambda: book.encode(BookSupplier(f"{CANARY}\ud800", 1)))
    refusal(lambda: everything.encode(replace(EVERYTHING, short=CANARY)))
    refusal(lambda: everything.encode(replace(EVERYTHING, listed=CANARY)))
    refusal(lambda: guard(f'{{"a":"{CANARY}"'.encode()))
    refusal(lambda: guard(CANARY.encode() + b"\xff"))


def test_an_allowed_field_may_hold_what_looks_like_a_secret() -> None:
    @dataclass(frozen=True)
    class Import:
        passcode: str
        rows: list[dict[str, Any]] = field(default_factory=list)
        other: str = ""

    with pytest.raises(DefinitionError, match=r"Import\.passcode: its name is a secret's"):
        Codec(Import)
    codec = Codec(Import, allow=frozenset({"passcode", "rows[].code"}))
    message = Import("1234", [{"code": CARD}, {"code": {"password": "x"}}])
    assert codec.decode(codec.encode(message)) == message
    guard(codec.encode(message), allow=codec.allow)
    assert refusal(lambda: codec.encode(Import("1", [{"kode": CARD}]))).path == "rows[0].kode"
    assert refusal(lambda: codec.encode(Import("1", other=CARD))).path == "other"
    assert refusal(lambda: codec.encode(Import("1", [{"code": "\0"}]))).path == "rows[0].code"
    with pytest.raises(DefinitionError, match="has no field 'pim' to allow"):
        Codec(Import, allow=frozenset({"passcode", "pim"}))


# Definitions


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (bytes, "signed storage URL"),
        (bytearray, "signed storage URL"),
        (memoryview, "signed storage URL"),
        (set[str], "list"),
        (frozenset[str], "tuple"),
        (Annotated[datetime, msgspec.Meta(tz=False)], "time zone"),
        (Callable[[], int], "id"),
        (IO[bytes], "file"),
        (io.BytesIO, "file"),
        (object, "id"),
        (Path, "id"),
        (complex, "id"),
        (type, "id"),
        (msgspec.Raw, "declare its type"),
        (dict[int, str], "dict[str"),
        (dict[Level, str], "dict[str"),
        (int | Path, "custom type"),
        (datetime | str, "str-like"),
        (Enum("Huge", {"A": 1, "B": 2**63}), "list text"),
        (IntEnum("Low", {"A": -(2**63) - 1}), "list text"),
        (Literal[2**63], "list text"),
        (Enum("Half", {"A": "\ud800"}), "surrogates not allowed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: list[k], lambda k: dict[str, k]])
def test_a_field_that_cannot_travel_is_refused_where_it_is_defined(
    kind: Any, advice: str, wrap: Callable[[Any], Any]
) -> None:
    message = make_dataclass("Upload", [("ok", int), ("thing", wrap(kind))], frozen=True)
    with pytest.raises(DefinitionError) as caught:
        Codec(message)
    assert str(caught.value).startswith("Upload")
    assert advice in str(caught.value)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_field_named_like_a_secret_is_refused_where_it_is_defined(name: str) -> None:
    inner = make_dataclass("Inner", [(name, str)])
    model = type("Model", (BaseModel,), {"__annotations__": {name: str}})
    with pytest.raises(DefinitionError, match=f"Login.{name}: .* send an id"):
        Codec(make_dataclass("Login", [(name, str)]))
    with pytest.raises(DefinitionError, match=f"Login.inner.{name}: "):
        Codec(make_dataclass("Login", [("inner", list[inner])]))
    with pytest.raises(DefinitionError, match=f"Login.model.{name}: "):
        Codec(make_dataclass("Login", [("model", model)]))


def test_a_type_that_is_not_known_yet_is_refused_where_it_is_defined() -> None:
    with pytest.raises(DefinitionError, match="must be known where the class is defined"):
        Codec(make_dataclass("Early", [("later", "Later")]))


# Models of pydantic


def test_a_strict_model_with_aliases_comes_back_as_it_left() -> None:
    codec = Codec(make_dataclass("Holder", [("model", Strict)]))
    model = Strict(at=datetime(2026, 1, 1, tzinfo=UTC), theId=UUID(int=1))
    assert codec.decode(codec.encode(codec.type(model))).model == model


def test_a_model_that_would_come_back_different_is_refused() -> None:
    codec = Codec(make_dataclass("Holder", [("model", Veiled)]))
    error = refusal(lambda: codec.encode(codec.type(Veiled(value=SecretStr(CANARY)))))
    assert error.path == "model"
    assert "come back" in str(error)


def test_a_model_that_was_tampered_with_is_refused_without_its_value() -> None:
    address = Address(street="x")
    address.street = {CANARY: 1}
    error = refusal(lambda: everything.encode(replace(EVERYTHING, address=address)))
    assert error.path == "address"
    assert "street (string_type)" in str(error)


def test_a_models_contents_are_searched_too() -> None:
    address = Address(street=CARD)
    error = refusal(lambda: everything.encode(replace(EVERYTHING, address=address)))
    assert error.path == "address.street"


def test_a_model_is_decoded_without_quoting_what_does_not_fit() -> None:
    codec = Codec(make_dataclass("Holder", [("model", Address)]))
    error = refusal(lambda: codec.decode(f'{{"model":{{"street":["{CANARY}"]}}}}'.encode()))
    assert error.path == "model"
    assert "does not fit Address: street (string_type)" in str(error)


# B36: rows edited by hand


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"", "", "is not JSON"),
        (b"{", "", "is not JSON"),
        (b"null", "", "expects object, got null"),
        (b"[]", "", "expects object, got array"),
        (b'"x"', "", "expects object, got str"),
        (b'{"reservation_code":"R","supplier_id":1} x', "", "is not JSON"),
        (b"\x80\x04\x95", "", "is not JSON"),
        (b"\xef\xbb\xbf{}", "", "is not JSON"),
        ('{"reservation_code":"é"}'.encode("utf-16"), "", "is not JSON"),
        (b'{"reservation_code":"\xff","supplier_id":1}', "", "is not JSON"),
        (b'{"reservation_code":"\\ud800","supplier_id":1}', "", "is not JSON"),
        (b'{"reservation_code":"R"}', "supplier_id", "is missing"),
        (b'{"reservation_code":1,"supplier_id":1}', "reservation_code", "expects str, got int"),
        (b'{"reservation_code":{"$ne":null},"supplier_id":1}', "reservation_code", "got object"),
        (b'{"reservation_code":"R","supplier_id":"28"}', "supplier_id", "expects int, got str"),
        (b'{"reservation_code":"R","supplier_id":1.0}', "supplier_id", "expects int, got float"),
        (b'{"reservation_code":"R","supplier_id":NaN}', "", "is not JSON"),
        (b'{"x":' + b"[" * 100_000, "", "nested"),
        (b'{"supplier_id":' + b"9" * 5_000 + b"}", "supplier_id", ""),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
def test_b36_damaged_json_says_where_it_does_not_fit(data: bytes, path: str, reason: str) -> None:
    error = refusal(lambda: book.decode(data))
    assert error.path == path
    assert reason in str(error)


def test_b36_a_value_that_is_not_listed_is_not_quoted() -> None:
    codec = Codec(make_dataclass("Painted", [("colour", Colour), ("by", Literal["a"])]))
    assert refusal(lambda: codec.decode(f'{{"colour":"{CANARY}"}}'.encode())).path == "colour"
    forged = f'{{"colour":"red","by":"{CANARY} - at `$.x`"}}'
    assert refusal(lambda: codec.decode(forged.encode())).path == "by"


def test_b36_a_class_that_refuses_its_values_is_not_quoted() -> None:
    @dataclass(frozen=True)
    class Picky:
        value: str

        def __post_init__(self) -> None:
            if self.value == CANARY:
                raise ValueError(f"bad: {self.value}")

    error = refusal(lambda: Codec(Picky).decode(f'{{"value":"{CANARY}"}}'.encode()))
    assert "refused by its own class (ValueError)" in str(error)


# B20–B24: JSON from elsewhere


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not JSON"),
        (b" ", "is not JSON"),
        (b'{"a":1', "is not JSON"),
        (b'{"a":1} x', "is not JSON"),
        (b"{}{}", "is not JSON"),
        (b"{'a':1}", "is not JSON"),
        (b'{"a":1,}', "is not JSON"),
        (b'{"a":01}', "is not JSON"),
        (b'{"a":"\x01"}', "is not JSON"),
        (b"NaN", "NaN"),
        (b'{"a":[Infinity]}', "infinity"),
        (b'{"a":-Infinity}', "infinity"),
        (b'{"a":1e400}', "out of range"),
        (b'{"a":' + b"9" * 5_000 + b"}", "64 bit"),
        (b'{"a":18446744073709551616}', "64 bit"),
        (b'{"a":-9223372036854775809}', "64 bit"),
        (b'{"id":"a","id":"b"}', "twice"),
        (b'{"a":[{"b":1,"b":1}]}', "twice"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":"\\u0000"}', "NUL"),
        (b'{"a\\u0000":1}', "NUL"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        ('{"a":"é"}'.encode("utf-16"), "UTF-8"),
        (b"[" * 65 + b"]" * 65, "64 deep"),
        (b"[" * 60_000, "64 deep"),
        (b'{"a":' * 10_000, "64 deep"),
        (b'["\\"' + b"[" * 100, "is not JSON"),
    ],
    ids=lambda value: value[:24] if isinstance(value, bytes) else None,
)
def test_b20_to_b24_the_guard_takes_strict_json_only(data: bytes, reason: str) -> None:
    assert reason in str(refusal(lambda: guard(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b" [1, 2.5, -0, null]\n",
        b"18446744073709551615",
        b"[" * 64 + b"]" * 64,
        b'["' + b"[{" * 100 + b'"]',
        b'["\\\\"]',
        '{"a":"🚀\u202e","__proto__":{"constructor":"x"}}'.encode(),
    ],
    ids=lambda data: data[:24],
)
def test_the_guard_lets_honest_json_pass(data: bytes) -> None:
    guard(data)


# For people's eyes


def test_c20_a_mask_hides_secrets_and_people() -> None:
    data = {
        "password": CANARY,
        "tarjeta": {"numero": CANARY},
        "cards": [CARD, int(CARD)],
        "auth": f"Bearer {CANARY}",
        "jwt": JWT,
        "guest": {"email": "maria@example.com", "phone": "+52 55 1234 5678", "nights": 3},
        "telefono": 5215512345678,
        "url": f"https://u:{CANARY}@example.com/",
        CARD: 1,
        "paid": True,
        "ratio": 0.5,
        "none": None,
        "code": "RES-7K2M",
    }
    masked = mask(json.dumps(data).encode())
    assert CANARY.encode() not in masked
    assert CARD.encode() not in masked
    assert json.loads(masked) == {
        "password": "***",
        "tarjeta": "***",
        "cards": ["***1111", "***1111"],
        "auth": "***",
        "jwt": "***",
        "guest": {"email": "m***@example.com", "phone": "***78", "nights": 3},
        "telefono": "***78",
        "url": "https://***@example.com/",
        "***1111": 1,
        "paid": True,
        "ratio": 0.5,
        "none": None,
        "code": "RES-7K2M",
    }


@pytest.mark.parametrize(
    "data", [b"", b"{", CANARY.encode(), b"\xff", b"[" * 100_000, b"1" * 5_000, b"\x80\x04pickle"]
)
def test_a_mask_of_what_is_not_json_says_so_and_shows_nothing(data: bytes) -> None:
    assert json.loads(mask(data)) == f"({len(data):,} bytes that are not JSON)"


def test_a_mask_shows_what_cannot_be_stored_any_more() -> None:
    assert json.loads(mask(b'{"a":"\\ud800","\\udfff":1e400}')) == {"a": "?", "?": None}


@settings(deadline=None, database=None)
@given(st.binary(max_size=200))
def test_nothing_from_outside_breaks_the_doors(data: bytes) -> None:
    assert msgspec.json.decode(mask(data)) is not None or data.strip() == b"null"
    for door in (guard, book.decode):
        try:
            door(data)
        except PayloadError as error:
            assert str(error)


def test_a_blob_is_told_what_to_send_instead() -> None:
    blob = base64.b64encode(bytes(range(256)) * 16).decode()
    error = refusal(lambda: book.encode(BookSupplier(blob, 1)))
    assert "signed storage URL" in str(error)
