"""People, API tokens and sessions, kept as notes of the store; no secret is stored, only hashes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from relevo.clock import Clock, Duration, milliseconds
from relevo.desk import Person, Role
from relevo.errors import DefinitionError, MisuseError, NotFoundError
from relevo.store import Audit, Note, Store

T = TypeVar("T")

PASSWORD_MIN = 12
PASSWORD_MAX = 256
IDLE = 12 * 3_600_000
RENEW = 5 * 60_000
TOKEN_PREFIX = "rlv_"  # noqa: S105 - what ours begin with
RESERVED: Final = frozenset({"admin", "local"})
"""Who comes with the settings, and who needs no name: neither is kept here."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,63}", re.ASCII)
_N, _R, _P = 2**15, 8, 1
_LIST_MAX = 200
_SEEN = "seen"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A person who may log in."""

    name: str
    role: Role
    apps: tuple[str, ...] = ()  # empty: all of them
    created_at: int = 0
    seen_at: int | None = None  # within five minutes


class PersonRecord(Known, frozen=True, kw_only=True):
    """The same as it is kept."""

    password: str  # scrypt, its salt included


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A token for programs; `id` is the beginning of its hash."""

    id: str
    name: str
    role: Role
    apps: tuple[str, ...] = ()
    created_at: int = 0
    expires_at: int | None = None
    by: str = ""  # the person that made it
    seen_at: int | None = None  # within five minutes


class _Session(msgspec.Struct, frozen=True):
    name: str
    mark: str  # made from the token and the password: another password ends the session


class People:
    """Who may come in; the same for the command line and the web."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    # people

    async def add(
        self, name: str, password: str, role: Role, *, apps: tuple[str, ...] = (), by: str
    ) -> Known:
        """Let someone in; with `apps`, to the jobs of those apps only."""
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise DefinitionError(
                "a person's name has 1 to 64 of a-z, 0-9, '.', '_', '-' and '@', and is not "
                + " or ".join(sorted(RESERVED))
            )
        check_password(password)
        record = PersonRecord(
            name=name, role=role, apps=apps, password=await hashed(password), created_at=self._now()
        )
        note = Note(kind="person", name=name, value=msgspec.json.encode(record))
        if not (await self._store.remember([note]))[0]:
            raise DefinitionError(f"{name} is known already: `relevo people rm {name}` first")
        await self._wrote(by, "add person", name, f"role {role}")
        return record

    async def all(self) -> list[Known]:
        """Everyone, by name."""
        found = [_read(note, Known) for note in await self._noted("person")]
        seen = await self._seen()
        return [
            replace(record, seen_at=seen.get(record.name)) for record in found if record is not None
        ]

    async def change_password(self, name: str, password: str, *, by: str) -> None:
        """Give a person another password; the sessions of the old one end at once."""
        check_password(password)
        [note] = await self._store.recall("person", [name])
        record = None if note is None else _read(note, PersonRecord)
        if note is None or record is None:
            raise _nobody(name)
        value = msgspec.json.encode(replace(record, password=await hashed(password)))
        changed = Note(kind="person", name=name, value=value, version=note.version)
        if not (await self._store.remember([changed]))[0]:
            raise MisuseError(f"{name} was changed in the same moment: try again")
        await self._wrote(by, "change password", name)

    async def remove(self, name: str, *, by: str) -> None:
        """Send someone away; their sessions end at once."""
        if not await self._store.forget("person", [name]):
            raise _nobody(name)
        await self._store.forget(_SEEN, [name])
        await self._wrote(by, "remove person", name)

    async def person(self, name: str) -> PersonRecord | None:
        """One of them with the hash of the password."""
        if not _NAME.fullmatch(name):
            return None
        [note] = await self._store.recall("person", [name])
        return None if note is None else _read(note, PersonRecord)

    # tokens

    async def add_token(
        self,
        name: str,
        role: Role,
        *,
        apps: tuple[str, ...] = (),
        expires: Duration | None = None,
        by: str,
    ) -> tuple[str, TokenRecord]:
        """A new token, shown this once: only its hash is kept."""
        if not _NAME.fullmatch(name):
            raise DefinitionError("a token's name has 1 to 64 of a-z, 0-9, '.', '_', '-' and '@'")
        if any(record.name == name for record in await self.tokens()):
            raise DefinitionError(f"a token is called {name} already: `relevo tokens rm {name}`")
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        key, now = _hash(token), self._now()
        ttl = None if expires is None else milliseconds(expires)
        record = TokenRecord(
            id=key[:12],
            name=name,
            role=role,
            apps=apps,
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            by=by,
        )
        note = Note(kind="token", name=key, value=msgspec.json.encode(record), ttl=ttl)
        await self._store.remember([note])
        await self._wrote(by, "add token", name, f"role {role}")
        return token, record

    async def tokens(self) -> list[TokenRecord]:
        """Every token that is still good, by name."""
        found = [_read(note, TokenRecord) for note in await self._noted("token")]
        seen = await self._seen()
        records = [
            replace(record, seen_at=seen.get(person_of(record).name))
            for record in found
            if record is not None
        ]
        return sorted(records, key=lambda record: record.name)

    async def remove_token(self, name: str, *, by: str) -> None:
        """Make a token worthless, by its name or id."""
        for note in await self._noted("token"):
            record = _read(note, TokenRecord)
            if record is not None and name in (record.name, record.id):
                await self._store.forget("token", [note.name])
                await self._store.forget(_SEEN, [person_of(record).name])
                await self._wrote(by, "remove token", record.name)
                return
        raise NotFoundError(f"no token is called {name!r:.80}; see `relevo tokens ls`")

    async def bearer(self, token: str) -> TokenRecord | None:
        """The record of a token, if it is good."""
        if not token.startswith(TOKEN_PREFIX) or len(token) > 100:
            return None
        [note] = await self._store.recall("token", [_hash(token)])
        record = None if note is None else _read(note, TokenRecord)
        if record is None:
            return None
        is_over = record.expires_at is not None and record.expires_at <= self._now()
        return None if is_over else record

    # sessions

    async def begin(self, name: str, credential: str) -> str:
        """A new session; the cookie's value, of which the store learns only the hash."""
        token = secrets.token_urlsafe(32)
        value = msgspec.json.encode(_Session(name, _mark(token, credential)))
        await self._store.remember([_session(token, value)])
        return token

    async def whose(self, token: str) -> tuple[str, str] | None:
        """The name and mark of a session that goes on; being asked for keeps it alive."""
        if not 20 <= len(token) <= 100:
            return None
        [note] = await self._store.recall("session", [_hash(token)])
        session = None if note is None else _read(note, _Session)
        if note is None or session is None:
            return None
        if self._now() - note.updated_at > RENEW:
            # Lost to another request of the same browser: that one has renewed it.
            await self._store.remember([_session(token, note.value, note.version)])
            await self.saw(session.name)
        return session.name, session.mark

    async def end(self, token: str) -> None:
        """Nobody comes in with this cookie again."""
        await self._store.forget("session", [_hash(token)])

    async def apps(self) -> set[str]:
        """The apps of which the store has a queue."""
        return {tally.queue.partition(":")[0] for tally in await self._store.tally()}

    # last seen

    async def saw(self, name: str) -> None:
        """Remember that a person, or `token/` and its name, was here now."""
        [note] = await self._store.recall(_SEEN, [name])
        if note is None or self._now() - note.updated_at > RENEW:
            version = 0 if note is None else note.version
            # Lost to another request that has seen the person in the same moment.
            await self._store.remember([Note(kind=_SEEN, name=name, value=b"{}", version=version)])

    async def _seen(self) -> dict[str, int]:
        return {note.name: note.updated_at for note in await self._noted(_SEEN)}

    # inside

    async def _noted(self, kind: str) -> list[Note]:
        found: list[Note] = []
        while True:
            after = found[-1].name if found else ""
            notes = await self._store.notes(kind, after=after, limit=_LIST_MAX)
            found += notes
            if len(notes) < _LIST_MAX:
                return found

    async def _wrote(self, by: str, verb: str, target: str, note: str = "") -> None:
        await self._store.audit([Audit(who=by, verb=verb, target=target, note=note)])

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def _nobody(name: str) -> NotFoundError:
    return NotFoundError(f"no person is called {name!r:.80}; see `relevo people ls`")


def _read(note: Note, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(note.value, type=kind)
    except msgspec.DecodeError:
        return None  # somebody's hand was in the store; nobody comes in by that


def _session(token: str, value: bytes, version: int = 0) -> Note:
    return Note(kind="session", name=_hash(token), value=value, version=version, ttl=IDLE)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _mark(token: str, credential: str) -> str:
    return hmac.new(token.encode(), credential.encode(), hashlib.sha256).hexdigest()[:32]


def is_marked(token: str, credential: str, mark: str) -> bool:
    """Whether a session was begun with this very credential."""
    return hmac.compare_digest(_mark(token, credential), mark)


# passwords


def check_password(password: str) -> None:
    """DefinitionError unless it is a password worth the name."""
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX or len(set(password)) < 5:
        raise DefinitionError(
            f"a password has {PASSWORD_MIN} to {PASSWORD_MAX} characters, and not the same few"
        )


async def hashed(password: str) -> str:
    """scrypt with a salt of its own, as text."""
    salt = secrets.token_bytes(16)
    digest = await asyncio.to_thread(_scrypt, password, salt, _N, _R, _P)
    return f"scrypt${_N}${_R}${_P}${_text(salt)}${_text(digest)}"


async def is_password(password: str, record: str) -> bool:
    """Whether this is the password; takes as long when it is not."""
    _, n, r, p, salt, digest = record.split("$")
    found = await asyncio.to_thread(
        _scrypt, password, base64.b64decode(salt), int(n), int(r), int(p)
    )
    return hmac.compare_digest(found, base64.b64decode(digest))


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    data = password.encode(errors="surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def person_of(record: Any) -> Person:
    """At the desk."""
    name = f"token/{record.name}" if isinstance(record, TokenRecord) else record.name
    return Person(name, record.role)
