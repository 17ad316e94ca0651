"""Where the sources of webhooks are found, and that they hide no library of that name."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import stripe

import relevo
from relevo import Intake, sources, webhook
from relevo.errors import DefinitionError
from relevo.pairs import Headers
from relevo.signatures import InvalidSignature, Key, explain
from relevo.sources import Source
from relevo.webhook import Delivery

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FORM = "application/x-www-form-urlencoded"
PUBLIC_KEY = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def call(body: bytes, source: Source | None = None, type: str = "application/json") -> Delivery:
    headers = Headers([("content-type", type)])
    return Delivery(path="/hook", headers=headers, body=body, received_at=NOW, rules=source)


def sent(value: Any) -> Delivery:
    return call(json.dumps(value).encode())


@pytest.mark.parametrize("name", sources.__all__)
def test_a_source_is_asked_for_by_its_module(name: str) -> None:
    assert name not in relevo.__all__
    with pytest.raises(ImportError, match=rf"from relevo import sources`, then sources\.{name}\("):
        getattr(importlib.import_module("relevo"), name)


def test_a_file_uses_the_library_and_the_source() -> None:
    scheme = sources.stripe("whsec_of_this_endpoint")
    assert stripe.Webhook is not None
    assert scheme.name == "stripe"


@pytest.mark.parametrize("name", ["stripe", "slack", "github"])
def test_a_source_without_its_secret_is_told_where_it_is_written(name: str) -> None:
    async def hook(delivery: Delivery, ctx: Intake) -> None: ...

    with pytest.raises(DefinitionError, match=rf"/hook: write source=sources\.{name}\("):
        webhook("/hook", hook, source=getattr(sources, name))


def test_any_other_name_is_missing_as_ever() -> None:
    assert not hasattr(relevo, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from relevo import nonsense", {})  # noqa: S102 - a misspelt import as it is written


@pytest.mark.parametrize(
    ("source", "first", "again", "other"),
    [
        (
            sources.stripe("whsec_1"),
            {"id": "evt_1", "pending_webhooks": 2, "data": {"a": 1}},
            {"id": "evt_1", "data": {"a": 1}, "pending_webhooks": 1},
            {"id": "evt_1", "data": {"a": 2}, "pending_webhooks": 1},
        ),
        (
            sources.hubspot("s"),
            [{"eventId": 1, "attemptNumber": 0}, {"eventId": 2, "attemptNumber": 0}],
            [{"eventId": 1, "attemptNumber": 3}, {"eventId": 2, "attemptNumber": 1}],
            [{"eventId": 1, "attemptNumber": 0}, {"eventId": 3, "attemptNumber": 0}],
        ),
        (
            sources.intercom("s"),
            {"id": "notif_1", "delivery_attempts": 1},
            {"id": "notif_1", "delivery_attempts": 2},
            {"id": "notif_1", "delivery_attempts": 1, "data": {}},
        ),
        (
            sources.notion("s"),
            {"id": "1", "attempt_number": 1},
            {"id": "1", "attempt_number": 2},
            {"id": "1", "attempt_number": 1, "type": "page.created"},
        ),
        (
            sources.linear("s"),
            {"action": "create", "webhookTimestamp": 1},
            {"action": "create", "webhookTimestamp": 2},
            {"action": "update", "webhookTimestamp": 1},
        ),
        (
            sources.mailgun("s"),
            {"signature": {"token": "a"}, "event-data": {"id": "1"}},
            {"signature": {"token": "b"}, "event-data": {"id": "1"}},
            {"signature": {"token": "a"}, "event-data": {"id": "1", "event": "failed"}},
        ),
        (
            sources.paddle("s"),
            {"event_id": "evt_1", "notification_id": "ntf_1"},
            {"event_id": "evt_1", "notification_id": "ntf_2"},
            {"event_id": "evt_1", "notification_id": "ntf_1", "data": 1},
        ),
    ],
    ids=lambda each: each.name if isinstance(each, Source) else "",
)
def test_what_varies_between_attempts_is_no_difference(
    source: Source, first: Any, again: Any, other: Any
) -> None:
    assert source.compared(sent(first)) == source.compared(sent(again))
    assert source.compared(sent(first)) != source.compared(sent(other))


def test_comparing_changes_nothing_that_others_read() -> None:
    delivery = sent({"id": "evt_1", "pending_webhooks": 2})
    sources.stripe("whsec_1").compared(delivery)
    assert delivery.json == {"id": "evt_1", "pending_webhooks": 2}


def test_a_field_inside_an_object_can_vary() -> None:
    source = Source(name="own", scheme=sources.github("s").scheme, id=str, varies=("meta.try",))
    first, again = ({"meta": {"try": n, "of": 3}} for n in (1, 2))
    assert source.compared(sent(first)) == source.compared(sent(again)) == b'{"meta":{"of":3}}'
    assert source.compared(sent({"meta": 1})) == b'{"meta":1}'


def test_a_body_that_says_no_such_thing_is_compared_as_it_came() -> None:
    github = sources.github("s")
    spaced = call(b'{"a" : 1}')
    assert github.compared(spaced) is spaced.body
    for body in (b"", b"no json", b"7", b"[1]"):
        assert sources.stripe("whsec_1").compared(call(body)) == body


@pytest.mark.parametrize(
    ("source", "body", "type", "is_content"),
    [
        (sources.slack_commands("s"), b"command=%2Fdo", FORM, True),
        (sources.slack_interactivity("s"), b"payload=%7B%7D", FORM, True),
        (sources.slack("s"), b"{}", "application/json", False),
        (sources.discord(PUBLIC_KEY), b'{"type":2}', "application/json", True),
        (sources.discord_events(PUBLIC_KEY), b'{"type":1}', "application/json", False),
        (sources.twilio("s"), b"MessageSid=SM1&Body=hi", FORM, True),
        (sources.twilio("s"), b"MessageSid=SM1&MessageStatus=sent", FORM, False),
        (sources.twilio("s"), b"MessageSid=SM1&A=1&a=2", FORM, True),
        (sources.twilio("s"), b"MessageSid=1&" * 501, FORM, True),  # cannot be read
        (sources.twilio("s"), b'[{"id":"1","type":"a.b"}]', "application/json", False),
        (sources.telegram("s"), b'{"update_id":1}', "application/json", False),
        (sources.github("s"), b"{}", "application/json", False),
    ],
)
def test_where_the_answer_is_the_content_the_source_says_so(
    source: Source, body: bytes, type: str, is_content: bool
) -> None:
    assert source.answers_content(call(body, source, type)) is is_content


def stamped(*secrets: str | Key) -> Any:
    return sources.hmac_header(
        "X-Seal",
        secrets,
        time="X-Time",
        tolerance="1m",
        signed=lambda call, time: f"{time}|{call.headers['X-Id']}|".encode() + call.body,
    )


def test_a_time_can_be_signed_with_whatever_else_is() -> None:
    scheme = stamped("s")
    bare = sent({"id": 1})
    named = Headers([*bare.headers.pairs, ("X-Id", "7")])
    signed = scheme.sign(msgspec.structs.replace(bare, headers=named), NOW)
    for age in (-59, 0, 59):
        scheme.check(signed, NOW + timedelta(seconds=age))
    for age in (-61, 61):
        with pytest.raises(InvalidSignature) as late:
            scheme.check(signed, NOW + timedelta(seconds=age))
        assert late.value.kind == "time"
    for name, value in (("X-Id", "8"), ("X-Time", "1767225601"), ("X-Seal", "00")):
        changed = signed.headers.replaced({name: value})
        with pytest.raises(InvalidSignature):
            scheme.check(msgspec.structs.replace(signed, headers=changed), NOW)
    without = Headers(each for each in signed.headers.pairs if each[0] != "x-id")
    with pytest.raises(InvalidSignature) as unreadable:
        scheme.check(msgspec.structs.replace(signed, headers=without), NOW)
    assert unreadable.value.why == 'what is signed cannot be read: no header "X-Id"'


def test_secrets_of_a_signed_time_are_replaced_as_all_others() -> None:
    headers = Headers([("X-Id", "7")])
    call = Delivery(path="/hook", headers=headers, body=b"{}", received_at=NOW)
    old = stamped("the old one").sign(call, NOW)
    stamped("the new one", "the old one").check(old, NOW)
    ended = stamped("the new one", Key("the old one", until=NOW))
    with pytest.raises(InvalidSignature):
        ended.check(old, NOW)
    assert "a secret that has ended" in explain(old, ended, NOW)


def test_a_time_that_is_not_signed_is_no_protection() -> None:
    with pytest.raises(DefinitionError, match="a time that is not signed stops no replay"):
        sources.hmac_header("X-Seal", "s", time="X-Time")
