"""What expenses are told by their environment."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from relevo import SettingsError
from relevo.apps.expenses.rules import REGIONS, Region

WEBHOOK = "/api/webhook"
PROCESS = "/api/process-message"

UPSTASH = "https://qstash.upstash.io"

_NEEDED = ("WHATSAPP_APP_SECRET", "WHATSAPP_VERIFY_TOKEN", "WHATSAPP_ACCESS_TOKEN")
_VERSION = re.compile(r"v\d{1,3}\.\d{1,2}", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class ExpensesSettings:
    """Keys and addresses; the addresses are the providers' own unless told otherwise."""

    app_secret: str
    verify_token: str
    access_token: str
    graph_url: str
    graph_version: str
    gemini_key: str  # empty: what the rules cannot read is asked back
    gemini_url: str
    gemini_model: str
    qstash_token: str  # empty: relevo's own queue
    qstash_url: str
    qstash_current: str
    qstash_next: str
    public_url: str  # of ours, as others reach it; without a slash at the end
    site_url: str  # the same, or where we are on this machine
    home: Region  # of whoever does not say where they are
    silence: timedelta  # how long a status is waited for, when a sending was not answered

    @property
    def process_url(self) -> str:
        """Where QStash brings messages back to us."""
        return self.public_url + PROCESS

    @property
    def link_key(self) -> bytes:
        """Signs the links that people are sent."""
        return hmac.digest(self.app_secret.encode(), b"relevo expenses links", hashlib.sha256)


def read(environ: Mapping[str, str] = os.environ) -> ExpensesSettings:
    """The settings; SettingsError naming everything that is missing or wrong at once."""
    problems = [f"{name} is missing" for name in _NEEDED if not environ.get(name)]
    token = environ.get("QSTASH_TOKEN", "")
    current = environ.get("QSTASH_CURRENT_SIGNING_KEY", "")
    following = environ.get("QSTASH_NEXT_SIGNING_KEY", "")
    public = _public(environ.get("VERCEL_URL") or environ.get("EXPENSES_URL") or "", problems)
    if token and not (current and following):
        problems.append("QSTASH_TOKEN needs QSTASH_CURRENT_SIGNING_KEY, QSTASH_NEXT_SIGNING_KEY")
    if token and not public:
        problems.append("QSTASH_TOKEN needs VERCEL_URL, the address at which QStash finds us")
    if token and public and not problems:
        problems += _unreachable(environ, public)
    version = environ.get("WHATSAPP_GRAPH_VERSION") or "v25.0"
    if not _VERSION.fullmatch(version):
        problems.append("WHATSAPP_GRAPH_VERSION is one like v25.0")
    country = environ.get("EXPENSES_COUNTRY") or "AR"
    if country not in REGIONS:
        problems.append(f"EXPENSES_COUNTRY is one of {', '.join(sorted(REGIONS))}")
    silence = environ.get("WHATSAPP_STATUS_SECONDS") or "90"
    if not silence.isdigit() or not 1 <= int(silence) <= 3_600:
        problems.append("WHATSAPP_STATUS_SECONDS is 1 to 3600")
    if problems:
        raise SettingsError("expenses: " + "; ".join(problems))
    return ExpensesSettings(
        app_secret=environ["WHATSAPP_APP_SECRET"],
        verify_token=environ["WHATSAPP_VERIFY_TOKEN"],
        access_token=environ["WHATSAPP_ACCESS_TOKEN"],
        graph_url=(environ.get("WHATSAPP_GRAPH_URL") or "https://graph.facebook.com").rstrip("/"),
        graph_version=version,
        gemini_key=environ.get("GEMINI_API_KEY", ""),
        gemini_url=environ.get("GOOGLE_GEMINI_BASE_URL", ""),
        gemini_model=environ.get("GEMINI_MODEL") or "gemini-2.5-flash",
        qstash_token=token,
        qstash_url=environ.get("QSTASH_URL") or UPSTASH,
        qstash_current=current,
        qstash_next=following,
        public_url=public,
        site_url=public or _here(environ),
        home=REGIONS[country],
        silence=timedelta(seconds=int(silence)),
    )


def _here(environ: Mapping[str, str]) -> str:
    return f"http://127.0.0.1:{environ.get('RELEVO_PORT') or 8700}"


def _unreachable(environ: Mapping[str, str], public: str) -> list[str]:
    """What keeps QStash from calling us back at an address of this machine."""
    url = (environ.get("QSTASH_URL") or UPSTASH).rstrip("/")
    if not _is_local(public):
        return []
    if not _is_local(url):
        return [
            (
                f"VERCEL_URL={public} is on this machine, where {url} cannot call: set VERCEL_URL "
                f"to a public address, or QSTASH_URL={_here(environ)} for relevo's own QStash"
            )
        ]
    is_ours = url in (public, _here(environ), _here(environ).replace("127.0.0.1", "localhost"))
    is_dev = environ.get("QSTASH_DEV", "").lower() in ("1", "true", "yes")
    if not is_ours or _is_allowed(
        environ.get("QSTASH_ALLOW", "") or (_DEV if is_dev else ""), public
    ):
        return []
    host = urlsplit(public).hostname
    return [
        (
            f"QSTASH_ALLOW={host} is missing: relevo's own QStash calls public addresses only, and "
            f"VERCEL_URL={public} is on this machine"
        )
    ]


_DEV = "localhost,127.0.0.0/8,::1"  # what QSTASH_DEV=1 allows


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_allowed(allowed: str, url: str) -> bool:
    """Whether one of the hosts, `host:port` or networks of QSTASH_ALLOW is this address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    named = [each.strip() for each in allowed.split(",")]
    if host in named or f"{host}:{port}" in named:
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in net for each in named if (net := _network(each)) is not None)


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _public(text: str, problems: list[str]) -> str:
    """VERCEL_URL comes without a scheme; people write one."""
    if not text:
        return ""
    url = text if "://" in text else f"https://{text}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        problems.append("VERCEL_URL is an address such as https://expenses.example.com")
    return url.rstrip("/")


@asynccontextmanager
async def open_settings(relevo: Any) -> AsyncGenerator[ExpensesSettings]:
    yield read()
