"""Who is asking: by session, by token, or because they sit at this very machine."""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import HTTPConnection

from relevo import addresses
from relevo.addresses import caller, is_loopback
from relevo.clock import Clock
from relevo.desk import Person, Role
from relevo.errors import SettingsError, StoreError
from relevo.web.entries import Entries
from relevo.web.people import (
    PASSWORD_MAX,
    People,
    PersonRecord,
    TokenRecord,
    hashed,
    is_marked,
    is_password,
    person_of,
)
from relevo.web.visit import SESSION

if TYPE_CHECKING:
    from relevo.settings import Settings
    from relevo.storewatch import StoreWatch

ADMIN = "admin"
LOCAL = Person("local", Role.ADMIN)
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_FORWARDED = ("forwarded", "x-forwarded", "x-real-ip", "via", "cf-connecting-ip", "true-client-ip")
_REQUESTS = 6_000  # a minute, from one address elsewhere
_ATTEMPTS = 5
_ATTEMPTS_OF_ADDRESS = 30
_ATTEMPTS_OF_NAME = 20  # from everywhere together
_WINDOW = 60.0
_REMEMBERED = 10_000
_BELIEVED = 3_600.0  # seconds for which a session is believed without the store


class Found(NamedTuple):
    """Who somebody turned out to be."""

    person: Person | None = None
    apps: frozenset[str] | None = None
    session: str | None = None
    by_token: bool = False
    is_wrong: bool = False  # showed something that is not good


def check_binding(host: str, settings: Settings) -> None:
    """SettingsError unless this address may be listened on: without a password, only our own."""
    if settings.admin_password is None and not is_loopback(host):
        raise SettingsError(
            f"RELEVO_HOST {host} can be reached from elsewhere, and nobody would be asked for a "
            "password: set RELEVO_ADMIN_PASSWORD, or listen on 127.0.0.1"
        )


class Throttle:
    """So many tries a minute for each name; forgets the oldest when there are too many names."""

    def __init__(self, most: int, remembered: int = _REMEMBERED) -> None:
        self._most = most
        self._remembered = remembered
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def admit(self, name: str, now: float) -> bool:
        count, since = self._tries.pop(name, (0, now))
        if now - since >= _WINDOW:
            count, since = 0, now
        self._tries[name] = (count + 1, since)
        if len(self._tries) > self._remembered:
            self._tries.popitem(last=False)
        return count < self._most

    def __len__(self) -> int:
        return len(self._tries)


class Auth:
    """Lets people in, and says who a request is from."""

    def __init__(
        self,
        people: People,
        entries: Entries,
        settings: Settings,
        clock: Clock,
        watch: StoreWatch,
    ) -> None:
        self._watch = watch
        self._sessions: OrderedDict[str, tuple[Found, float]] = OrderedDict()  # when last good
        self._people = people
        self._entries = entries
        self._seen: dict[str, float] = {}  # tokens, each of which is in the store
        self._settings = settings
        self._clock = clock
        self._requests = Throttle(_REQUESTS)
        self._by_person = Throttle(_ATTEMPTS)
        self._by_address = Throttle(_ATTEMPTS_OF_ADDRESS)
        self._by_name = Throttle(_ATTEMPTS_OF_NAME)
        self._homes: OrderedDict[str, None] = OrderedDict()  # where people came in from
        # A password costs 32 MB and a tenth of a second to check: a crowd must queue for it.
        self._turn = asyncio.Semaphore(2)
        self._decoy: str | None = None

    # who

    async def find(self, asked: HTTPConnection) -> Found:
        """Who a request is from."""
        kind, _, token = asked.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            record = await self._people.bearer(token.strip())
            if record is None:
                await self._entries.failure("token refused", "", None, address_of(asked))
                return Found(is_wrong=True)
            await self._saw_token(record, address_of(asked))
            return Found(person_of(record), _apps(record.apps), by_token=True)
        if self._settings.admin_password is None:
            return Found(LOCAL) if is_local(asked) else Found()
        cookie = asked.cookies.get(SESSION, "")
        return await self._session(cookie) if cookie else Found()

    async def _saw_token(self, record: TokenRecord, address: str) -> None:
        await self._entries.used(record, address)
        now = self._clock.now().timestamp()
        if now - self._seen.get(record.id, -_WINDOW) >= _WINDOW:
            self._seen[record.id] = now
            await self._people.saw(person_of(record).name)

    async def _session(self, cookie: str) -> Found:
        """Whose session it is; while the store is away, whose it was not long ago."""
        now = self._clock.now().timestamp()
        if (found := self._known(cookie, now)) is not None:
            return found
        try:
            found = await self._asked(cookie)
        except StoreError as error:
            self._watch.failed(error)
            if (found := self._known(cookie, now)) is None:
                raise
            return found
        self._sessions.pop(cookie, None)
        if found.person is not None:
            self._sessions[cookie] = found, now
            if len(self._sessions) > _REMEMBERED:
                self._sessions.popitem(last=False)
        return found

    def _known(self, cookie: str, now: float) -> Found | None:
        if not self._watch.is_away:
            return None
        found, at = self._sessions.get(cookie, (None, 0.0))
        return found if now - at < _BELIEVED else None

    async def _asked(self, cookie: str) -> Found:
        whose = await self._people.whose(cookie)
        if whose is None:
            return Found()
        name, mark = whose
        if name == ADMIN:
            password = self._settings.admin_password or ""
            is_good = is_marked(cookie, password, mark)
            return Found(Person(ADMIN, Role.ADMIN), None, cookie) if is_good else Found()
        record = await self._people.person(name)
        if record is None or not is_marked(cookie, record.password, mark):
            return Found()
        return Found(person_of(record), _apps(record.apps), cookie)

    def is_flood(self, asked: HTTPConnection) -> bool:
        """Whether an address asks more than any person does; this machine may."""
        address = address_of(asked)
        now = self._clock.now().timestamp()
        return not is_loopback(address) and not self._requests.admit(caller(address), now)

    # letting in

    def is_too_often(self, name: str, asked: HTTPConnection) -> bool:
        """Whether too many came within a minute: from there, or for this person, or both.

        Where a person came in from before, the attempts of others from elsewhere do not count:
        a stranger who knows a name could keep its owner out. A person at this very machine is
        never held back, so that there is always a way in for the right password.
        """
        if is_local(asked):
            return False
        address = address_of(asked)
        now = self._clock.now().timestamp()
        home = _home(name, address)
        is_calm = self._by_address.admit(caller(address), now)
        if not (self._by_person.admit(home, now) and is_calm):
            return True
        return home not in self._homes and not self._by_name.admit(name[:64], now)

    def remember_home(self, name: str, address: str) -> None:
        """Remember that a person came in from there."""
        home = _home(name, address)
        self._homes[home] = None
        self._homes.move_to_end(home)
        if len(self._homes) > _REMEMBERED:
            self._homes.popitem(last=False)

    async def log_in(self, name: str, password: str, address: str) -> str | None:
        """The cookie of a new session; None when name or password is not right."""
        record = None if name == ADMIN else await self._people.person(name)
        session = await self._begun(name, password, record)
        if session is None:
            known = ADMIN if name == ADMIN else record
            await self._entries.failure("login refused", name, known, address)
        else:
            self.remember_home(name, address)
            await self._entries.login(name, address)
            await self._people.saw(name)
        return session

    async def hold_back(self, name: str, address: str) -> None:
        """Write down that a login was not even looked at."""
        known = ADMIN if name == ADMIN else await self._people.person(name)
        await self._entries.failure("login held back", name, known, address)

    async def _begun(self, name: str, password: str, record: PersonRecord | None) -> str | None:
        if len(password) > PASSWORD_MAX:
            return None
        async with self._turn:
            # One that nobody has, so that an unknown name takes as long as a wrong password.
            if self._decoy is None:
                self._decoy = await hashed("")
            against = self._decoy if record is None else record.password
            is_right = await is_password(password, against)
        if name == ADMIN and self._settings.admin_password is not None:
            right = self._settings.admin_password.encode()
            if hmac.compare_digest(password.encode(errors="surrogatepass"), right):
                return await self._people.begin(ADMIN, self._settings.admin_password)
        if record is not None and is_right:
            return await self._people.begin(record.name, record.password)
        return None

    async def log_out(self, session: str) -> None:
        """End a session for good."""
        self._sessions.pop(session, None)
        await self._people.end(session)

    # where

    def is_host(self, text: str) -> bool:
        """Whether a Host header names us: a page elsewhere may point its own name at us."""
        host = _host(text)
        allowed = self._settings.allowed_hosts
        if host in _LOCAL_NAMES or host in allowed or host == self._settings.host:
            return True
        if any(host.endswith(each) for each in allowed if each.startswith(".")):
            return True
        # An address cannot be pointed elsewhere; behind a password it is as good as a name.
        return (
            self._settings.admin_password is not None
            and addresses.read(host.strip("[]")) is not None
        )


def _home(name: str, address: str) -> str:
    return f"{name[:64]}\n{caller(address)}"


def _apps(apps: tuple[str, ...]) -> frozenset[str] | None:
    return frozenset(apps) if apps else None


def is_local(asked: HTTPConnection) -> bool:
    """Whether a request comes from this very machine, and from nobody through it."""
    # Behind a proxy on this machine everybody would be local.
    is_forwarded = any(name.startswith(_FORWARDED) for name in asked.headers)
    return asked.client is not None and is_loopback(asked.client.host) and not is_forwarded


def is_https(asked: HTTPConnection) -> bool:
    """Whether the browser speaks https, be it to us or to a proxy in front.

    Who lies about it loses only cookies of their own.
    """
    return "https" in (asked.url.scheme, asked.headers.get("x-forwarded-proto", ""))


def address_of(asked: HTTPConnection) -> str:
    """The address that a request comes from, behind the proxies that are trusted."""
    return "?" if asked.client is None else asked.client.host


def _host(text: str) -> str:
    host, colon, port = text.strip().lower().rpartition(":")
    is_port = colon and port.isdecimal() and not host.endswith(":")
    return host if is_port else text.strip().lower()
