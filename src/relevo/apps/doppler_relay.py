"""Doppler Relay, which sends letters one at a time. It knows no idempotency key and cannot be asked
what it sent, so a call without an answer is uncertain, and stays so until a person decides."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from relevo.apps.outside import Outside, Reply
from relevo.errors import ProviderRefused

_ADDRESS = re.compile(r"[^\s@,;<>\"\x00-\x1f\x7f]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z0-9-]{2,63}")
_LINE = re.compile(r"[^\x00-\x1f\x7f]{0,200}")


@dataclass(frozen=True, slots=True)
class Letter:
    """What is sent, to one person."""

    to: str
    name: str
    subject: str
    text: str
    html: str
    reply_to: str | None = None
    template: str | None = None  # one that lies at Relay, filled with `model`
    model: dict[str, Any] = field(default_factory=dict[str, Any])


class DopplerRelay:
    """An account at Relay."""

    def __init__(
        self, outside: Outside, *, key: str, account: str, sender: str, sender_name: str
    ) -> None:
        self._outside = outside
        self._headers = {"authorization": f"token {key}"}
        self._account = account
        self._from = {"from_email": sender, "from_name": sender_name}

    async def send(self, letter: Letter) -> str:
        """Send, and answer with Relay's id of what was sent."""
        if not _ADDRESS.fullmatch(letter.to) or not _LINE.fullmatch(letter.name):
            raise ProviderRefused("the address or the name is none that a letter can be sent to")
        body: dict[str, Any] = {
            **self._from,
            "recipients": [{"type": "to", "email": letter.to, "name": letter.name}],
        }
        if letter.reply_to:
            body["reply_to"] = {"email": letter.reply_to}
        if letter.template:
            body["model"] = letter.model
            path = f"/accounts/{self._account}/templates/{letter.template}/message"
        else:
            body |= {"subject": letter.subject, "html": letter.html, "text": letter.text}
            path = f"/accounts/{self._account}/messages"
        reply = await self._outside.call("POST", path, json=body, headers=self._headers, acts=True)
        return _sent(reply)


def _sent(reply: Reply) -> str:
    found = reply.check().object()
    # A refusal may come with a 2xx; what has an errorCode was not sent.
    if found.get("errorCode") is not None or found.get("errors"):
        raise ProviderRefused(f"{reply.who} refused the letter: {found.get('type', '')!s:.100}")
    sent = found.get("createdResourceId")
    if not isinstance(sent, str) or not _LINE.fullmatch(sent) or not sent:
        raise reply.unreadable("no id of a letter")
    return sent
