"""Life: opening and closing, the layout's version, and whether the server can be relied on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from relevo.errors import SchemaMismatch, SettingsError, StoreUnavailable
from relevo.store import Finding
from relevo.stores.redis.frame import Frame, timely
from relevo.stores.redis.line import Denied

# A later one reads what earlier ones wrote.
STEPS = (
    "0001 keys",
    "0002 lists of fresh jobs",
    "0003 lines of done jobs",
    "0004 leases by claim",
    "0005 turns, remembered ids and newest jobs",
    "0006 states of deliveries",
    "0007 suspicions and crashes",
)
SCHEMA = len(STEPS)
OLDEST = (6, 2)
BETWEEN_LOOKS = 60.0  # seconds
log = logging.getLogger("relevo.store")


class Life(Frame):
    """The verbs by which a store is opened, checked and closed."""

    _looked_at = 0.0

    async def open(self) -> None:
        self._wire.open()
        self._bell.open()
        try:
            await self._open()
        except StoreUnavailable as error:
            if _is_refused(error):
                raise SettingsError(str(error)) from error
            raise

    async def close(self) -> None:
        await self._bell.close()
        await self._wire.close()

    @timely
    async def migrate(self) -> list[str]:
        return list(STEPS[await self._agree_on_schema() :])

    @timely
    async def check(self) -> list[Finding]:
        findings = [
            finding
            for where, info in await self._look()
            for finding in judge(info, where, wait=self._address.wait)
        ]
        if self._address.allow_volatile:
            findings.append(
                Finding(
                    level="warning",
                    subject="redis",
                    message="allow_volatile is set: what this Redis forgets is lost",
                )
            )
        return findings or [Finding(level="ok", subject="redis", message="durable and not full")]

    def _is_time_to_look(self) -> bool:
        """Once a minute somebody looks whether the server was changed into one that forgets."""
        if time.monotonic() - self._looked_at < BETWEEN_LOOKS:
            return False
        self._looked_at = time.monotonic()
        return True

    def _shout(self, where: str, info: Info) -> None:
        if self._address.allow_volatile:
            return
        for finding in judge(info, where, wait=0):
            if finding.level == "error":
                log.error("redis may lose jobs", extra={"finding": finding.message})

    @timely
    async def _open(self) -> None:
        for where, info in await self._look():
            if info.version < OLDEST:
                raise SettingsError(f"the Redis at {where} is older than 6.2: upgrade it")
            bad = [finding for finding in judge(info, where, wait=0) if finding.level == "error"]
            if bad and not self._address.allow_volatile:
                raise SettingsError(
                    " ".join(finding.message for finding in bad)
                    + " Or say allow_volatile=1 and lose jobs when it does."
                )
        self._looked_at = time.monotonic()
        await self._agree_on_schema()

    async def _agree_on_schema(self) -> int:
        """The layout's version that was there, brought up to ours; SchemaMismatch if newer."""
        key = self._key("schema")
        if await self._wire.command(key, b"SET", key, SCHEMA, b"NX") is not None:
            return 0
        stored = await self._wire.command(key, b"GET", key)
        if stored is None or not stored.isdigit():
            raise SchemaMismatch(f"{key.decode()} in Redis holds no version of ours")
        if int(stored) > SCHEMA:
            raise SchemaMismatch(
                f"the keys in Redis are of version {int(stored)}, this relevo knows {SCHEMA}: "
                "upgrade relevo"
            )
        if int(stored) < SCHEMA:
            await self._wire.command(key, b"SET", key, SCHEMA)
        return int(stored)

    async def _look(self) -> list[tuple[str, Info]]:
        return [
            (where, read_info(where, answer))
            for where, answer in await self._wire.everywhere(b"INFO")
        ]


class Info:
    """What of INFO matters to us."""

    def __init__(self, fields: dict[str, str]) -> None:
        major, _, rest = fields.get("redis_version", "0.0").partition(".")
        self.version = (_number(major), _number(rest.partition(".")[0]))
        self.has_aof = fields.get("aof_enabled") == "1"
        self.aof_failed = fields.get("aof_last_write_status", "ok") != "ok"
        self.policy = fields.get("maxmemory_policy", "")
        self.maxmemory = _number(fields.get("maxmemory", "0"))
        self.used = _number(fields.get("used_memory", "0"))
        self.replicas = _number(fields.get("connected_slaves", "0"))


def read_info(where: str, answer: Any) -> Info:
    if not isinstance(answer, bytes):
        raise SettingsError(
            f"the Redis at {where} does not say whether it is durable: let the user run INFO"
        )
    lines = (line.partition(":") for line in answer.decode("utf-8", "replace").splitlines())
    return Info({name: value for name, _, value in lines})


def judge(info: Info, where: str, *, wait: int) -> Iterator[Finding]:
    """What is wrong, or could become so, with one server."""
    if not info.has_aof:
        yield _error(f"the Redis at {where} forgets when it stops: set 'appendonly yes'.")
    elif info.aof_failed:
        yield _error(f"the Redis at {where} cannot write its AOF: is its disk full?")
    if info.policy != "noeviction":
        yield _error(
            f"the Redis at {where} throws jobs away when it is full ({info.policy}): "
            "set 'maxmemory-policy noeviction'."
        )
    if info.maxmemory and info.used > info.maxmemory * 0.8:
        yield Finding(
            level="warning",
            subject="redis",
            message=f"the Redis at {where} is {info.used * 100 // info.maxmemory} % full: "
            "give it more memory, or keep done jobs for less long",
        )
    if wait > info.replicas:
        yield _error(f"wait={wait}, but the Redis at {where} has {info.replicas} replicas.")


def _error(message: str) -> Finding:
    return Finding(level="error", subject="redis", message=message)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _is_refused(error: BaseException) -> bool:
    causes: Sequence[BaseException | None] = (error, error.__cause__)
    return any(isinstance(cause, Denied) for cause in causes)
