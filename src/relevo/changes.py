"""What people change while workers run: limits, rates, priorities and slots of queues, limits of
lanes, and when breakers open.

Each change is a note in the store, which workers read with their usual looks, all at once: every
few seconds while they have jobs or a change is in force, else as seldom as they learn of breakers.
No claim asks for more because of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from relevo.clock import moment_if
from relevo.errors import DefinitionError, StoreUnavailable
from relevo.message import PRIORITIES, Breaker, Priority, rate
from relevo.store import BATCH, Note, Store, Want
from relevo.storetime import StoreTime

KIND = "change"

OFTEN = 24
"""Workers look so many times more often than they learn of breakers, while there may be news."""

_TRIES = 10

WriteDown = Callable[["Override | None", "Override"], Awaitable[None]]


class Override(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person has changed of a queue, a lane or a breaker; None: as the code says."""

    what: Literal["queue", "lane", "breaker"]
    name: str  # the queue's, or the breaker's
    lane: str | None = None
    limit: int | None = None  # running at once, in all workers; 0: the lane is paused
    rate: str | None = None  # "10/s"
    priority: Priority | None = None  # of the queue among those of a worker
    slots: int | None = None  # running at once in each worker
    failures: int | None = None
    window: str | None = None
    cooldown: str | None = None
    cap: str | None = None
    release: int | None = None
    slow: str | None = None
    by: str = ""
    note: str = ""
    set_at: int = 0
    until: int = 0  # 0: until it is taken back

    @property
    def place(self) -> str:
        """The name of its note; no name of a queue has a blank."""
        parts = [self.what, self.name, *([] if self.lane is None else [self.lane])]
        return " ".join(parts)

    @property
    def values(self) -> dict[str, str]:
        """What it says, as texts."""
        said = {name: getattr(self, name) for name in SETTABLE}
        return {name: str(value) for name, value in said.items() if value is not None}

    @property
    def said(self) -> str:
        """What it says, in a line."""
        return ", ".join(f"{name} {value}" for name, value in self.values.items())

    @property
    def is_pause(self) -> bool:
        """Whether no job of its lane begins."""
        return self.what == "lane" and self.limit == 0

    def __str__(self) -> str:
        return ("paused" if self.is_pause else self.said) + self.end

    @property
    def end(self) -> str:
        """Until when the change holds, and the name of the person that set it."""
        at = moment_if(self.until) if self.until else None
        until = "" if at is None else f" until {at:%Y-%m-%d %H:%M}Z"
        return f"{until} by {self.by}" if self.by else until


SETTABLE = (
    *("limit", "rate", "priority", "slots"),
    *("failures", "window", "cooldown", "cap", "release", "slow"),
)

decode = msgspec.json.Decoder(Override).decode


def checked(change: Override) -> Override:
    """The change itself; DefinitionError where one of its values cannot be."""
    least = 0 if change.what == "lane" else 1
    if change.limit is not None and not least <= change.limit <= 1_000_000:
        raise DefinitionError(f"a limit is {least} to 1,000,000, not {change.limit}")
    if change.slots is not None and not 1 <= change.slots <= 10_000:
        raise DefinitionError(f"the slots of a queue are 1 to 10,000, not {change.slots}")
    if change.priority is not None and change.priority not in PRIORITIES:
        raise DefinitionError("priority is 'high', 'normal' or 'low'")
    if change.rate is not None:
        rate(change.rate)
    if change.what == "breaker":
        changed_rule(Breaker(change.name), change)
    return change


def changed_rule(rule: Breaker, change: Override) -> Breaker:
    """When a breaker opens, as changed."""
    return Breaker(
        rule.template,
        failures=rule.failures if change.failures is None else change.failures,
        window=change.window or rule.window,
        cooldown=change.cooldown or rule.cooldown,
        cap=change.cap or rule.cap,
        release=rule.release if change.release is None else change.release,
        slow=change.slow or rule.slow,
    )


async def read_changes(store: Store) -> list[Override]:
    """Every change that is in force, in the order of their names."""
    notes: list[Note] = []
    while more := await store.notes(KIND, after=notes[-1].name if notes else "", limit=BATCH):
        notes += more
        if len(more) < BATCH:
            break
    return [decode(note.value) for note in notes]


async def write_change(store: Store, change: Override, write_down: WriteDown) -> Override:
    """Add a change to what was changed of the same thing before, and answer the whole.

    First it is written down: a crash in between leaves a line too many, and no unknown change.
    """
    told: Override | None = None
    for _ in range(_TRIES):
        [note] = await store.recall(KIND, [change.place])
        now = await store.now()
        whole, before = change, None
        if note is not None:
            before = decode(note.value)
            said = {name: getattr(change, name) for name in SETTABLE}
            said = {name: value for name, value in said.items() if value is not None}
            whole = replace(
                before,
                **said,
                by=change.by,
                note=change.note,
                until=change.until or before.until,
            )
        if told != whole:  # not again where only the write has to be repeated
            await write_down(before, whole)
            told = whole
        whole = replace(whole, set_at=now)
        made = Note(
            kind=KIND,
            name=whole.place,
            value=msgspec.json.encode(whole),
            version=0 if note is None else note.version,
            ttl=max(1, whole.until - now) if whole.until else None,
        )
        if (await store.remember([made]))[0]:
            return whole
    raise StoreUnavailable(f"{change.place} is changed by too many at once; try again")


class Changes:
    """The changes in force, as this process knows them."""

    def __init__(self, store: Store, time: StoreTime) -> None:
        self._store = store
        self._time = time
        self._read: list[Override] = []
        self.known: list[Override] = []
        self.is_read = False
        self._rules: dict[str, Override] = {}

    async def look(self) -> bool:
        """Read what people have changed; whether anything differs from before."""
        self._read = await read_changes(self._store)
        if self._read:
            await self._time.now()  # so that their ends are known to the millisecond
        self.is_read = True
        return self.drop_ended()

    def drop_ended(self) -> bool:
        """Forget the changes whose time is over; whether anything differs from before."""
        now = self._time.last() if self._read else 0
        known = [each for each in self._read if not each.until or each.until > now]
        if known == self.known:
            return False
        self.known = known
        self._rules = {each.name: each for each in known if each.what == "breaker"}
        return True

    def rule(self, name: str, rule: Breaker | None) -> Breaker | None:
        """When a breaker opens: as its command says, or as a person has changed it."""
        if not self._rules or (change := self._rules.get(name)) is None:
            return rule
        return changed_rule(rule or Breaker("implied"), change)

    @property
    def slots(self) -> dict[str, int]:
        """The slots that queues have been given."""
        return {each.name: each.slots for each in self.known if each.slots is not None}

    def tiers(self, wants: list[Want]) -> list[list[Want]]:
        """The queues with their limits as changed, those first that are to be claimed first."""
        tiers: dict[int, list[Want]] = {}
        for want in wants:
            priority: Priority = "normal"
            lanes: dict[str, int] = {}
            limit, pace = want.limit, want.rate
            for each in self.known:
                if each.name != want.queue or each.what == "breaker":
                    continue
                if each.lane is not None:
                    if each.limit is not None:
                        lanes[each.lane] = each.limit
                    continue
                priority = each.priority or priority
                limit = limit if each.limit is None else each.limit
                pace = pace if each.rate is None else rate(each.rate)
            changed = replace(want, limit=limit, rate=pace, lanes=lanes)
            tiers.setdefault(PRIORITIES[priority], []).append(changed)
        return [tiers[key] for key in sorted(tiers)]


def lane_name(text: str) -> str:
    """The lane itself if it may be one; DefinitionError if not."""
    if not 0 < len(text) <= 512:
        raise DefinitionError("a lane's name has 1 to 512 characters")
    return text
