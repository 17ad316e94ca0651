"""What each source knows of its provider: ids, types, answers, waits and repetitions."""

from __future__ import annotations

import inspect
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from relevo import sources
from relevo.pairs import Headers
from relevo.route import webhook
from relevo.sources import Source
from relevo.webhook import Delivery
from tests.providers import EVERY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FORM = "application/x-www-form-urlencoded"
DAY = timedelta(days=1)

each_source = pytest.mark.parametrize("name", EVERY)


def call(
    source: Source,
    body: Any = None,
    headers: dict[str, str] | None = None,
    *,
    form: dict[str, str] | None = None,
    query: str = "",
    method: str = "POST",
) -> Delivery:
    raw = b"" if body is None else json.dumps(body).encode()
    raw = raw if form is None else urlencode(form).encode()
    kind = {"Content-Type": "application/json" if form is None else FORM}
    return Delivery(
        path="/hook",
        method=method,
        query=query,
        headers=Headers([*(kind | (headers or {})).items()]),
        body=raw,
        received_at=NOW,
        rules=source,
    )


def test_every_source_is_among_those_that_are_tested() -> None:
    makers = {
        name
        for name in sources.__all__
        if inspect.isfunction(made := getattr(sources, name))
        and inspect.signature(made, eval_str=True).return_annotation is Source
    }
    assert makers == set(EVERY)
    assert len({source.name for source in EVERY.values()}) == len(EVERY)


@each_source
def test_what_a_source_answers_is_success_to_its_provider(name: str) -> None:
    source = EVERY[name]
    assert source.answer.status in source.success
    assert source.refused not in source.success
    assert timedelta(seconds=3) <= source.waits <= timedelta(minutes=2)
    assert len(repr(source)) < 1_000
    assert all(timedelta(0) <= pause <= DAY for pause in source.retries)


@pytest.mark.parametrize(
    ("success", "names"),
    [
        ([200], "linear mailgun meta paddle postmark slack_commands slack_interactivity"),
        ([204], "discord_events"),
        ([200, 202], "discord"),
        ([200, 201], "mercado_pago"),
        ([200, 204], "zoom"),
    ],
)
def test_success_may_be_narrower_than_2xx(success: list[int], names: str) -> None:
    found = {name for name, source in EVERY.items() if list(source.success) == success}
    assert found == set(names.split())


def test_a_wrong_signature_is_answered_as_its_provider_needs_it() -> None:
    refused = {name: source.refused for name, source in EVERY.items() if source.refused != 401}
    assert refused == {"mailgun": 406}  # which repeats after 401; Discord wants 401
    assert 303 not in EVERY["woocommerce"].success
    assert 304 in EVERY["gitlab"].success


@pytest.mark.parametrize(
    ("name", "waits", "attempts", "least", "most"),
    [
        ("adyen", 10, 100, 29 * DAY, 31 * DAY),
        ("bitbucket", 10, 3, timedelta(0), DAY),
        ("calendly", 10, 8, DAY * 0.9, DAY),
        ("discord", 3, 1, timedelta(0), timedelta(0)),
        ("github", 10, 1, timedelta(0), timedelta(0)),
        ("gitlab", 10, 1, timedelta(0), timedelta(0)),
        ("hubspot", 5, 10, DAY * 0.9, DAY),
        ("intercom", 5, 2, timedelta(minutes=1), timedelta(minutes=1)),
        ("linear", 5, 4, timedelta(minutes=421), timedelta(minutes=421)),
        ("meta", 10, 14, DAY * 6, DAY * 7),
        ("paddle", 5, 61, DAY * 2.9, DAY * 3.1),
        ("paypal", 10, 25, DAY * 2.9, DAY * 3.1),
        ("sendgrid", 10, 12, DAY * 0.9, DAY * 1.1),
        ("shopify", 5, 9, timedelta(hours=4), timedelta(hours=4)),
        ("slack", 3, 4, timedelta(minutes=6), timedelta(minutes=6)),
        ("slack_commands", 3, 1, timedelta(0), timedelta(0)),
        ("sns", 15, 4, timedelta(seconds=59), timedelta(seconds=61)),
        ("square", 10, 30, DAY * 0.9, DAY * 1.1),
        ("stripe", 10, 13, DAY * 2.9, DAY * 3.1),
        ("telegram", 60, 1_446, DAY * 0.9, DAY * 1.1),
        ("twilio", 15, 2, timedelta(0), timedelta(0)),
        ("woocommerce", 60, 1, timedelta(0), timedelta(0)),
        ("zoom", 3, 4, timedelta(minutes=85), timedelta(minutes=85)),
    ],
)
def test_it_is_known_how_long_a_provider_waits_and_repeats(
    name: str, waits: int, attempts: int, least: timedelta, most: timedelta
) -> None:
    source = EVERY[name]
    assert source.waits == timedelta(seconds=waits)
    assert len(source.retries) + 1 == attempts
    assert least <= sum(source.retries, timedelta(0)) <= most


def test_it_is_known_whose_body_is_not_signed() -> None:
    unsigned = {name for name, source in EVERY.items() if not source.body_is_signed}
    assert unsigned == {"adyen", "mailgun", "mercado_pago", "paypal"}


@pytest.mark.parametrize(
    ("name", "body", "type"),
    [
        ("sendgrid", [{"event": "open"}, {"event": "click"}, {"event": "open"}], "open, click"),
        ("hubspot", [{"subscriptionType": "contact.deletion"}], "contact.deletion"),
        (
            "meta",
            {"object": "page", "entry": [{"messaging": [{"message": 1}, {"x": 1}]}]},
            "page.message, page.other",
        ),
        ("twilio", [{"type": "a.b"}, {"type": "c.d"}], "a.b, c.d"),
    ],
)
def test_a_call_with_many_items_has_the_types_of_all(name: str, body: Any, type: str) -> None:
    assert call(EVERY[name], body).event_type == type


def test_a_call_is_taken_if_one_of_its_items_is_of_a_wanted_type() -> None:
    async def function(delivery: Delivery) -> None: ...

    hook = webhook("/hook", function, source=EVERY["sendgrid"], types=["click", "spam*"])
    assert hook.takes_type("open, click")
    assert hook.takes_type("spamreport")
    assert not hook.takes_type("open, delivered")


@pytest.mark.parametrize(
    ("fields", "type", "is_content"),
    [
        ({"MessageSid": "SM1", "SmsStatus": "received", "Body": "hi"}, "incoming", True),
        (
            {"MessageSid": "SM1", "SmsStatus": "sent", "MessageStatus": "sent"},
            "MessageStatus.sent",
            False,
        ),
        ({"CallSid": "CA1", "CallStatus": "ringing"}, "incoming", True),
        ({"CallSid": "CA1", "CallStatus": "in-progress", "Digits": "1"}, "incoming", True),
        ({"CallSid": "CA1", "CallStatus": "completed"}, "CallStatus.completed", False),
        (
            {"CallSid": "CA1", "CallStatus": "ringing", "CallbackSource": "call-progress-events"},
            "CallStatus.ringing",
            False,
        ),
        (
            {
                "CallSid": "CA1",
                "CallStatus": "in-progress",
                "RecordingSid": "RE1",
                "RecordingStatus": "completed",
            },
            "RecordingStatus.completed",
            False,
        ),
    ],
)
def test_twilio_wants_an_answer_where_it_tells_no_status(
    fields: dict[str, str], type: str, is_content: bool
) -> None:
    source = EVERY["twilio"]
    delivery = call(source, form=fields)
    assert delivery.event_type == type
    assert source.answers_content(delivery) is is_content


def test_what_twilio_sends_of_one_call_has_ids_of_its_own() -> None:
    steps = [
        ({"CallSid": "CA1", "CallStatus": "ringing"}, "t1"),
        ({"CallSid": "CA1", "CallStatus": "in-progress", "Digits": "1"}, "t2"),
        ({"CallSid": "CA1", "CallStatus": "in-progress", "Digits": "2"}, "t3"),
        ({"CallSid": "CA1", "CallStatus": "in-progress", "Digits": "2"}, "t4"),  # and once more
        ({"CallSid": "CA1", "CallStatus": "completed"}, "t5"),
        ({"CallSid": "CA1", "RecordingSid": "RE1", "RecordingStatus": "completed"}, "t6"),
        ({"CallSid": "CA1", "RecordingSid": "RE2", "RecordingStatus": "completed"}, "t7"),
    ]

    def id_of(fields: dict[str, str], token: str) -> str:
        headers = {"I-Twilio-Idempotency-Token": token}
        return call(EVERY["twilio"], headers=headers, form=fields).event_id

    assert len({id_of(*step) for step in steps}) == len(steps)
    assert id_of(*steps[1]) == id_of(*steps[1])
    statuses = [{"MessageSid": "SM1", "MessageStatus": each} for each in ("sent", "read")]
    assert [id_of(each, "t") for each in statuses] == ["SM1:sent", "SM1:read"]


def test_an_action_of_woocommerce_has_an_id_without_an_object() -> None:
    headers = {"X-WC-Webhook-ID": "7", "X-WC-Webhook-Topic": "action.woocommerce_add_to_cart"}
    one, two = (call(EVERY["woocommerce"], {"arg": arg}, headers) for arg in ("a", "b"))
    assert one.event_id != two.event_id
    order = {"id": 5, "date_modified_gmt": "2026-01-01T00:00:00"}
    assert call(EVERY["woocommerce"], order, headers).event_id.endswith(":5:2026-01-01T00:00:00")


def test_a_mail_that_came_in_at_postmark_has_an_id_and_a_type() -> None:
    mail = call(EVERY["postmark"], {"MessageID": "m1", "From": "a@example.com"})
    assert (mail.event_type, mail.event_id) == ("Inbound", "Inbound:m1::")


@pytest.mark.parametrize("name", ["slack_commands", "slack_interactivity"])
def test_slack_looks_at_the_certificate_without_a_signature(name: str) -> None:
    source = EVERY[name]
    for asked in (
        call(source, form={"ssl_check": "1", "token": "t"}),
        call(source, query="ssl_check=1", method="GET"),
    ):
        answer = source.unsigned(asked)
        assert answer is not None
        assert (answer.status, answer.body) == (200, b"")
    assert source.unsigned(call(source, form={"command": "/do"})) is None
    assert "GET" in source.methods


def test_a_gitlab_without_idempotency_keys_has_ids() -> None:
    source, uuid = EVERY["gitlab"], {"X-Gitlab-Event-UUID": "u1"}
    push, pipeline = ({"object_kind": kind} for kind in ("push", "pipeline"))
    assert call(source, push, uuid).event_id == call(source, push, uuid).event_id
    assert call(source, push, uuid).event_id != call(source, pipeline, uuid).event_id
    assert call(source, push, {**uuid, "Idempotency-Key": "k"}).event_id == "k"


def test_bitbuckets_test_call_needs_no_signature() -> None:
    source = EVERY["bitbucket"]
    ping = call(source, {"test": True}, {"X-Event-Key": "diagnostics:ping"})
    assert source.unsigned(ping) is not None
    assert source.unsigned(call(source, {}, {"X-Event-Key": "repo:push"})) is None


def test_notions_first_call_tells_the_secret() -> None:
    told: list[str] = []
    source = sources.notion(None, on_token=told.append)
    first = call(source, {"verification_token": "secret_1"})
    answer = source.unsigned(first)
    assert answer is not None
    assert answer.status == 200
    assert told == ["secret_1"]
    signed = call(source, {"id": "1"}, {"X-Notion-Signature": "sha256=00"})
    assert source.unsigned(signed) is None
    quiet = sources.notion("s")
    assert quiet.unsigned(first) is not None
    assert told == ["secret_1"]
