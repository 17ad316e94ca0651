"""How a job is written: packed for the server, and read back as a Lease or a Job.

A job is one line of JSON with what Lua needs in front of it and the payload, as it came, behind:
`inserted|band|attempts|keep|key|unique|lane|{header} \\npayload`, and one byte more. How
long the id is remembered stands behind `keep` as `+milliseconds`, and the digest behind `key` as
`-hex`, in jobs that have them. Lua tells long texts apart by a few of their bytes, among them the
last, and compares whole texts if these are the same; jobs of one kind differ in little. What older
versions wrote has neither that byte nor the space in front of the line's end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import cycle
from typing import Any, TypeVar, cast

from msgspec import Struct, ValidationError, convert, to_builtins
from msgspec.json import Decoder, Encoder

from relevo.job import (
    After,
    Attempt,
    Failure,
    Job,
    Joined,
    Lease,
    NewJob,
    State,
    Unique,
)

T = TypeVar("T")

HISTORY = 50
ID = 32  # letters, of an id as we make them
BANDS = 2  # priorities past it share its band

STATES = {
    "Q": State.SCHEDULED,
    "R": State.RUNNING,
    "W": State.WAITING,
    "P": State.PARKED,
    "H": State.HELD,
    "D": State.DONE,
    "X": State.DEAD,
    "C": State.CANCELLED,
}
LETTERS = {state: letter for letter, state in STATES.items()} | {State.READY: "Q"}
UNIQUES: dict[bytes, Unique] = {b"u": "unfinished", b"f": "forever", b"l": "latest"}
ODD = "\x00\x00odd:"  # in front of text that is no Unicode: it travels as hex
_ODD = b"\\u0000\\u0000odd:"


class Header(Struct, omit_defaults=True):
    """What of a job only Python reads. Names are short: a million jobs carry them."""

    k: str  # kind
    p: int = 1  # priority, as it was asked for
    y: str | None = None  # key
    l: str | None = None  # lane  # noqa: E741 - one letter, like its neighbours
    t: str | None = None  # thread
    c: str | None = None  # cause
    m: bytes | None = None  # meta
    f: str | None = None  # flow
    n: str | None = None  # node
    d: int = 0  # delay
    r: int | None = None  # run_at
    a: tuple[After, ...] = ()


class Line(Struct):
    """One line of history, as Lua writes it."""

    n: int
    o: str
    b: int
    e: int
    w: str = ""
    f: Failure | None = None


_marks = re.compile(rb"\t(\d+)\+(\d+)\t(.*)", re.DOTALL).fullmatch
END = b" \n"  # of the line in front of a payload with a byte of ours behind it
_tails = cycle([bytes([n]) for n in range(256)])
_encode = Encoder().encode
_header = Decoder(Header)
_line = Decoder(Line)
_joined = Decoder(Joined)


class Unreadable(Exception):
    """A packed job that somebody has edited by hand, and wrongly."""


def digest(text: str) -> str:
    """What stands for a key or a lane in names that outlive it."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def band(priority: int) -> int:
    return priority if 0 <= priority <= BANDS else 0 if priority < 0 else BANDS


def to_text(text: str) -> bytes:
    """Any text as bytes, also what is no Unicode."""
    return text.encode("utf-8", "surrogatepass")


def from_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def is_plain(job: NewJob) -> bool:
    """Nothing about it to look up or to wait for, but perhaps its time; and an id like all."""
    return (
        job.key is None
        and job.lane is None
        and not job.after
        and not job.before
        and len(job.id) == ID
    )


def when(job: NewJob) -> str:
    """When a job is due, as insert.lua reads it: '' for at once."""
    if job.run_at is not None:
        return f"@{job.run_at}"
    return f"+{job.delay}" if job.delay > 0 else ""


def pack_job(job: NewJob) -> bytes:
    """The blob that Lua puts its moment in front of."""
    if (
        job.key is job.lane is job.thread is job.cause is job.meta is job.flow is job.node is None
        and job.run_at is None
        and job.delay <= 0
        and not job.after
    ):
        front = _front(job.kind, job.priority, job.attempts, job.keep, job.unique, job.remember)
        return front + job.payload + next(_tails)
    key = lane = ""
    if job.key is not None:
        key = digest(job.key) if job.digest is None else f"{digest(job.key)}-{job.digest.hex()}"
    if job.lane is not None:
        lane = digest(job.lane)
    names = f"{key}|{job.unique[0]}|{lane}|".encode()
    numbers = _numbers(job.priority, job.attempts, job.keep, job.remember)
    return b"".join((numbers, names, encode_header(job), END, job.payload, next(_tails)))


@lru_cache(1_000)
def _front(
    kind: str, priority: int, attempts: int, keep: int, unique: Unique, remember: int
) -> bytes:
    """All but the payload, where nothing else is the job's own: most are alike."""
    numbers = _numbers(priority, attempts, keep, remember)
    return numbers + f"|{unique[0]}||".encode() + dump(Header(kind, priority)) + END


@lru_cache(1_000)
def _numbers(priority: int, attempts: int, keep: int, remember: int) -> bytes:
    kept = f"{max(keep, 0)}+{remember}" if remember > 0 else max(keep, 0)
    return f"|{band(priority)}|{max(attempts, 0)}|{kept}|".encode()


def encode_header(job: NewJob) -> bytes:
    return dump(
        Header(
            job.kind,
            job.priority,
            job.key,
            job.lane,
            job.thread,
            job.cause,
            job.meta,
            job.flow,
            job.node,
            max(job.delay, 0),
            job.run_at,
            job.after,
        )
    )


def dump(value: Any) -> bytes:
    """Structs as JSON, also when their texts are no Unicode."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_each_text(to_builtins(value), plain))


def load(decoder: Decoder[T], data: bytes) -> T:
    """The structs again."""
    value = decoder.decode(data)
    if _ODD in data:
        return convert(_each_text(to_builtins(value), _whole), decoder.type)
    return value


def plain(text: str) -> str:
    """Text that JSON can hold: what is no Unicode as hex."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return ODD + to_text(text).hex()
    return text


def _whole(text: str) -> str:
    return from_text(bytes.fromhex(text[len(ODD) :])) if text.startswith(ODD) else text


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case dict():
            return {name: _each_text(v, change) for name, v in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_each_text(v, change) for v in cast(Sequence[Any], value)]
        case _:
            return value


def pack_failure(failure: Failure | None) -> bytes:
    """A failure as a line of history holds it; what is no Unicode becomes '?'."""
    if failure is None:
        return b""
    try:
        return _encode(failure)
    except UnicodeEncodeError:
        fields = ("type", "message", "trace", "fingerprint")
        readable = {name: _readable(getattr(failure, name)) for name in fields}
        return _encode(Failure(**readable))


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def unpack_job(blob: bytes) -> tuple[list[bytes], Header, bytes]:
    """The facts in front, the header, the payload; Unreadable if it is none of ours."""
    parts = blob.split(b"|", 7)
    try:
        front, _, payload = parts[7].partition(b"\n")
        return parts, load(_header, front), payload[:-1] if front[-1:] == b" " else payload
    except (IndexError, ValidationError, ValueError) as error:
        raise Unreadable(str(error)) from error


def repack(
    blob: bytes, *, payload: bytes | None, priority: int | None, attempts: int | None
) -> bytes:
    """The blob with what a person changed; Unreadable if it is none of ours."""
    parts, header, old = unpack_job(blob)
    if priority is not None:
        header.p = priority
        parts[1] = str(band(priority)).encode()
    if attempts is not None:
        parts[2] = str(max(attempts, 0)).encode()
    front = b"|".join([*parts[:7], dump(header)])
    return b"".join((front, END, old if payload is None else payload, blob[-1:]))


def read_line(line: bytes) -> Line:
    """One line of history."""
    return _line.decode(line)


class Facts(Struct, frozen=True):
    """What a packed job says of itself but for its moment, id and payload."""

    attempts: int
    keep: int
    remember: int
    header: Header
    has_tail: bool

    @property
    def is_common(self) -> bool:
        """Whether other jobs say the very same: nothing in it is this one's own."""
        h = self.header
        return h.y is h.l is h.t is h.c is h.m is h.f is h.n is h.r is None and not h.a


_common: dict[bytes, Facts] = {}


def read_lease(
    id: bytes, queue: str, blob: bytes, attempt: int, turn: int, token: str, claimed_at: int
) -> Lease:
    """A packed job as its worker gets it; Unreadable if it is none of ours.

    `ref` is how long the job's id is to be remembered once it is gone.
    """
    front, _, payload = blob.partition(b"\n")
    inserted, _, rest = front.partition(b"|")
    facts = _common.get(rest) or _read_facts(rest)
    header = facts.header
    name = id.decode()
    return Lease(
        name,
        queue,
        header.k,
        payload[:-1] if facts.has_tail else payload,
        attempt,
        facts.attempts,
        token,
        facts.remember,
        header.y,
        header.l,
        name if header.t is None else header.t,
        header.c,
        header.m,
        header.f,
        header.n,
        facts.keep,
        int(inserted),
        claimed_at,
        turn,
    )


def _read_facts(rest: bytes) -> Facts:
    parts = rest.split(b"|", 6)
    try:
        header = parts[6]
        keep, _, remember = parts[2].partition(b"+")
        facts = Facts(
            int(parts[1]),
            int(keep),
            int(remember or 0),
            load(_header, header),
            header[-1:] == b" ",
        )
    except (IndexError, ValidationError, ValueError) as error:
        raise Unreadable(str(error)) from error
    # Most jobs of a queue differ in nothing but their payload: they are read once.
    if facts.is_common and len(_common) < 1_000:
        _common[rest] = facts
    return facts


def read_job(row: Sequence[Any], now: int, *, history: bool) -> Job:
    """A row of read.lua or walk.lua as a person sees it."""
    queue, id, blob, record, moment, lines, result, note, park, edges, joins, grown = row
    name = cast(bytes, id).decode()
    try:
        parts, header, payload = unpack_job(blob)
        inserted_at, attempts = int(parts[0]), int(parts[2])
        keep, remember = (int(each or 0) for each in parts[3].partition(b"+")[::2])
    except (Unreadable, ValueError):
        # Somebody edited it by hand: it is shown as it is, for a person to put aside.
        parts, header, payload = [b"u"] * 7, Header("?"), cast(bytes, blob)
        inserted_at, attempts, keep, remember = 0, 0, 0, 0
    letter, spent, turn, began, ended, due, worker, suspicion, crashes = _read_record(record)
    past = [_line.decode(line) for line in lines.split(b"\n") if line]
    asked = header.r if header.r is not None else inserted_at + header.d
    run_at = int(float(due)) if due else asked
    state = STATES[letter]
    if state is State.SCHEDULED and moment:
        run_at = int(float(moment))
        state = State.READY if run_at <= now else State.SCHEDULED
    failures = [line.f for line in past if line.f is not None]
    changes = cast(bytes, grown).decode().splitlines()
    stand = dict(line[1:].split(":") for line in changes if line[0] == "=")
    runs: tuple[Attempt, ...] = ()
    if history:
        runs = tuple(_attempt(line) for line in past if line.o != "child")
        if state is State.DONE and began:
            runs += (_done(spent, began, ended, worker),)
    return Job(
        id=name,
        queue=cast(bytes, queue).decode(),
        kind=header.k,
        state=state,
        payload=payload,
        priority=header.p,
        attempt=spent,
        attempts=attempts,
        inserted_at=inserted_at,
        run_at=run_at,
        ended_at=ended if state in (State.DONE, State.DEAD, State.CANCELLED) else None,
        lease_until=int(float(moment)) if state is State.RUNNING and moment else None,
        worker=worker if state is State.RUNNING else None,
        key=header.y,
        unique=UNIQUES.get(parts[5], "unfinished"),
        lane=header.l,
        park=from_text(park) if park is not None else None,
        thread=header.t if header.t is not None else name,
        cause=header.c,
        meta=header.m,
        flow=header.f,
        node=header.n,
        result=result,
        failure=failures[-1] if failures and state is not State.DONE else None,
        note=from_text(note),
        history=runs[-HISTORY:],
        turn=turn,
        suspicion=suspicion,
        crashes=crashes,
        remember=remember,
        keep=keep,
        joined=int(cast(bytes, joins).partition(b"\n")[0] or 0),
        joins=tuple([load(_joined, line) for line in joins.split(b"\n")[1:]]),
        after=(
            *(
                After(stand.get(edge.child, edge.child), edge.policy)
                for edge in header.a
                if edge.child != name
            ),
            *(_grown(line) for line in changes if line[0] != "="),
        ),
        before=tuple(edge.split()[1].decode() for edge in edges.splitlines()),
    )


def _read_record(record: bytes) -> tuple[str, int, int, int, int, bytes, str, int, int]:
    if not record:
        return "Q", 0, 0, 0, 0, b"", "", 0, 0
    letter, count, began, ended, due, _, worker = record.split(b"|", 6)
    attempt, _, turn = count.partition(b"+")
    suspicion = crashes = b"0"
    if marks := _marks(worker):
        suspicion, crashes, worker = marks.groups()
    return (
        letter.decode(),
        int(attempt),
        int(turn or 0),
        int(began or 0),
        int(ended or 0),
        due,
        from_text(worker),
        int(suspicion),
        int(crashes),
    )


def _grown(line: str) -> After:
    letter, child = line.split()
    return After(child, "fail" if letter == "f" else "continue")


def _attempt(line: Line) -> Attempt:
    return Attempt(
        number=line.n,
        outcome=line.o,
        began_at=line.b,
        ended_at=line.e,
        worker=line.w,
        failure=line.f,
    )


def _done(number: int, began: int, ended: int, worker: str) -> Attempt:
    return Attempt(number=number, outcome="done", began_at=began, ended_at=ended, worker=worker)
