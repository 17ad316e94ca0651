"""Life: opening and closing, the layout's version, and whether the server can be relied on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from relevo.errors import SchemaMismatch, SettingsError, StoreUnavailable
from relevo.store import Finding, Schema
from relevo.stores import versions
from relevo.stores.redis.frame import Frame, timely
from relevo.stores.redis.line import Denied

# A later one reads what earlier ones wrote. Each names the oldest code that reads what it writes.
_NAMES = (
    "0001 keys",
    "0002 lists of fresh jobs",
    "0003 lines of done jobs",
    "0004 leases by claim",
    "0005 turns, remembered ids and newest jobs",
    "0006 states of deliveries",
    "0007 suspicions and crashes",
)
STEPS = [versions.Step(int(name[:4]), name, "", int(name[:4])) for name in _NAMES]
WHERE = "the store in Redis"
_REPLACE = b"""
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""
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
        while True:
            there, value = await self._read_schema()
            versions.judge_age(there, WHERE)
            steps = [step for step in STEPS if step.number > there.number]
            if not steps:
                return []
            readable_from = max(there.readable_from, *(step.readable_from for step in steps))
            if there.number and readable_from > there.readable_from:
                now, rows = await self._run("workers", [self._people()])
                workers = [row.split(b"|", 2) for row in rows]
                alive = [packed for _, until, packed in workers if int(until) > now]
                for step in steps:
                    versions.spare(alive, step)
            wanted = _written(steps[-1].number, readable_from)
            if await self._replace_schema(value, wanted):
                return [step.name for step in steps]

    @timely
    async def schema(self) -> Schema:
        return (await self._read_schema())[0]

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
        there, value = await self._read_schema()
        if not there.number:  # an empty server needs no step
            await self._replace_schema(value, _written(there.known, STEPS[-1].readable_from))
            there, _ = await self._read_schema()
        versions.judge(there, WHERE)

    async def _read_schema(self) -> tuple[Schema, bytes]:
        """The layout's version, and as it is written."""
        key, known = self._key("schema"), STEPS[-1].number
        value = await self._wire.command(key, b"GET", key) or b""
        numbers = value.split()
        if not all(number.isdigit() for number in numbers) or len(numbers) > 2:
            raise SchemaMismatch(f"{key.decode()} in Redis holds no version of ours")
        if not numbers:
            return Schema(0, 0, known), value
        # One of before is a number, for code of its own age.
        return Schema(int(numbers[0]), int(numbers[-1]), known), value

    async def _replace_schema(self, value: bytes, wanted: bytes) -> bool:
        """Write the layout's version, unless another process was first."""
        key = self._key("schema")
        return await self._wire.command(key, b"EVAL", _REPLACE, b"1", key, value, wanted) == 1

    def _people(self) -> bytes:
        return self._key("workers", tag=True)

    async def _look(self) -> list[tuple[str, Info]]:
        return [
            (where, read_info(where, answer))
            for where, answer in await self._wire.everywhere(b"INFO")
        ]


def _written(number: int, readable_from: int) -> bytes:
    return b"%d %d" % (number, readable_from)


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
