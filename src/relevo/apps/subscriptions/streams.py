"""The three Redis streams that other programs know: publishing to them, and serving one."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from relevo import ProviderRefused, ProviderUncertain, Relevo, StoreUnavailable
from relevo.apps.subscriptions import records
from relevo.apps.subscriptions.integrations import Integration, Integrations, effect_id
from relevo.apps.subscriptions.settings import SHEET_WRITES, SubscriptionSettings
from relevo.bridges.redis_streams import Entry, Rate, Stream, publish
from relevo.errors import TooEarly
from relevo.outcome import scrub
from relevo.stores.alive import OPTIONS
from relevo.telemetry import log

STREAMS = ("stripe_jobs_email", "stripe_jobs_list", "stripe_jobs_spreadsheet")
COUNT = 10
REST = 2.0  # seconds after Redis did not answer
TIDY_EVERY = 600.0
CALL, LATE = 40.0, 20.0  # seconds that a call may take, and after which none is begun any more


class Streams:
    """The way to Redis, if there is one."""

    def __init__(self, redis: Redis | None) -> None:
        self.redis = redis

    @property
    def is_configured(self) -> bool:
        return self.redis is not None

    async def publish(self, job_id: str) -> None:
        """Tell all three; StoreUnavailable when Redis is away."""
        if self.redis is None:
            raise StoreUnavailable("REDIS_HOST is not set")
        fields = {"job_id": job_id, "ts": str(int(time.time()))}
        try:
            await publish(self.redis, dict.fromkeys(STREAMS, fields))
        except ResponseError as error:
            # A key of another type, a server out of memory: nothing of it was stored.
            raise StoreUnavailable(f"Redis refused the streams: {error}") from error


@asynccontextmanager
async def open_streams(relevo: Relevo) -> AsyncGenerator[Streams]:
    settings = relevo.use(SubscriptionSettings)
    if not settings.redis_host:
        yield Streams(None)
        return
    redis = Redis(
        host=settings.redis_host,
        port=settings.redis_port,
        password=settings.redis_password,
        socket_timeout=10,
        socket_connect_timeout=2,
        socket_keepalive=True,
        socket_keepalive_options=OPTIONS,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield Streams(redis)
    finally:
        await redis.aclose()


class StreamWorker:
    """Serves one stream for one integration until told to stop."""

    def __init__(self, relevo: Relevo, name: str) -> None:
        settings = relevo.use(SubscriptionSettings)
        redis = relevo.use(Streams).redis
        if redis is None:
            raise StoreUnavailable("REDIS_HOST is not set, so there is no stream to serve")
        self._relevo = relevo
        self._records = relevo.use(records.Records)
        self._worker: Integration = relevo.use(Integrations).named(name)
        self._pace = settings.paces[name]
        self._retries = settings.max_retries
        stream = self._worker.stream
        self._limit: Rate | None = None
        if name == "spreadsheet":
            self._limit = Rate(redis, f"{stream}:rate", calls=SHEET_WRITES, window=60_000)
        self._stream = Stream(
            redis,
            stream,
            group=f"{stream}_group",
            consumer=f"{socket.gethostname()}-{os.getpid()}",
        )

    async def run(self, stop: asyncio.Event) -> None:
        tidy_at = 0.0
        is_ready = False
        while not stop.is_set():
            try:
                if not is_ready:
                    # Nothing is taken while the database is away: it could only be put back.
                    await self._records.answer()
                    await self._stream.ensure()
                    is_ready = True
                if time.monotonic() >= tidy_at:
                    await self._stream.tidy()
                    tidy_at = time.monotonic() + TIDY_EVERY
                await self.turn()
            except (StoreUnavailable, ResponseError) as error:
                # Redis or the database away, or the key emptied or of another type.
                is_ready = False
                log.warning(
                    "the stream cannot be served; trying again",
                    extra={"worker": self._worker.name, "error": str(error)},
                )
                await _rest(stop, REST)

    async def turn(self) -> int:
        """Serve what is due again, then what is new; answers how many entries that was."""
        longest = self._pace.read_timeout
        if self._limit is not None and (full := await self._limit.wait()):
            await asyncio.sleep(min(full, longest) / 1_000)
            return 0
        entries = await self._stream.due(self._pace.wait)
        wait = 1 if entries else await self._stream.rest(self._pace.wait, longest)
        entries += await self._stream.take(COUNT, wait)
        served = [self._serve(entry) for entry in entries]
        for error in await asyncio.gather(*served, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error
        return len(entries)

    async def _serve(self, entry: Entry) -> None:
        """Serve an entry; StoreUnavailable, and the entry put back, when our side is away."""
        job_id = entry.text("job_id")
        try:
            await self._try(entry, job_id)
        except StoreUnavailable:
            await self._put_back(entry, REST)
            raise
        except TooEarly as early:
            facts = {"worker": self._worker.name, "entry": entry.id, "job": job_id[:64]}
            log.info("the entry waits", extra=facts | {"why": str(early)})
            wait = REST if early.retry_after is None else early.retry_after.total_seconds()
            await self._put_back(entry, wait)

    async def _put_back(self, entry: Entry, wait: float) -> None:
        """Give an entry back as if it had not been delivered, to be due in so many seconds."""
        backoff = self._pace.wait(max(entry.deliveries - 1, 1))
        await self._stream.put_back(entry, max(backoff - round(wait * 1_000), 0))

    async def _try(self, entry: Entry, job_id: str) -> None:
        try:
            await self._integrate(entry, job_id)
        except (StoreUnavailable, TooEarly):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again or put aside
            self._worker.say_failed(job_id[:64], error, entry=entry.id)
            if entry.deliveries <= self._retries and not _is_final(error):
                return
            said = scrub(f"{type(error).__name__}: {error}")
            await self._records.fail(self._stream.name, entry.id, job_id, said, entry.deliveries)
        await self._stream.done([entry.id])

    async def _integrate(self, entry: Entry, job_id: str) -> None:
        attempt = entry.deliveries
        late_at = time.monotonic() + max(LATE, self._pace.wait(attempt) / 1000 - CALL)
        job = await self._records.job(job_id) if _is_id(job_id) else None
        if job is None:
            raise LookupError("there is no such job")
        if self._worker.is_job_processed(job):
            return
        if self._limit is not None and (full := await self._limit.take(f"{entry.id}/{attempt}")):
            raise TooEarly("the sheet's minute is full", timedelta(milliseconds=full))

        async def process(key: str) -> str:
            if self._worker.can_look_up and time.monotonic() > late_at:
                # A process that was frozen may wake up when the entry is another's, who has looked
                # for the effect and found none: two would make it.
                raise ProviderUncertain("too late: the entry is due again, and is looked up then")
            return await self._worker.process_job(job)

        result = await self._relevo.once(
            effect_id(job.id),
            self._worker.effect,
            process,
            queue=f"subscriptions:stripe:{self._worker.effect}",
            attempt=attempt,
            find=(lambda key: self._worker.look_up(job)) if self._worker.can_look_up else None,
            repeatable=self._worker.is_repeatable,
        )
        await self._records.mark(job.id, self._worker.flag(result), self._stream.name)
        self._worker.say_done(job.id, self._worker.flag(result), entry=entry.id)


def _is_final(error: Exception) -> bool:
    """Refused for good, or uncertain and left to a person: another try would not help."""
    return isinstance(error, ProviderRefused | ProviderUncertain)


def _is_id(text: str) -> bool:
    return len(text) == 32 and text.isascii() and text.isalnum()


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
