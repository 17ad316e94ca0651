"""Orders: what expenses have done, each in its own queue."""

from __future__ import annotations

import msgspec

from relevo import Breaker, Command, exponential, per_key

# Meta makes the ids of messages, so they may look like a card's number or a key: each command that
# carries one allows it.


class Incoming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it came from WhatsApp, in the few words that matter here."""

    id: str
    kind: str  # WhatsApp's type: text, image, audio …
    sent_at: int  # Unix seconds
    phone_number_id: str  # ours, which it came to and which answers
    wa_id: str = ""  # their number, unless they have a user name
    user_id: str = ""  # their id within this business
    name: str = ""
    text: str = ""  # or the caption
    media_id: str = ""
    media_sha256: str = ""  # base64

    @property
    def sender(self) -> str:
        """What a person is known by."""
        return self.user_id or self.wa_id


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a message of ours is getting on."""

    reply_id: str  # what we sent along: the message that we replied to
    wamid: str
    status: str
    error: str = ""


class PublishMessage(
    Command,
    queue="expenses:messages:publish",
    attempts=12,
    backoff=exponential("2s", cap="10m"),
    timeout="30s",
    key="publish:{message_id}",
    unique="forever",
    breaker=Breaker("qstash", window="10m"),
    allow=("message", "message_id"),
):
    """Hand a message to QStash, which brings it back to /api/process-message."""

    message_id: str
    message: Incoming


class ProcessMessage(
    Command,
    queue="expenses:messages:process",
    attempts=12,
    backoff=exponential("2s", cap="10m"),
    timeout="90s",
    key="message:{message_id}",
    unique="forever",
    limit=per_key("sender:{sender}", 1),  # two at once from one person would race for "the last"
    allow=("message", "message_id", "sender"),
):
    """Understand a message, write the expense down, order the reply."""

    message_id: str
    sender: str
    message: Incoming


class SpreadMessages(
    Command,
    queue="expenses:messages:spread",
    attempts=12,
    backoff=exponential("2s", cap="10m"),
    timeout="60s",
    allow=("messages",),
):
    """Order each of many messages: more than one delivery may order by itself."""

    messages: list[Incoming]


class SetAside(
    Command,
    queue="expenses:deliveries:aside",
    attempts=3,
    backoff=exponential("2s", cap="10m"),
    timeout="10s",
    allow=("why",),
):
    """Show people a delivery of Meta's that cannot be read: it ends among the dead letters."""

    delivery: str
    why: str


class SendReply(
    Command,
    queue="expenses:replies:send",
    attempts=12,
    backoff=exponential("2s", cap="10m"),
    timeout="30s",
    key="reply:{reply_id}",
    unique="forever",
    breaker=Breaker("whatsapp:send", failures=20, window="10m"),
    allow=("reply_id",),
):
    """Send the reply to a message, once."""

    reply_id: str


class RecordStatuses(
    Command,
    queue="expenses:replies:status",
    attempts=8,
    backoff=exponential("1s", cap="1m"),
    timeout="30s",
    allow=("statuses",),
):
    """Write down how replies of ours are getting on."""

    statuses: list[Status]
