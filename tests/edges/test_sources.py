"""Webhooks of named providers, from the first set-up call to a repetition after a failure."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from relevo import App, Command, Delivery, Intake, Relevo, sources
from relevo.store import DeliveryState, Letterbox
from relevo.testing import deliver, enqueued

FORM = "application/x-www-form-urlencoded"
URL = "https://api.example.com"


class Note(Command, queue="hub:notes:write"):
    what: str


app = App("hub")
broken: set[str] = set()


@app.webhook("/github", source=sources.github("s"), types=["push", "pull_request.*"])
async def github(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(f"{delivery.event_type} {delivery.json['repository']}"))


@app.webhook("/slack", source=sources.slack("s"))
async def slack(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(delivery.event_type))


@app.webhook("/commands", source=sources.slack_commands("s"))
async def commands(delivery: Delivery, ctx: Intake) -> dict[str, str]:
    return {"text": f"you said {delivery.form['text']}"}


@app.webhook("/twilio", source=sources.twilio("s"))
async def twilio(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(delivery.event_id))


@app.webhook("/mailgun", source=sources.mailgun("s"))
async def mailgun(delivery: Delivery, ctx: Intake) -> None:
    if delivery.event_id in broken:
        raise RuntimeError("not yet")
    await ctx.enqueue(Note(delivery.event_id))


@app.webhook("/meta", source=sources.meta("s", verify_token="tell-me"), types=["page.*"])
async def meta(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(delivery.event_type))


@app.webhook("/sns", source=sources.sns({}, topics=["arn:aws:sns:eu-west-1:1:orders"]))
async def sns(delivery: Delivery, ctx: Intake) -> None: ...


class Click(Command, queue="hub:clicks:note", key="{id}", unique="forever"):
    id: str


PAIR = ec.derive_private_key(4_242, ec.SECP256R1())
PRIVATE = PAIR.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
PUBLIC = PAIR.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
mails = sources.sendgrid(base64.b64encode(PUBLIC).decode(), private=PRIVATE)


@app.webhook("/sendgrid", source=mails, types=["click"])
async def sendgrid(delivery: Delivery, ctx: Intake) -> None:
    for item in delivery.items:
        if item["event"] == "click":
            await ctx.enqueue(Click(item["sg_event_id"]))


@app.webhook("/hubspot", source=sources.hubspot("s"))
async def hubspot(delivery: Delivery, ctx: Intake) -> None:
    for item in delivery.items:
        await ctx.enqueue(Note(f"{item['objectId']} at {delivery.attempt}"))


@app.webhook("/answers", source=sources.stripe("whsec_1"))
async def answers(delivery: Delivery) -> Any:
    given = {"text": "hi", "list": [1], "pair": (202, "later"), "odd": {1, 2}, "none": None}
    return given[delivery.json["give"]]


@app.worker
async def write(order: Note) -> None: ...


@pytest.fixture
async def relevo(tmp_path: Path) -> AsyncIterator[Relevo]:
    engine = Relevo(f"sqlite:///{tmp_path / 'r.db'}", apps=[app], public_url=URL)
    engine.asgi()
    async with engine:
        yield engine


async def notes(relevo: Relevo) -> list[str]:
    return sorted(each.what for each in await enqueued(relevo, Note))


async def test_github_is_understood_from_its_ping_on(relevo: Relevo) -> None:
    ping = await deliver(relevo, "/github", json={"zen": "…", "hook_id": 1}, type="ping", id="p")
    assert ping.status == 200
    event = {"action": "opened", "repository": "octo"}
    for _ in range(2):
        told = await deliver(relevo, "/github", json=event, type="pull_request", id="d1")
        assert told.status == 200
    form = "payload=%7B%22repository%22%3A%22octo%22%7D"
    as_form = await deliver(
        relevo, "/github", body=form, type="push", id="d2", headers={"content-type": FORM}
    )
    assert as_form.status == 200
    other = await deliver(relevo, "/github", json=event, type="issues", id="d3")
    assert other.status == 200

    assert await notes(relevo) == ["pull_request.opened octo", "push octo"]
    kept, _ = await relevo.store.deliveries(Letterbox())
    assert len(kept) == 3  # the ping is answered, and not stored
    assert [each.reason for each in kept if each.state == "ignored"] == [
        "issues.opened is not in types="
    ]


async def test_slacks_challenge_and_commands_are_answered(relevo: Relevo) -> None:
    asked = {"type": "url_verification", "challenge": "3eZbrw"}
    assert (await deliver(relevo, "/slack", json=asked)).body == b"3eZbrw"
    assert (await deliver(relevo, "/slack", json=asked, sign=False)).status == 401
    said = await deliver(relevo, "/commands", body="trigger_id=1.2&command=%2Fdo&text=now")
    assert json.loads(said.body) == {"text": "you said now"}
    event = {"event_id": "Ev1", "event": {"type": "app_mention"}}
    await deliver(relevo, "/slack", json=event)
    await deliver(relevo, "/slack", json=event, headers={"x-slack-retry-num": "1"})
    assert await notes(relevo) == ["app_mention"]


async def test_each_status_of_a_message_is_a_delivery(relevo: Relevo) -> None:
    from twilio.request_validator import RequestValidator

    sign = RequestValidator("s").compute_signature
    for status in ("queued", "sent", "sent", "delivered"):
        fields = {"MessageSid": "SM1", "MessageStatus": status}
        answer = await deliver(
            relevo,
            "/twilio",
            body="&".join(f"{name}={value}" for name, value in fields.items()),
            headers={
                "content-type": FORM,
                "x-twilio-signature": sign(f"{URL}/twilio", fields),
            },
            sign=False,
        )
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/xml"
    assert await notes(relevo) == ["SM1:delivered", "SM1:queued", "SM1:sent"]


async def test_items_of_a_call_count_once_however_they_are_grouped(relevo: Relevo) -> None:
    a, c = ({"event": "click", "sg_event_id": id} for id in "ac")
    b = {"event": "open", "sg_event_id": "b"}
    for items in ([a, b], [b, c], [a, b], [a, c], [b]):
        sent = json.dumps(items)
        assert (await deliver(relevo, "/sendgrid", body=sent)).status == 200
    assert sorted(each.id for each in await enqueued(relevo, Click)) == ["a", "c"]
    kept, _ = await relevo.store.deliveries(Letterbox())
    assert len(kept) == 4  # [b] is ignored, and kept; [a, b] came again


async def test_an_attempt_that_is_counted_in_the_body_is_no_other_delivery(relevo: Relevo) -> None:
    for attempt in (0, 1, 2):
        item = {"eventId": 1, "subscriptionId": 2, "occurredAt": 3, "objectId": 4}
        items = [{**item, "attemptNumber": attempt, "subscriptionType": "contact.creation"}]
        assert (await deliver(relevo, "/hubspot", body=json.dumps(items))).status == 200
    assert await notes(relevo) == ["4 at 1"]


async def test_what_failed_may_come_again_with_its_first_signature(relevo: Relevo) -> None:
    """A token of Mailgun counts once, for one body; 406 would end its repetitions."""
    now = str(int(datetime.now(UTC).timestamp()))

    def body(id: str) -> str:
        seal = hmac.new(b"s", f"{now}{'t' * 50}".encode(), "sha256").hexdigest()
        mark = {"timestamp": now, "token": "t" * 50, "signature": seal}
        return json.dumps({"signature": mark, "event-data": {"id": id, "event": "failed"}})

    broken.add("e1")
    assert (await deliver(relevo, "/mailgun", body=body("e1"), sign=False)).status == 200
    assert (await deliver(relevo, "/mailgun", body=body("e1"), sign=False)).status == 200
    assert (await deliver(relevo, "/mailgun", body=body("e2"), sign=False)).status == 406
    broken.clear()
    [failed], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.FAILED))
    [whole] = await relevo.store.delivery([failed.id])
    assert whole is not None
    await relevo.handling.resolve(whole, whole.jobs[0])
    assert await notes(relevo) == ["e1"]


async def test_an_item_of_an_unknown_kind_is_no_mistake(relevo: Relevo) -> None:
    event = {"object": "page", "entry": [{"messaging": [{"account_linking": {}}]}]}
    assert (await deliver(relevo, "/meta", json=event)).status == 200
    query = "hub.mode=subscribe&hub.verify_token=tell-me&hub.challenge=42"
    asked = await deliver(relevo, "/meta", method="GET", query=query, sign=False)
    assert (asked.status, asked.body) == (200, b"42")
    wrong = query.replace("tell-me", "guess")
    assert (await deliver(relevo, "/meta", method="GET", query=wrong, sign=False)).status == 403


async def test_hostile_addresses_of_a_certificate_are_forgeries(relevo: Relevo) -> None:
    for url in ("https://[", "https://sns.eu-west-1.amazonaws.com/x.pem", "", "x" * 10_000):
        event = {"Type": "Notification", "SignatureVersion": "2", "SigningCertURL": url}
        answer = await deliver(relevo, "/sns", json=event, sign=False)
        assert answer.status == 401


@pytest.mark.parametrize(
    ("give", "status", "body"),
    [
        ("text", 200, b"hi"),
        ("list", 200, b"[1]"),
        ("pair", 202, b"later"),
        ("none", 200, b'{"ok":true}'),
        ("odd", 200, None),  # kept as failed: the provider is not told of our mistakes
    ],
)
async def test_a_function_answers_as_people_write(
    relevo: Relevo, give: str, status: int, body: bytes | None
) -> None:
    answer = await deliver(relevo, "/answers", json={"id": f"evt_{give}", "give": give})
    assert answer.status == status
    assert body is None or answer.body == body
