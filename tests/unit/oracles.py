"""The providers' own libraries as judges: each signs calls, and says which changed ones are right.

A call is made by `make`, signed by its provider's library, and then perhaps changed: a byte of the
body, a header, the time, the URL. Library and source judge the same call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote_plus, urlsplit

import discord_interactions
import jwt
import openai
import qstash
import resend
import stripe
from Adyen import util as adyen_util
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hubspot.utils.signature import Signature as HubSpotSignature
from mailgun.security import SecurityGuard
from mercadopago.webhook import InvalidWebhookSignatureError, WebhookSignatureValidator
from nacl.signing import SigningKey
from paddle_billing.Notifications import Secret, Verifier
from paddle_billing.Notifications.PaddleSignature import PaddleSignature
from sendgrid.helpers.eventwebhook import EventWebhook
from slack_sdk.signature import SignatureVerifier
from square.utils.webhooks_helper import verify_signature as verify_square
from standardwebhooks import Webhook as StandardWebhook
from svix.webhooks import Webhook as SvixWebhook
from twilio.request_validator import RequestValidator, get_signature_algorithm

from relevo import sources
from relevo.pairs import Headers
from relevo.signatures import InvalidSignature
from relevo.sources import Source
from relevo.webhook import Delivery

BASE = "https://app.example.com"
SECRET = "the key of these tests, schlüssel"
OTHER = "the key of another endpoint"
WHSEC = "whsec_cmVsZXZvLXN0YW5kYXJkLXdlYmhvb2sta2V5LTAwMDE="
OTHER_WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HEX = "ab" * 32
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@dataclass
class Call:
    """One call on its way, which anything may still be done to."""

    random: random.Random
    now: int
    at: str = ""  # the time that is signed, as it is written
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    twice: str = ""  # the header that comes twice
    target: str = "/hook"
    method: str = "POST"
    is_touched: bool = False

    @property
    def url(self) -> str:
        return BASE + self.target

    @property
    def text(self) -> str:
        return self.body.decode()

    def header(self, name: str) -> str:
        """A header as a framework gives it, where one that came twice is joined."""
        value = self.headers[name]
        return f"{value}, {value}" if self.twice == name else value

    def delivery(self, source: Source) -> Delivery:
        pairs = [*self.headers.items()]
        pairs += [(self.twice, self.headers[self.twice])] if self.twice in self.headers else []
        parts = urlsplit(self.target)
        return Delivery(
            path=parts.path,
            method=self.method,
            query=parts.query,
            headers=Headers(pairs),
            body=self.body,
            received_at=datetime.fromtimestamp(self.now, UTC),
            base=BASE,
            rules=source,
        )


class Oracle(ABC):
    """A provider's library beside our source."""

    name: ClassVar[str]
    headers: ClassVar[tuple[str, ...]]  # those that can be changed on the way
    content_type: ClassVar[str] = JSON
    has_time: ClassVar[bool] = False
    window: ClassVar[int] = 300
    signs_url: ClassVar[bool] = False
    in_milliseconds: ClassVar[bool] = False
    stricter: ClassVar[frozenset[str]] = frozenset()
    """Why ours refuses what theirs takes: "spelling", "future", "twice", …"""

    source: Source

    def make(self, call: Call) -> None:
        """The body and the target, before anything is signed."""
        call.body = json.dumps(event(call.random), ensure_ascii=call.random.random() < 0.5).encode()

    @abstractmethod
    def sign(self, call: Call) -> None:
        """Write the signature, as the library does or asks for."""

    @abstractmethod
    def judge(self, call: Call) -> bool:
        """The library's verdict; what it raises is a no."""

    def theirs(self, call: Call) -> bool:
        try:
            return self.judge(call)
        except Exception:  # noqa: BLE001 - libraries refuse in many ways
            return False

    def ours(self, call: Call) -> InvalidSignature | None:
        try:
            moment = datetime.fromtimestamp(call.now, UTC)
            self.source.scheme.check(call.delivery(self.source), moment)
        except InvalidSignature as refusal:
            return refusal
        return None

    def reason(self, call: Call, refusal: InvalidSignature) -> str:
        """Why ours refuses what theirs takes; "" where it must not."""
        if call.twice:
            return "twice"
        if refusal.kind == "time":
            late = call.now - int(call.at) // (1000 if self.in_milliseconds else 1)
            return "future" if late < -self.window else "age" if late > self.window else ""
        if self.has_time and not is_plain(call.at):
            return "spelling"
        return "spelling" if call.is_touched else ""


def is_plain(time: str) -> bool:
    """Whether it is a time as every provider writes it."""
    return time.isascii() and time.isdigit() and str(int(time)) == time


TEXTS = ("invoice.paid", "Gasté 12/5", "naïve \u2028 line", "😀", "", "a/b:c|d;e,f=g", "\\ \" '")


def event(chance: random.Random) -> dict[str, Any]:
    return {
        "id": f"evt_{chance.randrange(10**9)}",
        "type": chance.choice(TEXTS),
        "object": "event",
        "livemode": chance.random() < 0.5,
        "data": {"object": {"amount": chance.randrange(10**6), "note": chance.choice(TEXTS)}},
    }


# What happens to a call

OFFSETS = (0,) * 12 + (-100, 100, -280, 280, -330, 330, -4_000, 4_000, -(10**6), 10**6)
ODD_TIMES = ("{}.0", " {}", "+{}", "0{}", "{}e0", "-{}", "{}\u0664", "0x{}", "{}_0", "", "now")


def flipped(text: str, chance: random.Random) -> str:
    if not text:
        return "x"
    at = chance.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ chance.choice((1, 2, 4, 16, 32))) + text[at + 1 :]


def mangled(text: str, chance: random.Random) -> str:
    """A header's value that is nearly the right one."""
    at = chance.randrange(len(text) + 1)
    changed = chance.choice(
        (
            lambda: flipped(text, chance),
            lambda: flipped(text, chance),
            lambda: text[:at],
            lambda: text[:-1],
            lambda: text[1:],
            lambda: text[:at] + text[at + 1 :],
            lambda: text[:at] + chance.choice(" ,;=.\t\x00é=v") + text[at:],
            lambda: text.upper(),
            lambda: text.lower(),
            lambda: text.swapcase(),
            lambda: text.rstrip("="),
            lambda: text + "=",
            lambda: text.replace("+", "-").replace("/", "_"),
            lambda: text.replace("=", "==", 1),
            lambda: text + text,
            lambda: text.partition("=")[2] or text,
            lambda: "v1=" + text,
            lambda: "",
            lambda: text[::-1],
            lambda: "0" * len(text),
        )
    )()
    return changed.strip(" \t")  # as every server does


def bytes_changed(body: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(body) + 1)
    last = max(at - 1, 0)
    return chance.choice(
        (
            lambda: body[:last] + bytes([(body[last] if body else 0) ^ 1]) + body[last + 1 :],
            lambda: body[:at] + bytes([chance.randrange(256)]) + body[at:],
            lambda: body[:last] + body[last + 1 :],
            lambda: body + b"\n",
            lambda: body + b" ",
            lambda: b"\xef\xbb\xbf" + body,
            lambda: body.replace(b", ", b","),
            lambda: body.replace(b": ", b":"),
            lambda: body.swapcase(),
            lambda: body + body,
            lambda: body[:at],
            lambda: b"",
            lambda: body.replace(b"evt_", b"evt-"),
        )
    )()


def target_changed(target: str, chance: random.Random) -> str:
    return chance.choice(
        (
            target + "/",
            target + "x",
            target.swapcase(),
            target.replace("hook", "hooks"),
            target.replace("hook", "h%6Fok"),
            target + ("&" if "?" in target else "?") + "a=1",
            target + "&" * ("?" in target),
            target.partition("?")[0],
            "/",
            target.replace("?", "?x=%20&"),
            "/" + target,
        )
    )


def altered(oracle: Oracle, call: Call) -> None:
    """One change of a call that is signed."""
    chance = call.random
    before = (call.body, dict(call.headers), call.twice, call.target)
    there = [name for name in oracle.headers if name in call.headers]
    match chance.randrange(10):
        case 0 | 1 | 2 | 3 if there:
            name = chance.choice(there)
            call.headers[name] = mangled(call.headers[name], chance)
        case 4 if there:
            del call.headers[chance.choice(there)]
        case 5 if there:
            call.twice = chance.choice(there)
        case 6 if oracle.signs_url:
            call.target = target_changed(call.target, chance)
        case _:
            call.body = bytes_changed(call.body, chance)
    call.is_touched |= before != (call.body, call.headers, call.twice, call.target)


def made(oracle: Oracle, chance: random.Random, now: int) -> Call:
    """A call as the provider sends it, or one with some changes."""
    call = Call(chance, now)
    moment = now + chance.choice(OFFSETS)
    call.at = str(moment * 1000 + chance.randrange(1000) if oracle.in_milliseconds else moment)
    if oracle.has_time and chance.random() < 0.04:
        call.at = chance.choice(ODD_TIMES).format(call.at)
    oracle.make(call)
    oracle.sign(call)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2))):
        altered(oracle, call)
    call.headers.setdefault("Content-Type", oracle.content_type)
    return call


def hexed(key: str | bytes, signed: str | bytes) -> str:
    return mac(key, signed).hex()


def mac(key: str | bytes, signed: str | bytes, algorithm: str = "sha256") -> bytes:
    raw = key.encode() if isinstance(key, str) else key
    return hmac.digest(raw, signed.encode() if isinstance(signed, str) else signed, algorithm)


def listed(call: Call, right: Callable[[], str], wrong: Callable[[], str]) -> list[str]:
    """The signatures of a call: one, or those of two keys while one replaces the other."""
    return call.random.choice(
        (
            lambda: [right()],
            lambda: [right()],
            lambda: [right(), wrong()],
            lambda: [wrong(), right()],
            lambda: [wrong()],
        )
    )()


class Stripe(Oracle):
    name, headers, has_time = "stripe", ("Stripe-Signature",), True
    stricter = frozenset({"spelling", "future", "twice"})
    source = sources.stripe(SECRET)

    def sign(self, call: Call) -> None:
        sign = stripe.WebhookSignature._compute_signature
        signed = f"{call.at}.{call.text}"
        seals = listed(call, lambda: sign(signed, SECRET), lambda: sign(signed, OTHER))
        seals = [f"v1={seal}" for seal in seals]
        seals += ["v0=" + sign(signed, SECRET)] * (call.random.random() < 0.1)
        call.headers["Stripe-Signature"] = ",".join([f"t={call.at}", *seals])

    def judge(self, call: Call) -> bool:
        stripe.Webhook.construct_event(call.body, call.header("Stripe-Signature"), SECRET)
        return True


class Slack(Oracle):
    name, has_time = "slack", True
    headers = ("X-Slack-Signature", "X-Slack-Request-Timestamp")
    stricter = frozenset({"spelling"})
    source = sources.slack(SECRET)

    def sign(self, call: Call) -> None:
        key = OTHER if call.random.random() < 0.1 else SECRET
        seal = SignatureVerifier(key).generate_signature(timestamp=call.at, body=call.body)
        assert seal is not None
        call.headers |= {"X-Slack-Signature": seal, "X-Slack-Request-Timestamp": call.at}

    def judge(self, call: Call) -> bool:
        headers = {name: call.header(name) for name in call.headers}
        return SignatureVerifier(SECRET).is_valid_request(call.body, headers)


class SlackCommand(Slack):
    name, content_type = "slack commands", FORM
    source = sources.slack_commands(SECRET)

    def make(self, call: Call) -> None:
        call.body = form_of(call.random, "trigger_id", "command", "text").encode()


def form_of(chance: random.Random, *names: str) -> str:
    fields = [(name, chance.choice(TEXTS)) for name in names]
    fields += [("again", chance.choice(TEXTS))] * chance.randrange(3)
    chance.shuffle(fields)
    return "&".join(f"{name}={quote_plus(value)}" for name, value in fields)


class Several(dict[str, list[str]]):
    """A form as frameworks give it to Twilio's validator."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        for name, value in parse_qsl(body.decode(), keep_blank_values=True):
            self.setdefault(name, []).append(value)

    def getlist(self, name: str) -> list[str]:
        return self[name]


class Twilio(Oracle):
    name, headers, content_type, signs_url = "twilio", ("X-Twilio-Signature",), FORM, True
    source = sources.twilio(SECRET, shared_keys={"webhooks_1": OTHER})
    key, algorithm = SECRET, "HMAC_SHA1"
    settings = "X-Twilio-Webhooks-Signature-Settings"

    def make(self, call: Call) -> None:
        call.target += call.random.choice(("", "", "?a=1", "?b=%20&a=%C3%A9", "?rc=2"))
        call.body = form_of(call.random, "MessageSid", "MessageStatus", "To", "Body").encode()

    def sign(self, call: Call) -> None:
        url = call.random.choice((call.url, call.url, call.url.replace(".com", ".com:443")))
        url = call.random.choice((*[url] * 8, url.replace("https", "http"), f"{url}#rc=3"))
        key = "wrong" if call.random.random() < 0.1 else self.key
        seal = RequestValidator(key).compute_signature(url, self.signed(call), self.algorithm)
        call.headers["X-Twilio-Signature"] = seal

    def signed(self, call: Call) -> Any:
        return Several(call.body)

    def judge(self, call: Call) -> bool:
        said = call.headers.get(self.settings)
        return RequestValidator(self.key).validate(
            call.url,
            self.signed(call),
            call.header("X-Twilio-Signature"),
            get_signature_algorithm(said),
        )


class TwilioShared(Twilio):
    name, key, algorithm = "twilio shared key", OTHER, "HMAC_SHA256"
    headers = ("X-Twilio-Signature", Twilio.settings)
    stricter = frozenset({"spelling", "twice"})
    source = sources.twilio(SECRET, shared_keys={"webhooks_1": OTHER})

    def sign(self, call: Call) -> None:
        super().sign(call)
        call.headers[self.settings] = "key=webhooks_1,algorithm=HMAC_SHA256"


class TwilioJson(Twilio):
    name, content_type = "twilio json", JSON
    source = sources.twilio(SECRET)

    def make(self, call: Call) -> None:
        Oracle.make(self, call)
        digest = hashlib.sha256(call.body).hexdigest()
        call.target += call.random.choice(("?", "?a=1&", "?b=%20&")) + f"bodySHA256={digest}"

    def signed(self, call: Call) -> Any:
        return {}

    def judge(self, call: Call) -> bool:
        seal = call.header("X-Twilio-Signature")
        return RequestValidator(self.key).validate(call.url, call.text, seal)


class Discord(Oracle):
    name, has_time = "discord", True
    headers = ("X-Signature-Ed25519", "X-Signature-Timestamp")
    seed = bytes(range(32))
    public = bytes(SigningKey(seed).verify_key).hex()
    source = sources.discord(public)
    stricter = frozenset({"spelling"})

    def sign(self, call: Call) -> None:
        seed = bytes(32) if call.random.random() < 0.1 else self.seed
        seal = SigningKey(seed).sign(call.at.encode() + call.body).signature.hex()
        call.headers |= {"X-Signature-Ed25519": seal, "X-Signature-Timestamp": call.at}

    def judge(self, call: Call) -> bool:
        names = ("X-Signature-Ed25519", "X-Signature-Timestamp")
        seal, time = (call.header(name) for name in names)
        return discord_interactions.verify_key(call.body, seal, time, self.public)


class Standard(Oracle):
    name, word, has_time = "standard webhooks", "webhook", True
    headers = ("webhook-id", "webhook-timestamp", "webhook-signature")
    stricter = frozenset({"spelling", "twice"})
    source = sources.standard(WHSEC)

    def sign(self, call: Call) -> None:
        id = f"msg_{call.random.randrange(10**9)}"
        seals = listed(call, lambda: self.seal(call, id, WHSEC), lambda: self.seal(call, id, ""))
        seals = [f"v1,{seal}" for seal in seals]
        seals += ["v1a,b2xk"] * (call.random.random() < 0.1)
        values = {"id": id, "timestamp": call.at, "signature": " ".join(seals)}
        call.headers |= {f"{self.word}-{name}": value for name, value in values.items()}

    def seal(self, call: Call, id: str, secret: str) -> str:
        if call.at.isascii() and call.at.isdigit():
            moment = datetime.fromtimestamp(int(call.at), UTC)
            signed = StandardWebhook(secret or OTHER_WHSEC).sign(id, moment, call.text)
            return signed.partition(",")[2]
        key = base64.b64decode((secret or OTHER_WHSEC).removeprefix("whsec_"))
        return base64.b64encode(mac(key, f"{id}.{call.at}.{call.text}")).decode()

    def judge(self, call: Call) -> bool:
        StandardWebhook(WHSEC).verify(call.body, self.given(call))
        return True

    def given(self, call: Call) -> dict[str, str]:
        """The headers, without entries that cannot be read: this library fails at them."""
        headers = {name: call.header(name) for name in call.headers}
        name = f"{self.word}-signature"
        read = [each for each in headers[name].split(" ") if can_be_read(each)]
        return {**headers, name: " ".join(read)}


def can_be_read(entry: str) -> bool:
    """Whether it is a pair whose second half is base64; the format's other readers pass over it."""
    try:
        base64.b64decode(entry.partition(",")[2])
    except ValueError:
        return False
    return entry.count(",") == 1


class Svix(Standard):
    name, word = "svix", "svix"
    headers = ("svix-id", "svix-timestamp", "svix-signature")

    def judge(self, call: Call) -> bool:
        SvixWebhook(WHSEC).verify(call.body, self.given(call))
        return True


class OpenAI(Standard):
    name = "openai"
    client = openai.OpenAI(api_key="none", webhook_secret=WHSEC)

    def judge(self, call: Call) -> bool:
        headers = {name: call.header(name) for name in call.headers}
        self.client.webhooks.verify_signature(call.body, headers)
        return True


class Resend(Standard):
    name, word = "resend", "svix"
    headers = Svix.headers

    def judge(self, call: Call) -> bool:
        names = ("id", "timestamp", "signature")
        headers: Any = {name: call.header(f"svix-{name}") for name in names}
        options: Any = {"payload": call.text, "headers": headers, "webhook_secret": WHSEC}
        resend.Webhooks.verify(options)
        return True


class QStash(Oracle):
    name, headers, signs_url = "qstash", ("Upstash-Signature",), True
    current, next = "sig_the_current_one".ljust(64, "."), "sig_the_next_one".ljust(64, ".")
    source = sources.qstash(current, next, f"{BASE}/hook", leeway="0s")
    stricter = frozenset({"claims", "spelling"})

    def sign(self, call: Call) -> None:
        chance = call.random
        at = int(call.at)
        claims: dict[str, Any] = {
            "iss": "Upstash",
            "sub": call.url,
            "exp": at + 300,
            "nbf": at,
            "iat": at,
            "jti": f"jwt_{chance.randrange(10**9)}",
            "body": base64.urlsafe_b64encode(hashlib.sha256(call.body).digest()).decode(),
        }
        if chance.random() < 0.3:
            name = chance.choice([*claims])
            claims[name] = chance.choice((None, 0, "", "https://evil.example.com", -1, at, True))
        if chance.random() < 0.1:
            del claims[chance.choice([*claims])]
        key = chance.choice((self.current,) * 4 + (self.next, "sig_of_another".ljust(64, ".")))
        algorithm = chance.choice(("HS256",) * 12 + ("HS512", "none"))
        signed = json.dumps(claims).encode()
        token = jwt.api_jws.encode(signed, None if algorithm == "none" else key, algorithm)
        call.headers["Upstash-Signature"] = token

    def judge(self, call: Call) -> bool:
        receiver = qstash.Receiver(self.current, self.next)
        seal = call.header("Upstash-Signature")
        # The path is the endpoint's, whatever a proxy made of it on the way.
        query = urlsplit(call.target).query
        url = f"{BASE}/hook?{query}" if query else f"{BASE}/hook"
        receiver.verify(signature=seal, body=call.text, url=url)
        return True

    def reason(self, call: Call, refusal: InvalidSignature) -> str:
        if refusal.kind in ("claim", "time"):
            return "" if self.are_plain(call) else "claims"
        return super().reason(call, refusal)

    def are_plain(self, call: Call) -> bool:
        """Whether the claims are those that QStash writes."""
        at = int(call.at)
        claims = jwt.decode(call.headers["Upstash-Signature"], options={"verify_signature": False})
        times = (claims.get("exp"), claims.get("nbf"), claims.get("iat"))
        return times == (at + 300, at, at) and str(claims.get("jti")).startswith("jwt_")


class SendGrid(Oracle):
    name, has_time = "sendgrid", True
    headers = (
        "X-Twilio-Email-Event-Webhook-Signature",
        "X-Twilio-Email-Event-Webhook-Timestamp",
    )
    stricter = frozenset({"spelling", "twice"})

    def __init__(self) -> None:
        self.private = ec.derive_private_key(4_242, ec.SECP256R1())
        public = self.private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.public = base64.b64encode(public).decode()
        self.verifier = EventWebhook(self.public)
        self.source = sources.sendgrid(self.public)

    def make(self, call: Call) -> None:
        items = [event(call.random) for _ in range(call.random.randrange(1, 3))]
        call.body = json.dumps(items).encode() + b"\r\n"

    def sign(self, call: Call) -> None:
        key = (
            self.private if call.random.random() < 0.9 else ec.derive_private_key(7, ec.SECP256R1())
        )
        seal = key.sign(call.at.encode() + call.body, ec.ECDSA(hashes.SHA256()))
        values = (base64.b64encode(seal).decode(), call.at)
        call.headers |= dict(zip(self.headers, values, strict=True))

    def judge(self, call: Call) -> bool:
        seal, time = (call.header(name) for name in self.headers)
        return self.verifier.verify_signature(call.text, seal, time)


class Square(Oracle):
    name, headers, signs_url = "square", ("x-square-hmacsha256-signature",), True
    source = sources.square(SECRET)

    def sign(self, call: Call) -> None:
        key = OTHER if call.random.random() < 0.1 else SECRET
        seal = base64.b64encode(mac(key, call.url + call.text)).decode()
        call.headers["x-square-hmacsha256-signature"] = seal

    def judge(self, call: Call) -> bool:
        return verify_square(
            request_body=call.text,
            signature_header=call.header("x-square-hmacsha256-signature"),
            signature_key=SECRET,
            notification_url=call.url,
        )


@dataclass
class PaddleRequest:
    body: bytes
    headers: dict[str, str]


class Paddle(Oracle):
    name, headers, has_time = "paddle", ("Paddle-Signature",), True
    source = sources.paddle(SECRET)
    stricter = frozenset({"spelling", "twice"})

    def sign(self, call: Call) -> None:
        def seal(key: str) -> str:
            signed = f"{call.at}:{call.text}".encode()
            return PaddleSignature.calculate_hmac(key, signed).hexdigest()

        seals = [f"h1={each}" for each in listed(call, lambda: seal(SECRET), lambda: seal(OTHER))]
        call.headers["Paddle-Signature"] = ";".join([f"ts={call.at}", *seals])

    def judge(self, call: Call) -> bool:
        # The library fails at an item that it does not know: a second kind of signature would lock
        # its users out. Its window is 5 s; ours is as wide as everybody's.
        items = call.header("Paddle-Signature").split(";")
        known = [each for each in items if each.count("=") != 1 or each[:3] in ("ts=", "h1=")]
        known = [each for each in known if each.count("=") < 2]
        request = PaddleRequest(call.body, {"Paddle-Signature": ";".join(known)})
        return Verifier(300).verify(request, Secret(SECRET))


class Adyen(Oracle):
    name, headers = "adyen", ()
    source = sources.adyen(HEX)
    stricter = frozenset({"spelling"})

    def make(self, call: Call) -> None:
        chance = call.random
        self.item: dict[str, Any] = {
            "pspReference": f"PSP{chance.randrange(10**9)}",
            "merchantAccountCode": chance.choice(("ACC", "A:C", "A\\C")),
            "merchantReference": chance.choice(TEXTS),
            "amount": {"value": chance.randrange(10**6), "currency": "EUR"},
            "eventCode": "AUTHORISATION",
            "success": chance.choice(("true", "false")),
            "reason": chance.choice(TEXTS),
        }
        if chance.random() < 0.3:
            self.item["originalReference"] = "PSP0"

    def sign(self, call: Call) -> None:
        key = "cd" * 32 if call.random.random() < 0.1 else HEX
        seal = adyen_util.generate_notification_sig(self.item, key).decode()
        if call.random.random() < 0.1:
            seal = mangled(seal, call.random)
        self.item["additionalData"] = {"hmacSignature": seal}
        items = [{"NotificationRequestItem": self.item}]
        call.body = json.dumps({"live": "false", "notificationItems": items}).encode()

    def judge(self, call: Call) -> bool:
        return adyen_util.is_valid_hmac_notification(json.loads(call.body), HEX) is True


class AdyenPlatform(Oracle):
    name, headers = "adyen platform", ("HmacSignature",)
    source = sources.adyen_platform(HEX)

    def sign(self, call: Call) -> None:
        key = "cd" * 32 if call.random.random() < 0.1 else HEX
        call.headers["HmacSignature"] = adyen_util.generate_payload_sig(call.body, key).decode()

    def judge(self, call: Call) -> bool:
        return adyen_util.is_valid_hmac_payload(call.header("HmacSignature"), HEX, call.body)


class HubSpot(Oracle):
    name, version, signs_url, has_time = "hubspot", "v3", True, True
    in_milliseconds = True
    headers = ("X-HubSpot-Signature-v3", "X-HubSpot-Request-Timestamp")
    source = sources.hubspot(SECRET)
    stricter = frozenset({"future", "spelling"})

    def make(self, call: Call) -> None:
        call.target += call.random.choice(("", "", "?a=1", "?b=%20&a=%C3%A9"))
        call.body = json.dumps([event(call.random)]).encode()

    def seal(self, call: Call) -> str:
        key = OTHER if call.random.random() < 0.1 else SECRET
        method = call.random.choice(("POST",) * 20 + ("GET",))
        return HubSpotSignature.get_signature(
            key, call.text, self.version, call.url, method, call.at
        )

    def sign(self, call: Call) -> None:
        call.headers |= dict(zip(self.headers, (self.seal(call), call.at), strict=True))

    def judge(self, call: Call) -> bool:
        seal, time = (call.header(name) for name in self.headers)
        return HubSpotSignature.is_valid(
            seal, SECRET, call.text, call.url, "POST", self.version, time
        )


class HubSpotV2(HubSpot):
    name, version, has_time = "hubspot v2", "v2", False
    headers = ("X-HubSpot-Signature", "X-HubSpot-Signature-Version")
    source = sources.hubspot(SECRET, versions=("v2",))
    stricter = frozenset()

    def sign(self, call: Call) -> None:
        call.headers |= dict(zip(self.headers, (self.seal(call), self.version), strict=True))

    def judge(self, call: Call) -> bool:
        seal, version = (call.header(name) for name in self.headers)
        return version == self.version and HubSpotSignature.is_valid(
            seal, SECRET, call.text, call.url, "POST", version
        )


class HubSpotV1(HubSpotV2):
    name, version, signs_url = "hubspot v1", "v1", False
    source = sources.hubspot(SECRET, versions=("v1",))


class MercadoPago(Oracle):
    name, headers, signs_url = "mercado pago", ("x-signature", "x-request-id"), True
    source = sources.mercado_pago(SECRET)
    stricter = frozenset({"spelling", "twice"})

    def make(self, call: Call) -> None:
        super().make(call)
        id = call.random.choice(("123456", "ORD01ABC", "ord01abc", ""))
        call.target += f"?data.id={id}&type=payment" if id else "?type=payment"

    @staticmethod
    def id_of(call: Call) -> str:
        found = parse_qsl(urlsplit(call.target).query)
        # Names of a query are read in any case.
        return next((value for name, value in found if name.lower() == "data.id"), "")

    def sign(self, call: Call) -> None:
        request, id = f"req-{call.random.randrange(10**9)}", self.id_of(call)
        signed = f"id:{id};" * bool(id) + f"request-id:{request};ts:{call.at};"
        key = OTHER if call.random.random() < 0.1 else SECRET
        call.headers["x-signature"] = f"ts={call.at},v1={hexed(key, signed)}"
        call.headers["x-request-id"] = request

    def judge(self, call: Call) -> bool:
        request = call.header("x-request-id") if "x-request-id" in call.headers else None
        # Its own words differ on whether the id is signed in lower case: either counts.
        id = self.id_of(call)
        return any(self.fits(call, request, spelled) for spelled in (id, id.lower()))

    @staticmethod
    def fits(call: Call, request: str | None, id: str) -> bool:
        try:
            WebhookSignatureValidator.validate(call.header("x-signature"), request, id, SECRET)
        except InvalidWebhookSignatureError:
            return False
        return True


class Mailgun(Oracle):
    name, headers, has_time, window = "mailgun", (), True, 9 * 3_600
    source = sources.mailgun(SECRET)
    stricter = frozenset({"spelling"})

    def sign(self, call: Call) -> None:
        chance = call.random
        token = "".join(chance.choices("0123456789abcdef", k=50))
        key = OTHER if chance.random() < 0.1 else SECRET
        seal = hexed(key, call.at + token)
        if chance.random() < 0.2:
            seal = mangled(seal, chance)
        mark = {"timestamp": call.at, "token": token, "signature": seal}
        call.body = json.dumps({"signature": mark, "event-data": event(chance)}).encode()

    def judge(self, call: Call) -> bool:
        mark = json.loads(call.body)["signature"]
        # As long as Mailgun repeats a call; its library allows 15 minutes.
        return SecurityGuard.verify_webhook(
            SECRET, mark["token"], mark["timestamp"], mark["signature"], self.window
        )


ORACLES: tuple[Callable[[], Oracle], ...] = (
    Stripe,
    Slack,
    SlackCommand,
    Twilio,
    TwilioShared,
    TwilioJson,
    Discord,
    Standard,
    Svix,
    OpenAI,
    Resend,
    QStash,
    SendGrid,
    Square,
    Paddle,
    Adyen,
    AdyenPlatform,
    HubSpot,
    HubSpotV2,
    HubSpotV1,
    MercadoPago,
    Mailgun,
)


def current() -> int:
    return int(time.time())
