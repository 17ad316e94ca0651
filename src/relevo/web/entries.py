"""Entries: logins, failed logins and the use of tokens, in audit and log, within bounds."""

from __future__ import annotations

import logging
from collections import OrderedDict

from relevo.clock import Clock
from relevo.store import Audit, Store
from relevo.web.people import Known, TokenRecord, person_of

log = logging.getLogger("relevo.web")

FAILURES = 5
"""Failures written in the audit within a minute; the next one tells how many were left out."""

_MINUTE, _HOUR = 60_000, 3_600_000
_REMEMBERED = 10_000


class Entries:
    """Writes down who comes in, and from which address."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._used: OrderedDict[tuple[str, str], int] = OrderedDict()  # token and address: when
        self._minute = 0  # since when failures are counted
        self._written = 0
        self._left_out = 0

    async def login(self, name: str, address: str) -> None:
        """A person has logged in."""
        log.info("login", extra={"address": address, "person": name})
        await self._write(name, "log in", name, f"from {address}")

    async def failure(self, said: str, name: str, known: Known | str | None, address: str) -> None:
        """A login was refused or held back, or a token was wrong.

        A name that is nobody's stands in the log alone: a person may have typed a password there.
        """
        log.warning(said, extra={"address": address, "person": name[:64]})
        now = self._now()
        if now - self._minute >= _MINUTE:
            self._minute, self._written = now, 0
        if self._written == FAILURES:
            self._left_out += 1
            return
        self._written += 1
        more = f"; {self._left_out:,} more were not written" if self._left_out else ""
        self._left_out = 0
        whose = known.name if isinstance(known, Known) else known or "unknown"
        await self._write(whose, said, whose, f"from {address}{more}")

    async def used(self, token: TokenRecord, address: str) -> None:
        """A token is used; written once an hour for each address."""
        now = self._now()
        place = (token.id, address)
        if now - self._used.get(place, -_HOUR) < _HOUR:
            return
        self._used[place] = now
        self._used.move_to_end(place)
        if len(self._used) > _REMEMBERED:
            self._used.popitem(last=False)
        note = f"from {address}" + (f"; made by {token.by}" if token.by else "")
        await self._write(person_of(token).name, "use token", token.name, note)

    async def _write(self, who: str, verb: str, target: str, note: str) -> None:
        await self._store.audit([Audit(who=who, verb=verb, target=target, note=note)])

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
