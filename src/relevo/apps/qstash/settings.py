"""What our QStash is told by its environment."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from relevo import SettingsError

# The vendor's own development server has these, so that an .env made for it works unchanged.
DEV = {
    "QSTASH_TOKEN": "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=",
    "QSTASH_CURRENT_SIGNING_KEY": "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r",
    "QSTASH_NEXT_SIGNING_KEY": "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs",
    "QSTASH_ALLOW": "localhost,127.0.0.0/8,::1",
}


@dataclass(frozen=True, slots=True, repr=False)
class QStashSettings:
    """Its token, its keys, and where it may call."""

    token: str
    current: str  # keys to begin with; after a rotation those in the database count
    next: str
    allow: tuple[str, ...]
    rewrite: dict[str, str]
    seconds: float  # that a destination has, unless the message says less
    keep_days: int


def read(environ: Mapping[str, str] = os.environ) -> QStashSettings:
    """The settings; SettingsError naming everything that is missing or wrong at once."""
    if environ.get("QSTASH_DEV", "").lower() in ("1", "true", "yes"):
        environ = DEV | {name: value for name, value in environ.items() if value}
    names = ("QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY", "QSTASH_NEXT_SIGNING_KEY")
    problems = [f"{name} is missing" for name in names if not environ.get(name)]
    rewrite: dict[str, str] = {}
    for pair in environ.get("QSTASH_REWRITE", "").split(","):
        prefix, equals, other = pair.strip().partition("=")
        if equals and prefix.startswith("http") and other.startswith("http"):
            rewrite[prefix] = other
        elif pair.strip():
            problems.append("QSTASH_REWRITE is https://there=http://127.0.0.1:3000, …")
    seconds = environ.get("QSTASH_TIMEOUT_SECONDS") or "120"
    if not seconds.isdigit() or not 1 <= int(seconds) <= 7_200:
        problems.append("QSTASH_TIMEOUT_SECONDS is 1 to 7200")
    if problems:
        hint = "; or set QSTASH_DEV=1 to try it out with the vendor's development keys"
        raise SettingsError("qstash: " + "; ".join(problems) + hint)
    return QStashSettings(
        token=environ["QSTASH_TOKEN"],
        current=environ["QSTASH_CURRENT_SIGNING_KEY"],
        next=environ["QSTASH_NEXT_SIGNING_KEY"],
        allow=tuple(part for part in environ.get("QSTASH_ALLOW", "").split(",") if part.strip()),
        rewrite=rewrite,
        seconds=float(seconds),
        keep_days=7,
    )


@asynccontextmanager
async def open_settings(relevo: Any) -> AsyncGenerator[QStashSettings]:
    yield read()
