"""What every verb of the store has at hand: lines to the server, and the skew of its clock."""

from __future__ import annotations

from datetime import timedelta

from relevo.clock import Clock, SystemClock
from relevo.stores.places import Places
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.ear import Ear
from relevo.stores.postgres.lines import Door, Line, Lines

_MILLISECOND = timedelta(milliseconds=1)


class Session:
    """Connections by purpose, each made when first used.

    Whoever enqueues, claims or settles has a line to itself; leases and memory share some, and
    people others, so that no one's slow question delays the work.
    """

    def __init__(self, url: str, clock: Clock | None) -> None:
        self._given = url
        self._clock = clock or SystemClock()
        self._address = parse(url)
        self._statements: dict[str, str] = {}
        self._door = Door(self._address)
        # Arrivals are a plain statement, planned once for tables of any size.
        self._in = Line(self._door, plan_cache_mode="force_generic_plan", enable_seqscan="off")
        # Claims in a hurry are plain statements: their plan is this one whatever the tables hold.
        self._out = Line(
            self._door,
            plan_cache_mode="force_generic_plan",
            enable_seqscan="off",
            enable_bitmapscan="off",
            enable_hashjoin="off",
            enable_mergejoin="off",
            enable_sort="off",
        )
        self._ends = Line(self._door)
        self._upkeep = Lines(self._door, 2)
        # People's filters are optional: a plan made for the values at hand finds the right index.
        self._people = Lines(self._door, 1, plan_cache_mode="force_custom_plan")
        self._ear = Ear(self._door, self._sql("relevo.jobs"), self._in)

    @property
    def places(self) -> Places:
        """How many connections there may be, beside those of the application's transactions."""
        return self._door.places

    def _sql(self, text: str) -> str:
        statement = self._statements.get(text)
        if statement is None:
            statement = self._statements[text] = self._address.sql(text)
        return statement

    @property
    def _skew(self) -> int:
        return self._clock.offset // _MILLISECOND
