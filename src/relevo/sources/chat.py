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
    kinds,
    optional,
    pauses,
    text,
)
from relevo.webhook import FORM, Answer, Delivery


def _stamped(keys: Keys, tolerance: Duration, header: str, time: str) -> HmacHeader:
    """The scheme of Slack and Zoom: a version, the time and the body are signed."""
    return HmacHeader(
        keys,
        header,
        prefix="v0=",
        time=time,
        tolerance=milliseconds(tolerance),
        signed=lambda call, time: f"v0:{time}:".encode() + call.body,
    )


def _slack(secrets: Secrets | None, tolerance: Duration) -> HmacHeader:
    keys = Keys.read("slack()", secrets)
    return _stamped(keys, tolerance, "X-Slack-Signature", "X-Slack-Request-Timestamp")


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
        ends="more than 95 % failures in an hour switch the events off",
        keep_headers=("x-slack-retry-num", "x-slack-retry-reason"),
        again="cannot; `conversations.history` with `oldest` and `latest`",
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
        methods=("POST", "GET"),
        answer=EMPTY,
        success=(200,),
        unsigned=_slack_ssl_check,
        answer_is_content=always,
        waits=timedelta(seconds=3),
    )


def _slack_ssl_check(call: Delivery) -> Answer | None:
    """The answer to the call, by either method, that only looks at the certificate."""
    return EMPTY if _fields(call).get("ssl_check") == "1" else None


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
        methods=("POST", "GET"),
        json_field="payload",
        answer=EMPTY,
        success=(200,),
        unsigned=_slack_ssl_check,
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
        success=(200, 202),
        ends="a wrong signature that is not answered 401 removes the URL",
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
        success=(204,),
        waits=timedelta(seconds=3),
        retries=pauses(1, 2, 4, 8, 10),
        ends="events that fail too often are stopped, with a mail",
    )


def telegram(secret_token: Secrets | None) -> Source:
    """Updates of a Telegram bot; the secret is the `secret_token` of setWebhook.

    Telegram sends what failed again and again, and later updates of a chat wait behind it. It runs
    a method that stands in the answer; one that failed here would be lost with it, so call the API
    in a worker.
    """
    keys = Keys.read("telegram()", secret_token)
    return Source(
        name="telegram",
        scheme=SharedSecret(keys, "X-Telegram-Bot-Api-Secret-Token", None, None, None),
        id=lambda call: text(call, "update_id"),
        type=lambda call: next(name for name in call.json if name != "update_id"),
        answer=EMPTY,
        waits=timedelta(seconds=60),
        retries=pauses(0, 1 / 30, 1 / 15, 2 / 15, 4 / 15, 8 / 15, *(1.0,) * 1_439),
        ends="410 for 23 hours closes the webhook",
        again="cannot: what was answered is gone",
    )


def twilio(
    auth_token: Secrets | None, *, shared_keys: Mapping[str, Secrets] | None = None
) -> Source:
    """Status callbacks, messages and calls of Twilio; RELEVO_PUBLIC_URL is part of what is signed.

    One message's statuses are deliveries of their own. What is no status, a message that came in or
    a step of a call, is "incoming": answer it with TwiML.
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
        answer_is_content=lambda call: _twilio_type(call) == _INCOMING,
        waits=timedelta(seconds=15),
        retries=pauses(0),
        ends="nothing; only a call that found no connection is sent once more",
        keep_headers=("i-twilio-idempotency-token",),
        again="cannot; list messages by `DateSent`",
    )


_INCOMING = "incoming"
_SIDS = ("RecordingSid", "MessageSid", "SmsSid", "CallSid", "ConferenceSid", "VerificationSid")
_STATUSES = ("RecordingStatus", "StatusCallbackEvent", "MessageStatus", "SmsStatus", "CallStatus")


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
    status = _twilio_status(fields)
    if not status and "CallSid" in fields:
        # The steps of a call share its id and may press the same key twice.
        token = call.header("I-Twilio-Idempotency-Token") or ""
        return both(sid, body_hash(call) if call.body else digest(call.query.encode()), token)
    return both(sid, fields.get(status, _INCOMING), fields.get("SequenceNumber", "")).rstrip(":")


def _twilio_status(fields: Fields) -> str:
    """The field that tells a status; "" if the call wants an answer."""
    found = next((name for name in _STATUSES if name in fields), "")
    # Messages that come in and steps of a call have a status too.
    is_message = found == "SmsStatus" and fields[found] in ("received", "receiving")
    is_live = found == "CallStatus" and fields[found] in ("ringing", "in-progress")
    return "" if is_message or (is_live and "CallbackSource" not in fields) else found


def text_of(item: Mapping[str, object], name: str) -> str:
    """A text in an item of a body that is an array."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise LookupError(f'an item has no text "{name}"')
    return value


def _twilio_type(call: Delivery) -> str:
    if call.media_type in JSON:
        if not call.body.startswith(b"["):
            return "json"
        return kinds(text_of(item, "type") for item in call.items)
    fields = _fields(call)
    status = _twilio_status(fields)
    return f"{status}.{fields[status]}" if status else _INCOMING


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
        success=(200,),
        waits=timedelta(seconds=10),
        retries=pauses(0, 1, 5, 15, 60, 240, 720, *(1_440.0,) * 6),
        ends="hours of failure take the app off the webhook",
        again="cannot; read from the Graph API what it keeps (messages of WhatsApp it does not)",
    )


_META = ("message", "postback", "delivery", "read", "reaction", "referral", "optin")


def _meta_type(call: Delivery) -> str:
    owner = text(call, "object")
    found: list[str] = []
    for entry in call.json["entry"]:
        found += (change["field"] for change in entry.get("changes", ()))
        for item in entry.get("messaging", ()):
            found += [name for name in _META if name in item] or ["other"]
    return kinds(f"{owner}.{each}" for each in found)


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
        scheme=_stamped(keys, tolerance, "x-zm-signature", "x-zm-request-timestamp"),
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
        success=(200, 204),
        waits=timedelta(seconds=3),
        retries=pauses(5, 20, 60),
        ends="an endpoint whose repeated validation fails gets no more",
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
        ends="410, or seven days of errors; over 1,000 errors in a row pause it for 15 minutes",
        varies=("delivery_attempts",),
    )
