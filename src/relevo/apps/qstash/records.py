"""The tables of our QStash: messages, events, queues, groups, schedules, keys, flow control."""

from __future__ import annotations

import msgspec
from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relevo.apps.qstash.wire import Flow, Wish

WAITING, ACTIVE, DELIVERED = "CREATED", "ACTIVE", "DELIVERED"
FAILED, CANCELED = "FAILED", "CANCELED"
UNFINISHED = (WAITING, ACTIVE)


class Base(DeclarativeBase):
    """The tables; all times are Unix milliseconds, as the API tells them."""


class Message(Base):
    """One message to one destination."""

    __tablename__ = "qstash_messages"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    url: Mapped[str] = mapped_column(Text)
    wish: Mapped[bytes] = mapped_column(LargeBinary)  # JSON of a Wish
    body: Mapped[bytes] = mapped_column(LargeBinary)
    state: Mapped[str] = mapped_column(String(20))
    retried: Mapped[int] = mapped_column(Integer, default=0)
    not_before: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger)
    finished_at: Mapped[int | None] = mapped_column(BigInteger)
    topic: Mapped[str | None] = mapped_column(String(256))
    endpoint: Mapped[str | None] = mapped_column(String(256))
    queue: Mapped[str | None] = mapped_column(String(256))
    schedule_id: Mapped[str | None] = mapped_column(String(256))
    label: Mapped[str | None] = mapped_column(String(512))
    flow_key: Mapped[str | None] = mapped_column(String(256))
    caller_ip: Mapped[str | None] = mapped_column(String(64))
    dlq_id: Mapped[str | None] = mapped_column(String(40), unique=True)
    response_status: Mapped[int | None] = mapped_column(Integer)
    response_headers: Mapped[bytes | None] = mapped_column(LargeBinary)
    response_body: Mapped[bytes | None] = mapped_column(LargeBinary)

    @property
    def wishes(self) -> Wish:
        return msgspec.json.decode(self.wish, type=Wish)


class Event(Base):
    """Something that happened to a message."""

    __tablename__ = "qstash_events"
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    message_id: Mapped[str] = mapped_column(String(40))
    time: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(20))
    error: Mapped[str | None] = mapped_column(Text)
    next_delivery: Mapped[int | None] = mapped_column(BigInteger)
    response_status: Mapped[int | None] = mapped_column(Integer)
    response_body: Mapped[bytes | None] = mapped_column(LargeBinary)


class Queue(Base):
    """Messages one after the other, so many at once."""

    __tablename__ = "qstash_queues"
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    parallelism: Mapped[int] = mapped_column(Integer, default=1)
    paused: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[int] = mapped_column(BigInteger)


class Group(Base):
    """A URL group: one name for many destinations."""

    __tablename__ = "qstash_groups"
    name: Mapped[str] = mapped_column(String(256), primary_key=True)
    endpoints: Mapped[bytes] = mapped_column(LargeBinary)  # JSON of a list of Endpoint
    created_at: Mapped[int] = mapped_column(BigInteger)
    updated_at: Mapped[int] = mapped_column(BigInteger)

    @property
    def members(self) -> list[Endpoint]:
        return msgspec.json.decode(self.endpoints, type=list[Endpoint])


class Endpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a URL group."""

    url: str
    name: str | None = None


class Schedule(Base):
    """A message again and again; each change begins a generation, and ends the ticks before it."""

    __tablename__ = "qstash_schedules"
    id: Mapped[str] = mapped_column(String(256), primary_key=True)
    destination: Mapped[str] = mapped_column(Text)
    cron: Mapped[str] = mapped_column(String(200))
    wish: Mapped[bytes] = mapped_column(LargeBinary)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    generation: Mapped[int] = mapped_column(Integer, default=0)
    is_paused: Mapped[bool] = mapped_column(Boolean, default=False)
    created_at: Mapped[int] = mapped_column(BigInteger)
    last_at: Mapped[int | None] = mapped_column(BigInteger)
    next_at: Mapped[int | None] = mapped_column(BigInteger)
    last_messages: Mapped[bytes | None] = mapped_column(LargeBinary)  # JSON of a list of ids
    caller_ip: Mapped[str | None] = mapped_column(String(64))

    @property
    def wishes(self) -> Wish:
        return msgspec.json.decode(self.wish, type=Wish)


class Seen(Base):
    """A deduplication id, for ten minutes."""

    __tablename__ = "qstash_seen"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    message_id: Mapped[str] = mapped_column(String(40))
    until: Mapped[int] = mapped_column(BigInteger)


class Keys(Base):
    """The signing keys after a rotation; one row."""

    __tablename__ = "qstash_keys"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    current: Mapped[str] = mapped_column(String(200))
    next: Mapped[str] = mapped_column(String(200))


class FlowKey(Base):
    """What a flow-control key allows, and what it has used."""

    __tablename__ = "qstash_flows"
    key: Mapped[str] = mapped_column(String(256), primary_key=True)
    parallelism: Mapped[int] = mapped_column(Integer, default=0)
    rate: Mapped[int] = mapped_column(Integer, default=0)
    period: Mapped[int] = mapped_column(Integer, default=1)
    is_paused: Mapped[bool] = mapped_column(Boolean, default=False)
    is_parallelism_pinned: Mapped[bool] = mapped_column(Boolean, default=False)
    is_rate_pinned: Mapped[bool] = mapped_column(Boolean, default=False)
    window_at: Mapped[int] = mapped_column(BigInteger, default=0)
    window_count: Mapped[int] = mapped_column(Integer, default=0)

    def follow(self, flow: Flow) -> None:
        """Take over what a message says, unless people have pinned it."""
        if not self.is_parallelism_pinned:
            self.parallelism = flow.parallelism
        if not self.is_rate_pinned:
            self.rate, self.period = flow.rate, flow.period

    @property
    def window_end(self) -> int:
        return self.window_at + self.period * 1000

    def count_one(self, now: int) -> bool:
        """Count a call in the window of this moment, if there is a rate with room for it."""
        if not self.rate:
            return False
        if now >= self.window_end:
            self.window_at, self.window_count = now, 0
        if self.window_count >= self.rate:
            return False
        self.window_count += 1
        return True


class Slot(Base):
    """A delivery under way that counts for a flow-control key; it lapses with its worker.

    Before it is under way, `until` is minus the end of the window in which it was counted.
    """

    __tablename__ = "qstash_slots"
    message_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[str] = mapped_column(String(256))
    until: Mapped[int] = mapped_column(BigInteger)

    @classmethod
    def counted(cls, message_id: str, flow: FlowKey) -> Slot:
        return cls(message_id=message_id, key=flow.key, until=-flow.window_end)

    def is_counted(self, now: int) -> bool:
        return now < -self.until
