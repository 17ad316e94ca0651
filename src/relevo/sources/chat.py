"""Sources of messages and calls: Slack, Discord, Telegram, Twilio, Meta, Zoom, Intercom."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from relevo.clock import Duration, milliseconds
from relevo.errors import BodyError
from relevo.pairs import Fields
from relevo.signatures import (
    Ed25519,
    HmacHeader,
    Keys,
    Secrets,
    SharedSecret,
    StampedHeader,
    Twilio,
)
from relevo.signatures.hmacs import hmac_of
from relevo.sources.source import (
    EMPTY,
    FORMS,
    JSON,
    OK,
    Source,
    always,
    body_hash,
    both,
    digest,
    header,
    optional,
    pauses,
    text,
)
from relevo.webhook import FORM, Answer, Delivery


def _slack(secrets: Secrets | None, tolerance: Duration) -> StampedHeader:
    keys = Keys.read("slack()", secrets)
    names = ("X-Slack-Signature", "X-Slack-Request-Timestamp")
    return StampedHeader(keys, milliseconds(tolerance), *names)


def slack(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """The Events API of Slack; the secret is the app's signing secret."""
    return Source(
        name="slack",
        scheme=_slack(secrets, tolerance),
        id=lambda call: text(call, "event_id"),
        type=_slack_event,
        attempt=lambda call: int(header(call, "X-Slack-Retry-Num")) + 1,
        setup=_slack_challenge,
        waits=timedelta(seconds=3),
        retries=pauses(0, 1, 5),
        keep_headers=("x-slack-retry-num", "x-slack-retry-reason"),
    )


def _slack_event(call: Delivery) -> str:
    kinds = (text(call, "event", "type"), optional(call, "event", "subtype"))
    return ".".join(filter(None, kinds))


def _slack_challenge(call: Delivery) -> Answer | None:
    if optional(call, "type") != "url_verification":
        return None
    return Answer.text(text(call, "challenge"))


def slack_commands(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Slash commands of Slack; what the webhook answers is shown to the person."""
    return Source(
        name="slack commands",
        scheme=_slack(secrets, tolerance),
        id=lambda call: call.form["trigger_id"],
        type=lambda call: call.form["command"],
        content_types=FORMS,
        answer=EMPTY,
        setup=lambda call: EMPTY if call.form.get("ssl_check") == "1" else None,
        answer_is_content=always,
        waits=timedelta(seconds=3),
    )


def slack_interactivity(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Buttons, menus and dialogs of Slack."""
    return Source(
        name="slack interactivity",
        scheme=_slack(secrets, tolerance),
        id=lambda call: both(
            optional(call, "trigger_id") or text(call, "view", "id"),
            optional(call, "view", "hash"),
        ).rstrip(":"),
        type=lambda call: text(call, "type"),
        content_types=FORMS,
        json_field="payload",
        answer=EMPTY,
        setup=lambda call: EMPTY if call.form.get("ssl_check") == "1" else None,
        answer_is_content=always,
        waits=timedelta(seconds=3),
    )


_PONG = Answer.json({"type": 1})
_NO_CONTENT = Answer(204, b"")


def discord(public_key: str | None, *, seed: str | None = None) -> Source:
    """Interactions of Discord; the public key is the application's.

    Discord tests the endpoint with wrong signatures, which must be answered 401. `seed` is the
    private half of a pair of your own, to sign calls in tests.
    """
    return Source(
        name="discord",
        scheme=Ed25519.read("discord()", public_key, None, seed),
        id=lambda call: text(call, "id"),
        type=_discord_type,
        setup=lambda call: _PONG if call.json.get("type") == 1 else None,
        answer=Answer.json({"type": 5}),
        answer_is_content=always,
        waits=timedelta(seconds=3),
    )


def _discord_type(call: Delivery) -> str:
    kinds = {2: "command", 3: "component", 4: "autocomplete", 5: "modal"}
    number = call.json.get("type")
    kind = kinds.get(number, "") if isinstance(number, int) else ""
    name = optional(call, "data", "name") or optional(call, "data", "custom_id")
    return ".".join(filter(None, (kind or str(number), name)))


def discord_events(public_key: str | None, *, seed: str | None = None) -> Source:
    """Webhook events of Discord, which have no id: the body's hash stands for it."""
    return Source(
        name="discord events",
        scheme=Ed25519.read("discord_events()", public_key, None, seed),
        id=body_hash,
        type=lambda call: text(call, "event", "type"),
        setup=lambda call: _NO_CONTENT if call.json.get("type") == 0 else None,
        answer=_NO_CONTENT,
        waits=timedelta(seconds=3),
        retries=pauses(1, 2, 4, 8, 10),
    )


def telegram(secret_token: Secrets | None) -> Source:
    """Updates of a Telegram bot; the secret is the `secret_token` of setWebhook.

    Telegram sends what failed again and again, and later updates of a chat wait behind it.
    """
    keys = Keys.read("telegram()", secret_token)
    return Source(
        name="telegram",
        scheme=SharedSecret(keys, "X-Telegram-Bot-Api-Secret-Token", None, None, None),
        id=lambda call: text(call, "update_id"),
        type=lambda call: next(name for name in call.json if name != "update_id"),
        answer=EMPTY,
        waits=timedelta(seconds=60),
        retries=pauses(0, 1 / 30, 1 / 15, 2 / 15, 4 / 15, 8 / 15, 1, 1, 1),
    )


def twilio(
    auth_token: Secrets | None, *, shared_keys: Mapping[str, Secrets] | None = None
) -> Source:
    """Status callbacks, messages and calls of Twilio; RELEVO_PUBLIC_URL is part of what is signed.

    One message's statuses are deliveries of their own. Answer a message or a call with TwiML.
    """
    shared = tuple(
        (name, Keys.read(f"twilio(shared_keys={name!r})", secrets))
        for name, secrets in (shared_keys or {}).items()
    )
    return Source(
        name="twilio",
        scheme=Twilio(Keys.read("twilio()", auth_token), shared),
        id=_twilio_id,
        type=_twilio_type,
        content_types=(FORM, *JSON, ""),
        methods=("POST", "GET"),
        answer=Answer(200, b"<Response/>", {"content-type": "text/xml"}),
        answer_is_content=lambda call: _twilio_type(call) == "incoming",
        waits=timedelta(seconds=15),
        retries=pauses(0),
        keep_headers=("i-twilio-idempotency-token",),
    )


_SIDS = ("MessageSid", "SmsSid", "CallSid", "RecordingSid", "ConferenceSid", "VerificationSid")
_STATUSES = ("MessageStatus", "SmsStatus", "CallStatus", "RecordingStatus", "StatusCallbackEvent")


def _fields(call: Delivery) -> Fields:
    return call.form if call.body else call.params


def _twilio_id(call: Delivery) -> str:
    if call.media_type in JSON:
        if not call.body.startswith(b"["):
            return body_hash(call)
        listed = [text_of(item, "id") for item in call.items]
        return listed[0] if len(listed) == 1 else digest("\n".join(listed).encode())
    fields = _fields(call)
    sid = next((fields[name] for name in _SIDS if name in fields), "")
    if not sid:
        return body_hash(call) if call.body else digest(call.query.encode())
    status = next((fields[name] for name in _STATUSES if name in fields), "")
    return both(sid, status, fields.get("SequenceNumber", "")).rstrip(":")


def text_of(item: Mapping[str, object], name: str) -> str:
    """A text in an item of a body that is an array."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise LookupError(f'an item has no text "{name}"')
    return value


def _twilio_type(call: Delivery) -> str:
    if call.media_type in JSON:
        return text_of(call.items[0], "type") if call.body.startswith(b"[") else "json"
    fields = _fields(call)
    for name in _STATUSES:
        if name in fields:
            return f"{name}.{fields[name]}"
    return "incoming"


def meta(secrets: Secrets | None, verify_token: Secrets | None = None) -> Source:
    """Webhooks of Meta: Messenger, Instagram, WhatsApp. The secret is the app's.

    One call carries many items, and a repetition may group them otherwise: let each item be a
    command with a key of its own. `verify_token` answers the challenge by GET.
    """
    keys = Keys.read("meta()", secrets)
    tokens = None if verify_token is None else Keys.read("meta(verify_token=)", verify_token)
    return Source(
        name="meta",
        scheme=HmacHeader(keys, "X-Hub-Signature-256", "sha256", "sha256=", "hex"),
        id=body_hash,
        type=_meta_type,
        methods=("POST",) if tokens is None else ("POST", "GET"),
        unsigned=lambda call: _meta_challenge(call, tokens),
        waits=timedelta(seconds=10),
        retries=pauses(1, 5, 15, 60, 240, 720),
    )


def _meta_type(call: Delivery) -> str:
    entry = call.json["entry"][0]
    if "changes" in entry:
        return f"{text(call, 'object')}.{entry['changes'][0]['field']}"
    item = entry["messaging"][0]
    names = ("message", "postback", "delivery", "read", "reaction", "referral", "optin")
    return f"{text(call, 'object')}.{next(name for name in names if name in item)}"


def _meta_challenge(call: Delivery, tokens: Keys | None) -> Answer | None:
    if call.method != "GET" or tokens is None:
        return None
    import hmac

    try:
        given = call.params.get("hub.verify_token", "").encode()
        word = call.params.get("hub.challenge", "")
        mode = call.params.get("hub.mode", "")
    except BodyError:
        return Answer.text("", 403)
    known = [hmac.compare_digest(token, given) for token in tokens.at(call.received_at)]
    is_word = 0 < len(word) <= 128 and word.isascii() and word.isprintable()
    if mode != "subscribe" or True not in known or not is_word:
        return Answer.text("", 403)
    return Answer.text(word)


def zoom(secrets: Secrets | None, tolerance: Duration = "5m") -> Source:
    """Webhooks of Zoom, which have no id: event, time and object together stand for it."""
    keys = Keys.read("zoom()", secrets)
    return Source(
        name="zoom",
        scheme=StampedHeader(
            keys, milliseconds(tolerance), "x-zm-signature", "x-zm-request-timestamp"
        ),
        id=lambda call: both(
            text(call, "event"),
            text(call, "event_ts"),
            optional(call, "payload", "object", "uuid")
            or optional(call, "payload", "object", "id"),
            optional(call, "payload", "object", "participant", "participant_uuid")
            or optional(call, "payload", "object", "participant", "user_id"),
        ),
        type=lambda call: text(call, "event"),
        setup=lambda call: _zoom_validation(call, keys),
        waits=timedelta(seconds=3),
        retries=pauses(5, 20, 60),
    )


def _zoom_validation(call: Delivery, keys: Keys) -> Answer | None:
    if optional(call, "event") != "endpoint.url_validation":
        return None
    plain = text(call, "payload", "plainToken")
    seal = hmac_of(keys.first(call.received_at), plain.encode()).hex()
    return Answer.json({"plainToken": plain, "encryptedToken": seal})


def intercom(secrets: Secrets | None) -> Source:
    """Webhooks of Intercom; the secret is the app's client secret."""
    keys = Keys.read("intercom()", secrets)
    return Source(
        name="intercom",
        scheme=HmacHeader(keys, "X-Hub-Signature", "sha1", "sha1=", "hex"),
        id=lambda call: text(call, "id"),
        type=lambda call: text(call, "topic"),
        attempt=lambda call: int(text(call, "delivery_attempts")),
        setup=lambda call: OK if optional(call, "topic") == "ping" else None,
        waits=timedelta(seconds=5),
        retries=pauses(1),
        varies=("delivery_attempts",),
    )
