"""Five short programs hear all that their providers send, signed by the providers' libraries."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode

import pytest
import stripe
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator

from relevo import Relevo
from relevo.job import State
from relevo.store import Filter
from tests.examples.conftest import EXAMPLES, Example
from tests.examples.test_examples import rows
from tests.servers.ports import free_port

SECRET = "whsec_a_secret_of_tests"
URL = "https://api.example.com"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
TYPES: dict[str, Any] = json.loads(Path(__file__).with_name("event_types.json").read_text())


@dataclass(frozen=True)
class Call:
    """One call of a provider, not signed yet."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    noted: str = ""  # what must stand in the table; "" where nothing comes of it
    again: dict[str, str] = field(default_factory=dict[str, str])  # headers of a repetition
    changed: bytes = b""  # the body of a repetition, if it is another
    answer: bytes | None = None  # what must be answered


Sign = Callable[[Call, bytes], dict[str, str]]


# GitHub: what its library, which is for Node alone, has signed (tests/unit/node_oracles.py).

SIGNED = Path(__file__).with_name("github_signatures.json")


@cache
def github_seals() -> dict[bytes, str]:
    seals = json.loads(SIGNED.read_text())
    return dict(zip((call.body for call in github()), seals, strict=True))


def sign_github(call: Call, body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": github_seals()[body]}


def github() -> Iterator[Call]:
    def event(number: int, type: str, body: dict[str, Any]) -> Call:
        name, _, action = type.partition(".")
        tree = json.dumps(body | ({"action": action} if action else {}))
        is_form = number % 2  # GitHub's default
        return Call(
            "/hooks/github",
            f"payload={quote_plus(tree)}".encode() if is_form else tree.encode(),
            {
                "Content-Type": FORM if is_form else JSON,
                "X-GitHub-Event": name,
                "X-GitHub-Delivery": f"guid-{number // 2}",  # an event is told to two hooks
                "X-GitHub-Hook-ID": str(number % 2),
            },
            noted=f"{type} guid-{number // 2}:{number % 2}",
        )

    ping = event(0, "ping", {"zen": "Keep it logically awesome.", "hook_id": 1})
    yield replace(ping, noted="")
    for number, type in enumerate(TYPES["github"]):
        yield event(number, type, {"sender": {"login": "octocat"}})


# Shopify


def sign_shopify(call: Call, body: bytes) -> dict[str, str]:
    seal = hmac.digest(SECRET.encode(), body, "sha256")
    return {"X-Shopify-Hmac-Sha256": base64.b64encode(seal).decode()}


def shopify() -> Iterator[Call]:
    for number, topic in enumerate(TYPES["shopify"]):
        yield Call(
            "/hooks/shopify",
            json.dumps({"id": number, "email": "a@example.com"}).encode(),
            {
                "Content-Type": JSON,
                "X-Shopify-Topic": topic,
                "X-Shopify-Webhook-Id": f"w{number}",
                "X-Shopify-Event-Id": f"e{number // 3}",  # of one action, shared by topics
                "X-Shopify-Shop-Domain": "a.myshopify.com",
                "X-Shopify-Triggered-At": "2026-01-01T00:00:00Z",
                "X-Shopify-Test": "true" if number % 9 == 0 else "false",
            },
            noted=f"{topic} w{number}",
        )


# Slack


def sign_slack(call: Call, body: bytes) -> dict[str, str]:
    if call.body.startswith(b"ssl_check"):
        return {}
    now = str(int(time.time()))
    seal = SignatureVerifier(SECRET).generate_signature(timestamp=now, body=body)
    assert seal is not None
    return {"X-Slack-Signature": seal, "X-Slack-Request-Timestamp": now}


def slack() -> Iterator[Call]:
    asked = {"type": "url_verification", "challenge": "3eZbrw1aB", "token": "t"}
    kind = {"Content-Type": JSON}
    yield Call("/hooks/slack", json.dumps(asked).encode(), kind, answer=b"3eZbrw1aB")
    form = {"Content-Type": FORM}
    yield Call("/hooks/commands", b"ssl_check=1&token=t", form, answer=b"")
    for number, type in enumerate(TYPES["slack"]):
        name, _, subtype = type.partition(".")
        event = {"type": name, "subtype": subtype} if subtype else {"type": name}
        body = {"type": "event_callback", "event_id": f"Ev{number}", "event": event}
        yield Call(
            "/hooks/slack",
            json.dumps(body).encode(),
            kind,
            noted=f"{type} Ev{number}",
            again={"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"},
        )
    command = {"command": "/deploy", "text": "now", "trigger_id": "13345224609.8534564800.6f8a"}
    noted = f"/deploy {command['trigger_id']}"
    yield Call("/hooks/commands", urlencode(command).encode(), form, noted=noted, answer=b"")


# Stripe


def sign_stripe(call: Call, body: bytes) -> dict[str, str]:
    signature = stripe.WebhookSignature
    return {"Stripe-Signature": signature.generate_signature_header(body.decode(), SECRET)}


def stripes() -> Iterator[Call]:
    kind = {"Content-Type": "application/json; charset=utf-8"}
    for number, type in enumerate(typing.get_args(stripe.Event.__annotations__["type"])):
        event = {"id": f"evt_{number}", "object": "event", "type": type, "data": {"object": {}}}
        yield Call(
            "/hooks/stripe",
            json.dumps({**event, "pending_webhooks": 2}).encode(),
            kind,
            noted=f"{type} evt_{number}",
            changed=json.dumps({**event, "pending_webhooks": 1}).encode(),
        )
    thin = {"id": "evt_test_65R", "object": "v2.core.event", "type": "v2.core.account.updated"}
    noted = "v2.core.account.updated evt_test_65R"
    yield Call("/hooks/stripe", json.dumps(thin).encode(), kind, noted=noted)


# Twilio


def sign_twilio(call: Call, body: bytes) -> dict[str, str]:
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return {
        "X-Twilio-Signature": RequestValidator(SECRET).compute_signature(URL + call.path, fields)
    }


TWIML = b"<Response/>"


def twilio() -> Iterator[Call]:
    def form(fields: dict[str, str], noted: str) -> Call:
        headers = {"Content-Type": FORM, "I-Twilio-Idempotency-Token": noted.replace(" ", "-")}
        body = urlencode({"AccountSid": "AC1", **fields}).encode()
        return Call("/hooks/twilio", body, headers, noted=noted, answer=TWIML)

    for status in TYPES["twilio"]["MessageStatus"]:  # all of one message
        fields = {"MessageSid": "SM1", "SmsStatus": status, "MessageStatus": status}
        yield form(fields, f"MessageStatus.{status} SM1:{status}")
    for number, status in enumerate(TYPES["twilio"]["CallStatus"]):
        fields = {"CallSid": "CA1", "CallStatus": status, "SequenceNumber": str(number)}
        fields |= {"CallbackSource": "call-progress-events"}
        yield form(fields, f"CallStatus.{status} CA1:{status}:{number}")
    for status in TYPES["twilio"]["RecordingStatus"]:
        fields = {"CallSid": "CA1", "RecordingSid": "RE1", "RecordingStatus": status}
        yield form(fields, f"RecordingStatus.{status} RE1:{status}")
    for number, event in enumerate(TYPES["twilio"]["StatusCallbackEvent"]):
        fields = {"ConferenceSid": "CF1", "StatusCallbackEvent": event}
        fields |= {"SequenceNumber": str(number)}
        yield form(fields, f"StatusCallbackEvent.{event} CF1:{event}:{number}")
    fields = {"MessageSid": "SM9", "SmsStatus": "received", "From": "+34600000001", "Body": "sí 👍"}
    yield form(fields, "incoming SM9:incoming")


@dataclass(frozen=True)
class Story:
    calls: Callable[[], Iterator[Call]]
    sign: Sign
    variable: str


STORIES = {
    "github": Story(github, sign_github, "GITHUB_WEBHOOK_SECRET"),
    "shopify": Story(shopify, sign_shopify, "SHOPIFY_CLIENT_SECRET"),
    "slack": Story(slack, sign_slack, "SLACK_SIGNING_SECRET"),
    "stripe": Story(stripes, sign_stripe, "STRIPE_WEBHOOK_SECRET"),
    "twilio": Story(twilio, sign_twilio, "TWILIO_AUTH_TOKEN"),
}


@contextlib.contextmanager
def up(example: Example, provider: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """`relevo up`, and it answers."""
    app = f"from_{provider}:app"
    env = os.environ | {
        "RELEVO_STORE_URL": example.url,
        "RELEVO_LEASE": "1s",
        "RELEVO_PUBLIC_URL": URL,
        "RELEVO_PORT": str(port),
        STORIES[provider].variable: SECRET,
    }
    command = [sys.executable, "-m", "relevo.cli", "up", app]
    with (
        example.log.open("ab") as log,
        subprocess.Popen(command, cwd=example.folder, env=env, stdout=log, stderr=log) as process,
    ):

        def is_up() -> bool:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return True
            return False

        try:
            example.until(is_up)
            yield process
        finally:
            process.kill()


def sent(port: int, call: Call, sign: Sign | None, *, again: bool = False) -> tuple[int, bytes]:
    body = call.changed if again and call.changed else call.body
    headers = call.headers | (call.again if again else {}) | (sign(call, body) if sign else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", call.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send_all(port: int, calls: Sequence[Call], sign: Sign, *, again: bool = False) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda call: sent(port, call, sign, again=again), calls)
        for call, (status, body) in zip(calls, answers, strict=True):
            assert status == 200, (call, status, body)
            assert call.answer is None or body == call.answer, (call, body)


def dead(example: Example) -> list[str]:
    """Why jobs died: to note an event twice is an error of the table."""

    async def look() -> list[str]:
        async with Relevo(example.url) as relevo:
            page = await relevo.store.page(Filter(states=frozenset({State.DEAD})))
            return [str(job) for job in page.jobs]

    return asyncio.run(look())


@pytest.mark.parametrize("provider", STORIES)
def test_a_short_program_hears_all_that_its_provider_sends(provider: str, tmp_path: Path) -> None:
    story, example, port = STORIES[provider], Example("webhooks", tmp_path), free_port()
    calls = list(story.calls())
    expected = sorted((call.noted,) for call in calls if call.noted)
    assert len(set(expected)) == len(expected)
    half = len(calls) // 2
    with up(example, provider, port) as process:
        send_all(port, calls[:half], story.sign)
        status, _ = sent(port, calls[-1], None)
        assert status == 401
        process.send_signal(signal.SIGKILL)
        process.wait()
    with up(example, provider, port):
        send_all(port, calls, story.sign, again=True)
        example.until(lambda: len(rows(example, "select event from notes")) >= len(expected))
        send_all(port, calls, story.sign, again=True)
    assert rows(example, "select event from notes") == expected
    assert dead(example) == []


@pytest.mark.parametrize("provider", STORIES)
def test_a_program_has_at_most_fifteen_lines(provider: str) -> None:
    code = (EXAMPLES / "webhooks" / f"from_{provider}.py").read_text().splitlines()
    assert len([line for line in code if line.strip() and not line.startswith('"""')]) <= 15
