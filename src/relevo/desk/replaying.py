"""Replaying many: deliveries that failed or differ, by their error, and handling them again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from relevo.clock import moment
from relevo.desk.bulk import Pace
from relevo.desk.deliveries import Deliveries, HandlingFailed, is_replayable
from relevo.desk.looking import PAGE_MAX, opened, sealed
from relevo.desk.people import Person
from relevo.errors import (
    DefinitionError,
    MisuseError,
    NotFoundError,
    RelevoError,
    StoreError,
    StoreUnavailable,
)
from relevo.message import rate as rate_of
from relevo.outcome import fingerprint
from relevo.store import FAILED_OF, UNHANDLED, UNSIGNED, Audit, DeliveryState, Kept, Letterbox

if TYPE_CHECKING:
    from relevo.intake import Handling

COUNTED = 1_000
"""Deliveries of one state that are counted and grouped, the newest ones."""

MATCHED = 100_000
"""Deliveries that one replay of many may mean."""

EFFECTS_OF = 10_000
"""Deliveries whose effects a dry run of many reads, the oldest ones."""

SAMPLE = 20
GROUPS = 50
MARGIN = 60_000
"""Milliseconds by which the clocks that give ids and those that give moments may differ."""


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries a person wants to have handled."""

    state: DeliveryState = DeliveryState.FAILED
    endpoint: str | None = None
    since: int | None = None  # received then or later
    until: int | None = None  # received before
    error: str | None = None  # found literally in the reason
    group: str | None = None  # a fingerprint, as delivery_groups() gives it

    def means(self, kept: Kept) -> bool:
        """Whether a delivery of its state and endpoint is one of them."""
        return (
            (self.since is None or kept.received_at >= self.since)
            and (self.until is None or kept.received_at < self.until)
            and (self.error is None or self.error in kept.reason)
            and (self.group is None or self.group == group_of(kept))
        )

    def __str__(self) -> str:
        said = [f"state {self.state}"]
        for name in ("endpoint", "since", "until", "error", "group"):
            if (value := getattr(self, name)) is not None:
                if isinstance(value, int):
                    value = moment(value).isoformat(timespec="seconds")
                said.append(f"{name} {value}")
        return ", ".join(said)


class DeliveryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries of one endpoint, of one state, for the same reason."""

    fingerprint: str
    endpoint: str
    state: DeliveryState
    error: str  # of the newest
    count: int
    first_at: int
    last_at: int
    sample: str  # the newest one's id


class DeliveryGroups(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, largest first."""

    groups: list[DeliveryGroup]
    is_cut: bool = False  # there are more: of each state only the newest are counted

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)


class DeliveryCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries of one state there are."""

    count: int
    is_cut: bool  # there are more


class ReplayError(msgspec.Struct, frozen=True, kw_only=True):
    """Why some of many deliveries were not handled."""

    error: str
    count: int
    sample: str  # a delivery's id


class Repeatable(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmed effects of one name that a replay of many would find, or make twice."""

    queue: str
    name: str
    count: int = 0
    deliveries: int = 0  # that have one
    sample: str = ""  # the key of the oldest
    last_at: int = 0


class Replays(msgspec.Struct, frozen=True, kw_only=True):
    """What became of handling many deliveries, or would; oldest first."""

    matched: int = 0
    handled: int = 0
    failed: int = 0  # their function failed again, or could not run
    skipped: int = 0  # signed by nobody, handled meanwhile, or gone
    errors: list[ReplayError] = msgspec.field(default_factory=list[ReplayError])
    skips: list[ReplayError] = msgspec.field(default_factory=list[ReplayError])
    deliveries: list[Kept] = msgspec.field(default_factory=list[Kept])  # of a dry run, those meant
    # Of a dry run: what replays would find confirmed, or make twice if they repeat effects.
    effects: list[Repeatable] = msgspec.field(default_factory=list[Repeatable])
    effects_of: int = 0  # of so many deliveries, the oldest
    is_dry: bool = False
    cursor: str | None = None  # where the next call goes on
    stopped: str = ""  # why it went no further

    @property
    def total(self) -> int:
        return self.matched

    @property
    def changed(self) -> int:
        return self.handled

    @property
    def refused(self) -> int:
        return self.failed + self.skipped

    def __str__(self) -> str:
        said = f"{self.handled:,} of {self.matched:,} handled"
        return f"{said}, {self.failed:,} failed again, {self.skipped:,} skipped"


class Replaying(Deliveries):
    """Many deliveries at once."""

    async def delivery_groups(
        self,
        states: tuple[DeliveryState, ...] = (DeliveryState.FAILED,),
        endpoint: str | None = None,
        *,
        since: int | None = None,
        limit: int = GROUPS,
        signed: bool = False,
    ) -> DeliveryGroups:
        """Deliveries by endpoint and reason, most first; the newest COUNTED of each state.

        Only those that are `signed` well, if so asked.
        """
        found: dict[str, DeliveryGroup] = {}
        is_cut = False
        for state in states:
            seen = 0
            async for kept in self._walk(
                DeliveryQuery(state=state, endpoint=endpoint, since=since)
            ):
                if seen == COUNTED:
                    is_cut = True
                    break
                seen += 1
                if not signed or kept.status != UNSIGNED:
                    _add(found, kept)
        groups = sorted(found.values(), key=lambda group: (-group.count, group.fingerprint))
        shown = [replace(each, error=self.told(each.error)) for each in groups[:limit]]
        return DeliveryGroups(groups=shown, is_cut=is_cut or len(groups) > limit)

    async def delivery_counts(self) -> dict[DeliveryState, DeliveryCount]:
        """How many deliveries there are in each state, as far as one page of it tells."""
        counts: dict[DeliveryState, DeliveryCount] = {}
        for state in DeliveryState:
            page, more = await self.store.deliveries(Letterbox(state=state), limit=PAGE_MAX)
            count = sum(self.sees(kept.endpoint) for kept in page)
            counts[state] = DeliveryCount(count=count, is_cut=more is not None)
        return counts

    async def replay_where(
        self,
        query: DeliveryQuery,
        by: Person,
        handling: Handling,
        note: str = "",
        *,
        limit: int | None = None,
        cursor: str | None = None,
        dry_run: bool = False,
        rate: str | None = None,
        canary: int | None = None,
        repeat_effects: bool = False,
        progress: Callable[[Replays], None] | None = None,
    ) -> Replays:
        """Handle all that a query means by today's code, oldest first.

        A delivery whose function fails again stops nothing; each is handled as by replay(). Of
        accepted ones, replays are left out: what they repeat is handled. With `limit` at most so
        many, and the cursor of the answer goes on behind them. With `rate` ("5/s") no faster than
        that, from call to call. With `canary`, so many go first, and the others follow if none of
        them fails. A dry run counts the effects that are confirmed; they are made once
        more only if it shall `repeat_effects`.
        """
        count, period = (1, 0) if rate is None else rate_of(rate)
        Pace(limit=limit, canary=canary).checked()
        if not dry_run:
            by.acts("replay", note)
        for name in ("endpoint", "error", "group"):
            if (text := getattr(query, name)) is not None and not 0 < len(text) <= 500:
                raise DefinitionError(f"{name} has 1 to 500 characters, not {len(text)}")
        chosen, rest = await self._chosen(query, cursor, limit)
        done = Replays(matched=len(chosen), is_dry=dry_run, cursor=rest)
        if dry_run:
            looked = chosen[:EFFECTS_OF]
            effects = await self._repeatable(looked)
            return replace(done, deliveries=chosen, effects=effects, effects_of=len(looked))
        tell: Callable[[Replays], None] = progress or (lambda _: None)
        tell(done)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            for number, kept in enumerate(chosen, start=0 if cursor is None else 1):
                due = began + number * period / count / 1000
                await asyncio.sleep(max(0.0, due - now()))
                done = await self._one(done, kept, by, handling, note, repeat_effects)
                if done.failed and canary is not None and done.refused + done.handled <= canary:
                    why = f"canary {kept.id} failed again: {done.errors[-1].error}"
                    done = replace(done, stopped=why)
                tell(done)
                if done.stopped:
                    break
        finally:
            if chosen:  # also where a person stops it
                noted = f"effects repeated; {note}".strip("; ") if repeat_effects else note
                await self._decided(query, done, by, noted)
        return done

    async def _repeatable(self, chosen: Sequence[Kept]) -> list[Repeatable]:
        """What replays of deliveries would find confirmed, by queue and name; most first."""
        found: dict[tuple[str, str], Repeatable] = {}
        threads: dict[tuple[str, str], set[str]] = {}
        for start in range(0, len(chosen), PAGE_MAX):
            some = chosen[start : start + PAGE_MAX]
            for effect in await self.confirmed(await self._threads(some)):
                place = (effect.queue, effect.name)
                known = found.get(place) or Repeatable(
                    queue=effect.queue, name=effect.name, sample=effect.key
                )
                threads.setdefault(place, set()).add(effect.thread)
                found[place] = replace(
                    known,
                    count=known.count + 1,
                    deliveries=len(threads[place]),
                    last_at=max(known.last_at, effect.updated_at),
                )
        return sorted(found.values(), key=lambda one: (-one.count, one.queue, one.name))

    async def _threads(self, some: Sequence[Kept]) -> frozenset[str]:
        """The threads whose effects replays of these deliveries would find."""
        found: set[str] = set()
        mine = [kept for kept in some if kept.state not in UNHANDLED and kept.key is not None]
        for endpoint in {kept.endpoint for kept in mine}:
            here = {kept.key or "": kept for kept in mine if kept.endpoint == endpoint}
            newest = await self.store.delivered(endpoint, list(here))
            for kept, last in zip(here.values(), newest, strict=True):
                if last is not None and last.generation > 0:  # replayed before
                    found |= await self.threads_of(kept)
                else:
                    found.add(kept.thread or kept.id)
        return frozenset(found)

    async def _one(
        self,
        done: Replays,
        kept: Kept,
        by: Person,
        handling: Handling,
        note: str,
        repeat_effects: bool,
    ) -> Replays:
        try:
            await self._still_wanted(kept)
            await self.replay(kept.id, by, handling, note, repeat_effects=repeat_effects)
        except StoreUnavailable:
            raise
        except HandlingFailed as mistake:
            errors = _counted(done.errors, mistake.error, kept)
            return replace(done, failed=done.failed + 1, errors=errors)
        except (MisuseError, NotFoundError) as why:
            skips = _counted(done.skips, str(why).replace(kept.id, "…"), kept)
            return replace(done, skipped=done.skipped + 1, skips=skips)
        except RelevoError as trouble:
            errors = _counted(done.errors, f"{type(trouble).__name__}: {trouble}", kept)
            return replace(done, failed=done.failed + 1, errors=errors)
        return replace(done, handled=done.handled + 1)

    async def _still_wanted(self, kept: Kept) -> None:
        """MisuseError for a refused delivery whose key came later, by itself or as its replay."""
        if kept.state is not DeliveryState.REFUSED or kept.key is None or not is_replayable(kept):
            return
        [newest] = await self.store.delivered(kept.endpoint, [kept.key])
        if newest is not None and newest.received_at >= kept.received_at:
            raise MisuseError("its key was accepted since")

    async def _decided(self, query: DeliveryQuery, done: Replays, by: Person, note: str) -> None:
        signed = by.acts("replay", note)
        row = Audit(
            who=signed.who,
            verb="replay many",
            target=query.endpoint or "deliveries",
            note="; ".join(filter(None, (signed.note, str(query), str(done))))[:1_000],
        )
        with contextlib.suppress(StoreError):
            await self.store.audit([row])

    async def _chosen(
        self, query: DeliveryQuery, cursor: str | None, limit: int | None
    ) -> tuple[list[Kept], str | None]:
        """The deliveries to handle, oldest first, and where the next call goes on."""
        asked, after = query, ""
        if (place := opened(cursor, asked)) is not None:
            until, came, after = place.split(" ")
            query = replace(query, until=int(until), since=int(came))
        elif query.until is None:  # what is replayed meanwhile is no part of it
            query = replace(query, until=await self.store.now() + 1)
        found: list[Kept] = []
        async for kept in self._walk(query):
            is_replay = kept.generation > 0
            is_before = after and (kept.received_at, kept.id) <= (query.since, after)
            if not is_replay and not is_before:
                found.append(kept)
            if len(found) > MATCHED:
                raise DefinitionError(
                    f"more than {MATCHED:,} deliveries match: name an endpoint, or since and until"
                )
        found.sort(key=lambda kept: (kept.received_at, kept.id))
        chosen = found if limit is None else found[:limit]
        if len(chosen) == len(found):
            return chosen, None
        last = chosen[-1]
        return chosen, sealed(f"{query.until} {last.received_at} {last.id}", asked)

    async def _walk(self, query: DeliveryQuery) -> AsyncIterator[Kept]:
        """The deliveries that a query means, about newest first."""
        where = Letterbox(state=query.state, endpoint=query.endpoint)
        floor = None if query.since is None else query.since - MARGIN
        cursor = None
        while True:
            page, cursor = await self.store.deliveries(where, cursor=cursor, limit=PAGE_MAX)
            for kept in page:
                if floor is not None and kept.received_at < floor:
                    return
                if self.sees(kept.endpoint) and query.means(kept):
                    yield kept
            if cursor is None:
                return


def group_of(kept: Kept) -> str:
    """Equal for deliveries of one endpoint that failed of the same mistake."""
    return fingerprint(kept.endpoint, str(kept.state), kept.reason)


def error_of(kept: Kept) -> str:
    """What went wrong with a delivery, without the words before it."""
    return kept.reason.removeprefix(FAILED_OF)


def _add(found: dict[str, DeliveryGroup], kept: Kept) -> None:
    print = group_of(kept)
    known = found.get(print)
    if known is None:
        known = DeliveryGroup(
            fingerprint=print,
            endpoint=kept.endpoint,
            state=kept.state,
            error=error_of(kept),
            count=0,
            first_at=kept.received_at,
            last_at=kept.received_at,
            sample=kept.id,
        )
    found[print] = replace(
        known,
        count=known.count + 1,
        first_at=min(known.first_at, kept.received_at),
        last_at=max(known.last_at, kept.received_at),
    )


def _counted(errors: list[ReplayError], said: str, kept: Kept) -> list[ReplayError]:
    """The errors with one more; the same mistake is counted once for each delivery."""
    said = said[:500]
    print = fingerprint("", "", said)
    for place, each in enumerate(errors):
        if fingerprint("", "", each.error) == print:
            one = replace(each, count=each.count + 1)
            return [*errors[:place], one, *errors[place + 1 :]]
    if len(errors) == SAMPLE:
        last = errors[-1]
        return [*errors[:-1], replace(last, error="other errors", count=last.count + 1)]
    return [*errors, ReplayError(error=said, count=1, sample=kept.id)]
