"""The guard refuses secrets, not business: measured on providers' events and forms of secrets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from relevo import Command
from relevo.errors import DefinitionError, PayloadError
from relevo.message import codec
from relevo.payload import Delivered, guard, mask, plain
from relevo.scrubbing import scrub
from relevo.sensitive import declares_secret, looks_clean
from tests.unit.provider_events import EVENTS
from tests.unit.secret_forms import FIELDS, HARMLESS, MARK, NUMBERS, SHORT, TEXTS, VALUES


class Sync(Command, queue="shop:events:sync"):
    event: dict[str, Any] | list[Any]


class Honest(Command, queue="shop:events:honest"):
    pin: str = "110001"
    pan: str = "ABCDE1234F"
    clave: str = "A-100"
    tarjeta: str = "visa"
    tracking_code: str = "4242424242424242"
    client_secret: str = ""
    secret: str | None = "********"


def test_the_measure_is_as_long_as_it_says() -> None:
    assert len(EVENTS) >= 60
    assert len(VALUES) + len(FIELDS) >= 50
    assert len(TEXTS) >= 50


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_of_a_provider_passes(name: str) -> None:
    event = EVENTS[name]
    sent = codec(Sync).encode(Sync(event))
    assert json.loads(sent) == {"event": event}
    assert json.loads(plain(event)) == event
    guard(json.dumps(event).encode())
    guard(json.dumps(event, ensure_ascii=False).encode())
    delivered = Delivered(is_sealed=False)
    assert codec(Sync).encode(Sync(event), delivered) == sent
    assert delivered.masked == []


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "wrap",
    [lambda v: v, lambda v: [v], lambda v: {"object": {"note": f"see: {v}"}}],
    ids=["alone", "listed", "in a text"],
)
def test_a_secret_is_refused_by_its_look(name: str, wrap: Any) -> None:
    with pytest.raises(PayloadError):
        codec(Sync).encode(Sync({"x": wrap(VALUES[name])}))
    with pytest.raises(PayloadError):
        guard(json.dumps({"x": wrap(VALUES[name])}).encode())
    assert not looks_clean(json.dumps(wrap(VALUES[name]), ensure_ascii=False).encode())


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda k, v: {k: v},
        lambda k, v: {"a": {"b": [{k: v}]}},
        lambda k, v: {k: [v]},
        lambda k, v: {k: {"value": v}},
    ],
    ids=["flat", "deep", "listed", "with a value"],
)
def test_a_secret_is_refused_by_its_name(name: str, wrap: Any) -> None:
    body = wrap(*FIELDS[name])
    with pytest.raises(PayloadError, match=r"a secret by its name|a card number"):
        codec(Sync).encode(Sync(body))
    with pytest.raises(PayloadError):
        guard(json.dumps(body).encode())


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, "", " ", 3, 0, "*", "********", "••••", "[FILTERED]", "<redacted>"),
        *("not_set", "required", "unavailable", "pass", "sk_live_****1234", "xxxx", "…1234"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [key for key, _ in FIELDS.values()])
def test_a_name_alone_refuses_nothing(name: str, value: Any) -> None:
    body = {"config": {name: value}}
    assert json.loads(plain(body)) == body
    guard(json.dumps(body).encode())


def test_honest_fields_are_declared_and_sent() -> None:
    assert codec(Honest).decode(codec(Honest).encode(Honest())) == Honest()
    for field_name in Honest.__dataclass_fields__:
        assert not declares_secret(field_name)
    with pytest.raises(PayloadError, match=r"Honest\.client_secret: a secret by its name"):
        codec(Honest).encode(Honest(client_secret=MARK))


def test_a_refusal_names_the_path_the_rule_and_the_way_out() -> None:
    body = {"hook": {"config": [{"secret": MARK}]}}
    with pytest.raises(PayloadError) as caught:
        codec(Sync).encode(Sync(body))
    assert caught.value.path == "event.hook.config[0].secret"
    assert str(caught.value) == (
        "Sync.event.hook.config[0].secret: a secret by its name; send an id and look it up when "
        "the job runs, or let it pass with allow=['event.hook.config[].secret'] in the class line "
        "of Sync"
    )
    with pytest.raises(PayloadError, match=r"token for it, or let it pass with allow=\['event\.n'"):
        codec(Sync).encode(Sync({"n": VALUES["card"]}))


@dataclass(frozen=True)
class Item:
    code: str
    access_token: str = ""


class Import(
    Command,
    queue="shop:events:import",
    allow=[
        "hook.config.secret",
        "items[].code",
        "rows[].cells[].pin",
        "owner",
        "items[].access_token",
    ],
):
    hook: dict[str, Any] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    owner: dict[str, Any] = field(default_factory=dict)


def test_allow_takes_paths_into_objects_and_lists() -> None:
    secret, card = "S3cr3t!Pass", VALUES["card"]
    sent = Import(
        hook={"config": {"secret": secret, "url": "x"}},
        items=[Item(card, secret)],
        rows=[{"cells": [{"pin": secret}, {"pin": card}]}],
        owner={"login": {"password": secret}},
    )
    assert codec(Import).decode(codec(Import).encode(sent)) == sent
    for other, path in (
        (Import(hook={"secret": secret}), "hook.secret"),
        (Import(hook={"config": {"password": secret}}), "hook.config.password"),
        (Import(rows=[{"pin": card}]), "rows[0].pin"),
    ):
        with pytest.raises(PayloadError) as caught:
            codec(Import).encode(other)
        assert caught.value.path == path


def test_a_path_that_is_none_is_refused_where_it_is_defined() -> None:
    class Index(Command, queue="shop:events:a", allow=["items[0].code"]):
        items: list[Any]

    class Other(Command, queue="shop:events:b", allow=["order.code"]):
        items: list[Any]

    with pytest.raises(DefinitionError, match=r"'items\[\]\.code' for every item"):
        codec(Index)
    with pytest.raises(DefinitionError, match=r"has no field 'order\.code' to allow"):
        codec(Other)
    with pytest.raises(DefinitionError, match=r"write allow=\['hook\.secret'\]"):

        class Text(Command, queue="shop:events:c", allow="hook.secret"):
            hook: dict[str, Any]


# What a verified delivery brought


@pytest.mark.parametrize("name", VALUES)
def test_a_secret_that_was_delivered_is_masked_and_named(name: str) -> None:
    delivered = Delivered(is_sealed=False)
    sent = codec(Sync).encode(Sync({"a": [{"note": VALUES[name]}], "id": "o-1"}), delivered)
    [found] = delivered.masked
    assert found.path == "Sync.event.a[0].note"
    assert MARK.encode() not in sent
    assert b"***" in sent
    assert codec(Sync).decode(sent).event["id"] == "o-1"
    codec(Sync).encode(codec(Sync).decode(sent))  # and may be passed on


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_was_delivered_is_masked_and_named(name: str) -> None:
    key, value = FIELDS[name]
    delivered = Delivered(is_sealed=False)
    sent = codec(Sync).encode(Sync({"login": {key: value, "id": 17}}), delivered)
    assert len(delivered.masked) == 1
    masked = 0 if isinstance(value, int) else "***"
    login = codec(Sync).decode(sent).event["login"]
    assert login["id"] == 17
    assert login[key] == masked or str(login[key]).startswith("***")


def test_under_a_seal_what_was_delivered_is_kept() -> None:
    body = {"card": VALUES["card"], "hook": {"config": {"secret": MARK}}}
    delivered = Delivered(is_sealed=True)
    assert codec(Sync).decode(codec(Sync).encode(Sync(body), delivered)).event == body
    assert delivered.masked == []


def test_a_picture_that_was_delivered_is_no_secret() -> None:
    body = {"picture": "data:image/png;base64,iVBORw0KGgo="}
    with pytest.raises(PayloadError, match="signed storage URL"):
        codec(Sync).encode(Sync(body))
    delivered = Delivered(is_sealed=False)
    assert codec(Sync).decode(codec(Sync).encode(Sync(body), delivered)).event == body


# Errors and logs


@pytest.mark.parametrize("name", TEXTS)
def test_a_secret_is_taken_out_of_a_text(name: str) -> None:
    shown = scrub(f"RuntimeError: {TEXTS[name]}")
    assert MARK not in shown
    assert "***" in shown
    assert shown.startswith("RuntimeError: ")


@pytest.mark.parametrize("name", NUMBERS)
def test_digits_that_are_secret_are_taken_out_of_a_text(name: str) -> None:
    shown = scrub(NUMBERS[name])
    assert "41111" not in shown
    assert "4111 1111 1" not in shown
    assert "737" not in shown


@pytest.mark.parametrize("name", VALUES)
def test_a_secret_is_taken_out_of_a_text_by_its_look(name: str) -> None:
    shown = scrub(f"see: {VALUES[name]} now")
    assert MARK not in shown
    assert VALUES[name] not in shown


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_taken_out_of_a_text_by_its_name(name: str) -> None:
    key, value = FIELDS[name]
    texts = [json.dumps({key: value}, ensure_ascii=False), repr({key: value})]
    if " " not in str(value):
        texts += [f"{key}={value}", f"{key}: {value}"]
    for text in texts:
        assert str(value) not in scrub(text)


@pytest.mark.parametrize("text", SHORT)
def test_what_is_left_of_a_text_is_all_but_the_secret(text: str) -> None:
    assert scrub(text) == SHORT[text]


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "password=" * 7_000,
        "https://" * 8_000,
        "x=y " * 20_000,
        "--a " * 20_000,
        "cookie: " * 8_000,
        '\\"' * 30_000,
        "password is " * 6_000,
        "%3D" * 20_000,
        "password=*" * 6_000,
        "password a1" * 6_000,
        "://a:" * 12_000,
        "://a:1" + "1/" * 30_000 + "@",
        "://" + "a" * 30_000 + ":" + "b" * 30_000 + "@",
        "?key=a" * 10_000,
        "?key=" + "A1" * 30_000,
        "a" * 60_000,
    ],
    ids=lambda text: text[:8],
)
@pytest.mark.timeout(5)
def test_no_text_takes_long_to_scrub(text: str) -> None:
    scrub(text)


def test_a_mask_for_people_shows_states_and_what_is_masked_already() -> None:
    shown = mask(b'{"secret":"********","cvc_check":"pass","password":"hunter2","pin":"110001"}')
    assert json.loads(shown) == {
        "secret": "********",
        "cvc_check": "pass",
        "password": "***",
        "pin": "***",
    }
