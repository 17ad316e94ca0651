"""What subscriptions are told by their environment."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relevo import SettingsError

_NEEDED = (
    "SUBSCRIPTIONS_STRIPE_WEBHOOK_SECRET",
    "DOPPLER_RELAY_API_KEY",
    "DOPPLER_RELAY_ACCOUNT_ID",
    "DOPPLER_RELAY_FROM",
    "DOPPLER_API_KEY",
    "DOPPLER_ACCOUNT",
    "DOPPLER_LIST_ID",
    "GOOGLE_SERVICE_ACCOUNT",
    "SPREADSHEET_ID",
)
NAMES = ("email", "list", "spreadsheet")
SHEET_WRITES = 60
"""What Google lets one service account write in a minute, by whichever way a row comes."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How one worker reads its stream; milliseconds."""

    read_timeout: int = 2_000
    backoff_base: int = 60_000
    backoff_max: int = 120_000

    def wait(self, deliveries: int) -> int:
        """How long an entry rests after so many deliveries."""
        return min(self.backoff_base * 2 ** min(max(deliveries, 1) - 1, 30), self.backoff_max)


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionSettings:
    """Keys and addresses; the addresses are the providers' own unless told otherwise."""

    webhook_secret: str
    livemode: bool
    relay_url: str
    relay_key: str
    relay_account: str
    mail_from: str
    doppler_url: str
    doppler_key: str
    doppler_account: str
    doppler_list: str
    sheets_url: str
    service_account: Mapping[str, str]
    spreadsheet_id: str
    worksheet: str
    redis_host: str  # empty: the integrations run from relevo's own queues
    redis_port: int
    redis_password: str | None
    max_retries: int
    paces: Mapping[str, Pace]


def read(environ: Mapping[str, str] = os.environ) -> SubscriptionSettings:
    """The settings; SettingsError naming everything that is missing or wrong at once."""
    problems = [f"{name} is missing" for name in _NEEDED if not environ.get(name)]
    numbers: dict[str, int] = {}
    for name, default in (("REDIS_PORT", 6379), ("WORKERS_MAX_RETRIES", 5)):
        numbers[name] = _number(environ, name, default, problems)
    paces = {name: _pace(environ, name, problems) for name in NAMES}
    account = _account(environ.get("GOOGLE_SERVICE_ACCOUNT", ""), problems)
    livemode = (environ.get("STRIPE_LIVEMODE") or "false").lower()
    if livemode not in ("true", "false"):
        problems.append("STRIPE_LIVEMODE is true or false")
    if problems:
        raise SettingsError("subscriptions: " + "; ".join(problems))
    return SubscriptionSettings(
        webhook_secret=environ["SUBSCRIPTIONS_STRIPE_WEBHOOK_SECRET"],
        livemode=livemode == "true",
        relay_url=environ.get("DOPPLER_RELAY_URL", "https://api.dopplerrelay.com"),
        relay_key=environ["DOPPLER_RELAY_API_KEY"],
        relay_account=environ["DOPPLER_RELAY_ACCOUNT_ID"],
        mail_from=environ["DOPPLER_RELAY_FROM"],
        doppler_url=environ.get("DOPPLER_URL", "https://restapi.fromdoppler.com"),
        doppler_key=environ["DOPPLER_API_KEY"],
        doppler_account=environ["DOPPLER_ACCOUNT"],
        doppler_list=environ["DOPPLER_LIST_ID"],
        sheets_url=environ.get("GOOGLE_SHEETS_URL", "https://sheets.googleapis.com"),
        service_account=account,
        spreadsheet_id=environ["SPREADSHEET_ID"],
        worksheet=environ.get("SPREADSHEET_WORKSHEET", "Subscriptions"),
        redis_host=environ.get("REDIS_HOST", ""),
        redis_port=numbers["REDIS_PORT"],
        redis_password=environ.get("REDIS_PASSWORD") or None,
        max_retries=numbers["WORKERS_MAX_RETRIES"],
        paces=paces,
    )


def _number(environ: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = environ.get(name, "") or str(default)
    if text.isascii() and text.isdigit() and 0 < int(text) <= 86_400_000:
        return int(text)
    problems.append(f"{name} is a whole number above 0")
    return default


def _pace(environ: Mapping[str, str], name: str, problems: list[str]) -> Pace:
    usual = Pace()
    prefix = f"WORKERS_{name.upper()}_"
    return Pace(
        _number(environ, f"{prefix}READ_TIMEOUT", usual.read_timeout, problems),
        _number(environ, f"{prefix}BACKOFF_BASE", usual.backoff_base, problems),
        _number(environ, f"{prefix}BACKOFF_MAX", usual.backoff_max, problems),
    )


def _account(text: str, problems: list[str]) -> dict[str, str]:
    """The service account's key file, or its content."""
    if not text:
        return {}
    try:
        content = text if text.lstrip().startswith("{") else Path(text).read_text("utf-8")
        found: Any = json.loads(content)
        return {name: found[name] for name in ("private_key", "client_email", "token_uri")} | found
    except (OSError, ValueError, LookupError, TypeError):
        problems.append("GOOGLE_SERVICE_ACCOUNT is neither a key file nor its content")
        return {}


@asynccontextmanager
async def open_settings(relevo: Any) -> AsyncGenerator[SubscriptionSettings]:
    yield read()
