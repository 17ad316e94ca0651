"""What a verb is given inside a transaction: the connection, the time, and what is known by heart.

Every step of a statement gives the interpreter's lock away and has to win it back from a busy event
loop, so verbs are written to take few steps: batches travel as one statement with many rows of
values, or as one JSON list, and come back as one row.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from secrets import randbits
from typing import Any, TypeVar

import msgspec

from relevo.job import State
from relevo.store import QueueMode

T = TypeVar("T")

READY, RUNNING, DONE, WAITING, PARKED, HELD, DEAD, CANCELLED = 10, 20, 30, 40, 50, 60, 70, 80
STATES = {
    READY: State.READY,
    RUNNING: State.RUNNING,
    DONE: State.DONE,
    WAITING: State.WAITING,
    PARKED: State.PARKED,
    HELD: State.HELD,
    DEAD: State.DEAD,
    CANCELLED: State.CANCELLED,
}
CODES = {state: code for code, state in STATES.items()} | {State.SCHEDULED: READY}

NEVER = 1_099_511_627_776  # the moment of what has not happened, see 0001_jobs.sql
NOBODY = 999  # the worker of a job that never ran

SIZES = (512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)

WIDE = 128  # rows of many columns in one statement, which takes up to a kilobyte for each

ESCAPE = "\x10"
_STRANGE = re.compile(f"[\0{ESCAPE}\ud800-\udfff]")
_ESCAPED = re.compile(f"{ESCAPE}([0-9a-f]{{4}})")

encode = msgspec.json.encode


class QueueRow(msgspec.Struct):
    """What a verb has to know of a queue before it touches its jobs."""

    mode: QueueMode = QueueMode.OPEN
    ordered: bool = False
    laned: bool = False
    latest: bool = False


NOTHING: tuple[Sequence[Any], bytes, int] = ((), b"", 0)


class Known:
    """What one connection remembers between transactions; checked against the file in each."""

    def __init__(self) -> None:
        self.version = ""
        self.queues: dict[str, QueueRow] = {}
        self.workers: dict[str, int] = {}
        self.limited: set[str] = set()  # queues where an ending may let the next one go
        self.last_seq = 0
        self.last_delivery = 0  # relevo_deliveries.seq
        self.turns = 0  # claims over several queues so far: each begins at another one
        self.fresh: dict[bytes, int] = {}  # see lines.py
        self.fresh_rows = 0
        self.fresh_seen = 0  # the last row read or written
        self.heard = NOTHING  # see taking.py

    def forget(self) -> None:
        """After a rollback: what was learnt in it may not be so."""
        self.version = ""
        self.queues = {}
        self.workers = {}
        self.fresh = {}
        self.fresh_rows = self.fresh_seen = 0


class Tx:
    """One transaction, already begun, and the moment it happens at."""

    def __init__(self, connection: sqlite3.Connection, known: Known, now: int) -> None:
        self.connection = connection
        self.known = known
        self.now = now
        self.woken: set[str] = set()  # queues that have work once this commits
        self.late: Callable[[Tx], None] | None = None  # what whoever commits does first
        self.last_fresh = 0  # relevo_fresh.no

    def at(self, now: int) -> Tx:
        """The same transaction for a verb whose caller lives by another clock."""
        self.now = now
        return self

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Change rows; answers how many, unless the statement begins with `with`: then -1."""
        return self._execute(sql, parameters).rowcount

    def add(self, sql: str, parameters: Sequence[Any]) -> int:
        """Insert one row; answers its number."""
        return self._execute(sql, parameters).lastrowid or 0

    def insert(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Insert rows for the `[]` of a statement; answers how many."""
        return sum([self.run(*bound(sql, some)) for some in chunks(rows, most=WIDE)])

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._execute(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Every row; for the few, not for batches of jobs."""
        return self._execute(sql, parameters).fetchall()

    def _execute(self, sql: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        cursor = self.connection.cursor()
        cursor.row_factory = None  # a caller's own connection may shape its rows otherwise
        return cursor.execute(sql, parameters)

    def complete(self) -> None:
        """Do what was put off to the end, where no event loop waits for it."""
        if self.late is not None:
            self.late(self)

    def prepare(self) -> None:
        """Read what other processes may have changed since the last transaction."""
        top, version, delivery, fresh = self.one(
            """
            select (select max(seq) from relevo_jobs),
                   (select value from relevo_meta where name = 'queues'),
                   (select max(seq) from relevo_deliveries),
                   (select max(no) from relevo_fresh)
            """
        )
        self.known.last_seq = max(self.known.last_seq, top or 0)
        self.known.last_delivery = delivery or 0
        self.last_fresh = fresh or 0
        if version != self.known.version:
            self.known.queues = {
                name: QueueRow(QueueMode(mode), bool(ordered), bool(laned), bool(latest))
                for name, mode, ordered, laned, latest in self.all(
                    "select name, mode, ordered, laned, latest from relevo_queues"
                )
            }
            self.known.version = version

    def take_seqs(self, count: int) -> int:
        """The first of `count` numbers that no job has had, nor will have."""
        first = max(self.known.last_seq + 1, self.now << 21)
        self.known.last_seq = first + count - 1
        return first

    def queue(self, name: str) -> QueueRow:
        """What is known of a queue; an unknown one is entered."""
        return self.known.queues.get(name) or self.change_queue(name)

    def change_queue(
        self,
        name: str,
        *,
        mode: QueueMode | None = None,
        ordered: bool | None = None,
        laned: bool | None = None,
        latest: bool | None = None,
    ) -> QueueRow:
        """Enter a queue, or change what is said of it, for all processes."""
        row = self.known.queues.setdefault(name, QueueRow())
        row.mode = row.mode if mode is None else mode
        row.ordered = row.ordered if ordered is None else ordered
        row.laned = row.laned if laned is None else laned
        row.latest = row.latest if latest is None else latest
        self.run(
            """
            insert into relevo_queues (name, mode, ordered, laned, latest)
            values (?, ?, ?, ?, ?)
            on conflict (name) do update
            set mode = excluded.mode, ordered = excluded.ordered, laned = excluded.laned,
                latest = excluded.latest
            """,
            (name, row.mode.value, row.ordered, row.laned, row.latest),
        )
        self.run("update relevo_meta set value = value + 1 where name = 'queues'")
        (self.known.version,) = self.one("select value from relevo_meta where name = 'queues'")
        return row

    def worker(self, name: str) -> int:
        """The number that stands for a worker's name in job rows."""
        number = self.known.workers.get(name)
        if number is None:
            self.run(
                """
                insert into relevo_names (no, name)
                select max(?, ifnull((select max(no) from relevo_names), 0)) + 1, ?
                where true
                on conflict (name) do nothing
                """,
                (NOBODY, text(name)),
            )
            (number,) = self.one("select no from relevo_names where name = ?", (text(name),))
            self.known.workers[name] = number
        return number


def new_token() -> int:
    """A mark that no other lease has; always eight bytes wide in the row."""
    return 1 << 60 | randbits(60)


def text(value: str) -> str:
    """Text as its column holds it: NUL ends a string in SQLite, and half a character is none.

    Those are written as an escape and four digits, and read back by `plain`.
    """
    if value.isprintable() or _STRANGE.search(value) is None:
        return value
    return _STRANGE.sub(_escaped, value)


def optional(value: str | None) -> str | None:
    """The same for what may be absent."""
    return None if value is None else text(value)


def plain(value: str) -> str:
    """Text as it was given; also where a hand has put bytes into its column."""
    try:
        return value if ESCAPE not in value else _ESCAPED.sub(_unescaped, value)
    except TypeError:
        return as_bytes(value).decode(errors="replace")


def _escaped(found: re.Match[str]) -> str:
    return f"{ESCAPE}{ord(found[0]):04x}"


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


def as_bytes(value: Any) -> bytes:
    """A stored payload or result, also where a hand has put text into its column."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")


def as_list(values: Iterable[Any]) -> str:
    """Values as the JSON list that `json_each` takes apart again."""
    return encode(list(values)).decode()


def chunks(items: Sequence[T], *, most: int = SIZES[0]) -> Iterator[Sequence[T]]:
    """The items in pieces of few different lengths, so that prepared statements are found again."""
    start = 0
    left = len(items)
    for size in SIZES:
        while left >= size <= most:
            yield items[start : start + size] if size != len(items) else items
            start += size
            left -= size


def bound(sql: str, rows: Sequence[tuple[Any, ...]]) -> tuple[str, list[Any]]:
    """The statement with rows for its `[]`, and what to bind to it.

    A column in which every value is the same is bound once: of most there is but one.
    """
    columns = list(zip(*rows, strict=True))
    alike = tuple([column.count(column[0]) == len(rows) for column in columns])
    values = [value for value, is_alike in zip(rows[0], alike, strict=True) if is_alike]
    others = [column for column, is_alike in zip(columns, alike, strict=True) if not is_alike]
    values += chain.from_iterable(zip(*others, strict=True))
    return _spread(sql, alike, len(rows)), values


@lru_cache(maxsize=512)
def _spread(sql: str, alike: tuple[bool, ...], count: int) -> str:
    shared, width = sum(alike), len(alike) - sum(alike)
    rows: list[str] = []
    for row in range(count):
        once, own = iter(range(1, shared + 1)), iter(range(shared + row * width + 1, 1 << 30))
        rows.append(", ".join([f"?{next(once if is_alike else own)}" for is_alike in alike]))
    return sql.replace("[]", ", ".join([f"({row})" for row in rows]))


_filled: dict[tuple[str, int], str] = {}


def fill(sql: str, rows: int) -> str:
    """The statement with its one row of values, `[?, ?]`, repeated so many times."""
    key = (sql, rows)
    if key not in _filled:
        head, row, tail = sql.replace("[", "]").split("]")
        _filled[key] = head + ", ".join([f"({row})"] * rows) + tail
    return _filled[key]
