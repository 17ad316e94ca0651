"""What the channel manager is told by its environment.

HOTEL_ID, or HOTEL_IDS              the hotels, separated by commas: one bot each
BEDS24_WEBHOOK_SECRETS              hotel999:s3cr3t hotel7:other — a hotel listed twice has two keys
BEDS24_WEBHOOK_SECRET               the same for every hotel that the line above leaves out
REDIS_URL                           the Redis that producers LPUSH to; without it, our own tables
CM_SOAP_URL, _USERNAME, _PASSWORD   the channel manager; without it, nothing is pulled
CM_SOAP_AUTH, CM_SOAP_VERSION       wsse or pos; 1.1 or 1.2
CM_SOAP_EVERY                       the least time between two pulls of one hotel (SiteMinder: 2m)
CM_POLLING_INTERVAL, CM_DEDUP_TTL, CM_HEARTBEAT_TTL                15s, 900s, 300s (60s in earnest)
CM_ENABLED, CM_DEFAULT_MODE, CM_AUTO_REPLY                         1, manual, and the words
BEDS24_API_URL, BEDS24_REFRESH_TOKENS, BEDS24_REFRESH_TOKEN        what a webhook leaves out
BEDS24_PROPERTIES, BEDS24_POLL_EVERY                               hotel999:3103, asked every 2m
HOTEL_RECORDS                       sql or astra; and for astra ASTRA_DB_API_ENDPOINT,
                                    ASTRA_DB_APPLICATION_TOKEN, _KEYSPACE, _ENVIRONMENT
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias, TypeVar, cast

from relevo.apps.hotel.names import is_part
from relevo.clock import duration
from relevo.errors import DefinitionError, SettingsError
from relevo.signatures import Keys

T = TypeVar("T")
Mode: TypeAlias = Literal["manual", "automatic"]

JITTER = timedelta(milliseconds=500)
FACTOR, SLOWEST = 1.5, timedelta(seconds=120)
REPLY = (
    "¡Gracias por escribirnos! Te respondemos a la brevedad. — "
    "Thank you for your message, we will get back to you shortly."
)
API = "https://beds24.com/api/v2"


@dataclass(frozen=True, slots=True)
class Soap:
    """Where the channel manager is, and who we are there."""

    url: str
    username: str
    password: str = field(repr=False)
    auth: Literal["wsse", "pos"] = "wsse"
    version: Literal["1.1", "1.2"] = "1.1"
    every: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class Astra:
    """Where the collections are."""

    endpoint: str
    token: str = field(repr=False)
    keyspace: str = "default_keyspace"
    environment: str = "prod"


@dataclass(frozen=True, slots=True, kw_only=True)
class HotelSettings:
    """The channel manager's own knobs and secrets."""

    hotels: tuple[str, ...]
    secrets: Mapping[str, Keys]
    redis_url: str | None = field(default=None, repr=False)
    soap: Soap | None = None
    astra: Astra | None = None
    api_url: str = API
    refresh_tokens: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    beds24_every: timedelta = timedelta(minutes=2)
    interval: timedelta = timedelta(seconds=15)
    dedup_ttl: timedelta = timedelta(seconds=900)
    heartbeat_ttl: timedelta = timedelta(seconds=300)
    is_enabled: bool = True
    mode: Mode = "manual"
    reply: str = REPLY

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> HotelSettings:
        """The settings of an environment; SettingsError naming everything wrong with it at once."""
        return _Reader(environ).read()

    def has_api(self, hotel: str) -> bool:
        """Whether Beds24's API may be asked about a hotel."""
        return hotel in self.refresh_tokens

    def rest(self, failures: int = 0) -> timedelta:
        """How long until the next turn, when the channel manager has failed so often in a row."""
        wait = self.interval
        for _ in range(min(failures, 60)):
            wait = max(self.interval, min(wait * FACTOR, SLOWEST))
        return wait + random.random() * JITTER


def hotels() -> list[dict[str, str]]:
    """The hotels that have a bot, for the poller."""
    return [{"hotel_id": hotel} for hotel in _Reader(os.environ).hotels()]


class _Reader:
    """Reads variables one by one and remembers what was wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._problems: list[str] = []

    def read(self) -> HotelSettings:
        hotels = self.hotels()
        made = HotelSettings(
            hotels=hotels,
            secrets=self._secrets(hotels),
            redis_url=self._text("REDIS_URL") or None,
            soap=self._soap(),
            astra=self._astra(),
            api_url=self._text("BEDS24_API_URL") or API,
            refresh_tokens=self._tokens(hotels),
            properties={
                hotel: ids[-1] for hotel, ids in self._by_hotel("BEDS24_PROPERTIES").items()
            },
            beds24_every=self._time("BEDS24_POLL_EVERY", "2m"),
            interval=self._time("CM_POLLING_INTERVAL", "15s"),
            dedup_ttl=self._time("CM_DEDUP_TTL", "900s"),
            heartbeat_ttl=self._time("CM_HEARTBEAT_TTL", "300s"),
            is_enabled=self._one("CM_ENABLED", ("1", "0")) == "1",
            mode=cast("Mode", self._one("CM_DEFAULT_MODE", ("manual", "automatic"))),
            reply=self._text("CM_AUTO_REPLY") or REPLY,
        )
        if self._problems:
            raise SettingsError("; ".join(self._problems))
        return made

    def hotels(self) -> tuple[str, ...]:
        listed = self._text("HOTEL_IDS") or self._text("HOTEL_ID")
        found = tuple(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
        if not found or not all(is_part(name) for name in found):
            self._problems.append(
                "HOTEL_ID or HOTEL_IDS names the hotels: letters, digits, '-' and '_', as in "
                "hotel999,hotel7"
            )
        return found

    def _secrets(self, hotels: tuple[str, ...]) -> dict[str, Keys]:
        given = self._by_hotel("BEDS24_WEBHOOK_SECRETS")
        every = self._text("BEDS24_WEBHOOK_SECRET")
        found: dict[str, Keys] = {}
        for hotel in hotels:
            listed = given.get(hotel) or ([every] if every else [])
            try:
                found[hotel] = Keys.read(f"the Beds24 webhook of {hotel}", listed)
            except SettingsError as error:
                self._problems.append(f"{error}: set BEDS24_WEBHOOK_SECRETS")
        return found

    def _tokens(self, hotels: tuple[str, ...]) -> dict[str, str]:
        given = self._by_hotel("BEDS24_REFRESH_TOKENS")
        every = self._text("BEDS24_REFRESH_TOKEN")
        found = {hotel: given[hotel][-1] if hotel in given else every for hotel in hotels}
        return {hotel: token for hotel, token in found.items() if token}

    def _by_hotel(self, name: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pair in self._text(name).split():
            hotel, colon, value = pair.partition(":")
            if not (colon and value and is_part(hotel)):
                self._problems.append(f"{name} lists hotel:value pairs, separated by blanks")
                break
            found.setdefault(hotel, []).append(value)
        return found

    def _soap(self) -> Soap | None:
        url = self._text("CM_SOAP_URL")
        if not url:
            return None
        if not url.startswith(("http://", "https://")):
            self._problems.append("CM_SOAP_URL is an http address")
        for name in ("CM_SOAP_USERNAME", "CM_SOAP_PASSWORD"):
            if not self._text(name):
                self._problems.append(f"{name} is missing, and CM_SOAP_URL is not")
        return Soap(
            url,
            self._text("CM_SOAP_USERNAME"),
            self._text("CM_SOAP_PASSWORD"),
            cast("Literal['wsse', 'pos']", self._one("CM_SOAP_AUTH", ("wsse", "pos"))),
            cast("Literal['1.1', '1.2']", self._one("CM_SOAP_VERSION", ("1.1", "1.2"))),
            self._time("CM_SOAP_EVERY", "0s"),
        )

    def _astra(self) -> Astra | None:
        if self._one("HOTEL_RECORDS", ("sql", "astra")) == "sql":
            return None
        for name in ("ASTRA_DB_API_ENDPOINT", "ASTRA_DB_APPLICATION_TOKEN"):
            if not self._text(name):
                self._problems.append(f"{name} is missing, and HOTEL_RECORDS is astra")
        return Astra(
            self._text("ASTRA_DB_API_ENDPOINT"),
            self._text("ASTRA_DB_APPLICATION_TOKEN"),
            self._text("ASTRA_DB_KEYSPACE") or "default_keyspace",
            self._text("ASTRA_DB_ENVIRONMENT") or "prod",
        )

    def _text(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def _one(self, name: str, words: tuple[str, ...]) -> str:
        text = self._text(name).lower() or words[0]
        if text not in words:
            self._problems.append(f"{name} is {' or '.join(words)}")
        return text

    def _time(self, name: str, default: str) -> timedelta:
        text = self._text(name) or default
        return self._parsed(name, duration, f"{text}s" if text.isdigit() else text)

    def _parsed(self, name: str, parse: Callable[[str], timedelta], text: str) -> timedelta:
        try:
            return parse(text)
        except DefinitionError:
            self._problems.append(f"{name} is a time such as 15s or 2m")
            return timedelta(seconds=15)
