"""Names that the outside depends on: Redis keys, ids of rows, and what a part of them may be.

A hotel or channel with a colon in it could pass for another's list (`dead:hotel999` is one), so
parts are checked before a name is made of them, and nowhere else are such names written.
"""

from __future__ import annotations

import hashlib
import re

_PART = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9._@+=~-]{1,128}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
ID_MAX = 200


def is_part(text: str) -> bool:
    """Whether a text may be a hotel or a channel."""
    return _PART.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Whether a text may be an id that others made: short, and without control characters."""
    return 0 < len(text) <= ID_MAX and not _CONTROL.search(text)


def events(hotel: str) -> str:
    """The list that producers LPUSH to."""
    return f"cm_events:{_part(hotel)}"


def processing(hotel: str) -> str:
    """Where an entry is between being taken and being safe; a bot that dies leaves it here."""
    return f"cm_events:processing:{_part(hotel)}"


def dead(hotel: str) -> str:
    """The entries that could not be read, as they came."""
    return f"cm_events:dead:{_part(hotel)}"


def reasons(hotel: str) -> str:
    """A hash beside the dead list: why each entry is there."""
    return f"cm_events:reasons:{_part(hotel)}"


def dedup(hotel: str, message: str) -> str:
    """The fast window: somebody is on this message."""
    plain = message if _PLAIN.fullmatch(message) else f"~{fingerprint(message.encode())}"
    return f"cm_msgdedup:{_part(hotel)}:{plain}"


def heartbeat(hotel: str) -> str:
    return f"bot:cm:{_part(hotel)}:heartbeat"


def enabled(hotel: str) -> str:
    """The feature flag: "0" pauses the bot; absent, the settings decide."""
    return f"bot:cm:{_part(hotel)}:enabled"


def strong_id(hotel: str, channel: str, message: str) -> str:
    """The permanent id of a message; its first two parts have no colon, so it has one reading."""
    return f"{_part(hotel)}:{_part(channel)}:{message}"


def scoped(hotel: str, id: str) -> str:
    """An id that is only unique within its hotel, made unique."""
    return f"{_part(hotel)}:{id}"


def fingerprint(entry: bytes) -> str:
    """What an entry of a list is called by where the whole of it would be too long."""
    return hashlib.blake2b(entry, digest_size=16).hexdigest()


def _part(text: str) -> str:
    if not is_part(text):
        raise ValueError("a hotel or channel has 1 to 64 letters, digits, '-' or '_'")
    return text
