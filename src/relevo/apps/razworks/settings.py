"""What razworks is told by its environment."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from relevo import SettingsError

_NEEDED = (
    "DOPPLER_RELAY_API_KEY",
    "DOPPLER_RELAY_ACCOUNT_ID",
    "RAZWORKS_MAIL_FROM",
    "GEMINI_API_KEY",
    "RAZWORKS_STORAGE_HOSTS",
)


@dataclass(frozen=True, slots=True)
class RazworksSettings:
    """Keys and addresses; the addresses are the providers' own unless told otherwise."""

    relay_url: str
    relay_key: str
    relay_account: str
    mail_from: str
    gemini_url: str
    gemini_key: str
    gemini_model: str
    storage_hosts: frozenset[str]  # where recordings may lie

    def __repr__(self) -> str:
        return f"RazworksSettings(relay_url={self.relay_url!r}, gemini_url={self.gemini_url!r})"


def read(environ: Any = os.environ) -> RazworksSettings:
    """The settings; SettingsError naming everything that is missing."""
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        raise SettingsError(f"razworks needs {', '.join(missing)}")
    return RazworksSettings(
        relay_url=environ.get("DOPPLER_RELAY_URL", "https://api.dopplerrelay.com"),
        relay_key=environ["DOPPLER_RELAY_API_KEY"],
        relay_account=environ["DOPPLER_RELAY_ACCOUNT_ID"],
        mail_from=environ["RAZWORKS_MAIL_FROM"],
        gemini_url=environ.get(
            "GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"
        ),
        gemini_key=environ["GEMINI_API_KEY"],
        gemini_model=environ.get("GEMINI_MODEL", "gemini-2.5-flash"),
        storage_hosts=frozenset(
            host.strip().lower() for host in environ["RAZWORKS_STORAGE_HOSTS"].split(",")
        ),
    )


@asynccontextmanager
async def open_settings(relevo: Any) -> AsyncGenerator[RazworksSettings]:
    yield read()
