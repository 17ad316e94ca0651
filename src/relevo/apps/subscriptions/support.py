"""What failed for good, and its retry: for command line and panel.

A failure is a dead or held job of our own queues, or an entry of a stream that was acknowledged
after its last try. It is over when its integration succeeds, whichever way that was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from relevo import DefinitionError, Job, MisuseError, NotFoundError, Relevo, State
from relevo.apps.subscriptions.integrations import KINDS, effect_id
from relevo.apps.subscriptions.queues import AddToList, PublishJob, SaveRow, SendEmail
from relevo.apps.subscriptions.records import Records, StripeFailure, StripeJob
from relevo.desk import Desk, Person
from relevo.store import UNDECIDED, Audit, Effect, EffectState, Filter

PUBLISH = "publish"
ORDERS = {"email": SendEmail, "list": AddToList, "spreadsheet": SaveRow, PUBLISH: PublishJob}
_BY_STREAM = {kind.stream: name for name, kind in KINDS.items()}
_JOB = re.compile(r"[0-9a-f]{32}")
PAGE = 200
MOST = 10_000  # failures that a retry looks through


@dataclass(frozen=True, slots=True)
class Failed:
    """An integration of a job that goes on no more by itself."""

    job_id: str
    integration: str
    state: str  # "failed", or "held": the call may have been made, and a person decides
    reason: str
    tries: int
    failed_at: datetime
    order: str = ""  # the job of our own queues; empty where it was a stream's entry


@dataclass(frozen=True, slots=True)
class Retried:
    """What came of a retry of many."""

    retried: int
    held: int


class Support:
    """The verbs, at a desk that knows how far each person may go."""

    def __init__(self, relevo: Relevo, rows: Records, desk: Desk) -> None:
        self._relevo = relevo
        self._rows = rows
        self._desk = desk

    async def failures(self, *, integration: str | None = None, limit: int = 200) -> list[Failed]:
        """What failed for good and did not succeed since, newest first."""
        if integration is not None and integration not in ORDERS:
            known = ", ".join(ORDERS)
            raise DefinitionError(f"no integration {integration!r:.40}: there are {known}")
        found: dict[tuple[str, str], Failed] = {}
        for failed in [*await self._entries(limit), *await self._dead(limit)]:
            if integration in (None, failed.integration):
                found[failed.job_id, failed.integration] = failed  # a job's own state is the newer
        jobs = await self._rows.jobs_of(list({job_id for job_id, _ in found}))
        still = [each for each in found.values() if not _is_done(jobs.get(each.job_id), each)]
        still.sort(key=lambda each: each.failed_at, reverse=True)
        return still[:limit]

    async def _dead(self, limit: int) -> list[Failed]:
        found: list[Failed] = []
        for name, command in ORDERS.items():
            where = Filter(
                queue=command.__relevo__.queue, states=frozenset({State.DEAD, State.HELD})
            )
            cursor, count = None, 0
            while True:
                page = await self._desk.jobs(where, cursor, min(PAGE, limit - count))
                found += [_of_job(name, job) for job in page.jobs if job.key]
                count += len(page.jobs)
                cursor = page.cursor
                if cursor is None or count >= limit:
                    break
        return found

    async def _entries(self, limit: int) -> list[Failed]:
        entries = [each for each in await self._rows.failures(limit) if each.retried_at is None]
        if not entries:
            return []
        unsure: set[tuple[str, str]] = set()
        cursor = None
        while True:
            effects, cursor = await self._desk.effects(states=UNDECIDED, cursor=cursor, limit=PAGE)
            unsure |= {(each.job, each.name) for each in effects}
            if cursor is None:
                break
        return [_of_entry(each, unsure) for each in entries]

    async def retry(self, job_id: str, integration: str, by: Person, note: str = "") -> None:
        """Order one integration of a job again; what was done already is not repeated."""
        job = (await self._rows.jobs_of([job_id])).get(job_id)
        if job is None or integration not in ORDERS:
            raise NotFoundError("there is no such job")
        known = await self.failures(integration=integration, limit=MOST)
        failed = [each for each in known if each.job_id == job_id]
        for each in failed:
            await self._retry(each, by, note)
        if not failed:
            await self._order(job_id, integration, by, note)

    async def retry_job(
        self, job_id: str, by: Person, note: str = "", *, integration: str | None = None
    ) -> Retried:
        """Order again what failed of one job."""
        known = await self.failures(integration=integration, limit=MOST)
        failures = [each for each in known if each.job_id == job_id]
        if not failures:
            raise NotFoundError(f"nothing has failed of job {job_id!r:.40}")
        return await self._retry_each(failures, by, note)

    async def retry_all(
        self, by: Person, note: str = "", *, integration: str | None = None
    ) -> Retried:
        """Order again all that failed; what is held waits for a person's decision."""
        known = await self.failures(integration=integration, limit=MOST)
        return await self._retry_each(known, by, note)

    async def _retry_each(self, failures: list[Failed], by: Person, note: str) -> Retried:
        by.acts("retry", note)
        retried = held = 0
        jobs = await self._rows.jobs_of(list({each.job_id for each in failures}))
        for each in failures:
            if each.state == "held":
                held += 1
            elif each.job_id in jobs:
                await self._retry(each, by, note)
                retried += 1
        return Retried(retried, held)

    async def _retry(self, failed: Failed, by: Person, note: str) -> None:
        if failed.state == "held":
            raise MisuseError(
                "the call may have been made: look at the provider, then confirm or deny the "
                f"effect '{failed.integration}' of {effect_id(failed.job_id)}"
            )
        await self._ask_afresh(failed, by, note)
        if failed.order:
            await self._desk.retry([failed.order], by, note)
        else:
            await self._order(failed.job_id, failed.integration, by, note)
        if failed.integration in KINDS:
            await self._rows.retried(KINDS[failed.integration].stream, failed.job_id)

    async def _order(self, job_id: str, integration: str, by: Person, note: str) -> None:
        signed = by.acts("retry", note)
        receipt = await self._relevo.enqueue(ORDERS[integration](job_id))
        said = f"{integration} of {job_id}" + (f": {signed.note}" if signed.note else "")
        line = Audit(who=signed.who, verb="subscription retried", target=receipt.id, note=said)
        await self._relevo.store.audit([line])

    async def _ask_afresh(self, failed: Failed, by: Person, note: str) -> None:
        """Let the next run ask again for what was refused, with a key new to the provider."""
        refused, _ = await self._desk.effects(
            job=effect_id(failed.job_id), states=frozenset({EffectState.REFUSED})
        )
        for effect in refused:
            if effect.name == failed.integration and not _is_denied(effect):
                await self._desk.deny_effect(effect.job, effect.name, by, note)


def by_job(failures: list[Failed]) -> dict[tuple[str, str], Failed]:
    """Failures by job and integration; a job that was never published has failed in all three."""
    found = {
        (each.job_id, name): each
        for each in failures
        if each.integration == PUBLISH
        for name in KINDS
    }
    return found | {(each.job_id, each.integration): each for each in failures}


def _is_denied(effect: Effect) -> bool:
    return not effect.run  # a person has said so already


def _is_done(job: StripeJob | None, failed: Failed) -> bool:
    names = KINDS if failed.integration == PUBLISH else (failed.integration,)
    return job is not None and all(
        any(getattr(job, flag) for flag in KINDS[name].flags) for name in names
    )


def _of_job(name: str, job: Job) -> Failed:
    failure = job.failure
    ended = job.ended_at or job.run_at
    return Failed(
        job_id=(job.key or "").partition(":")[2],
        integration=name,
        state="held" if job.state is State.HELD else "failed",
        reason=f"{failure.type}: {failure.message}" if failure else job.note,
        tries=job.attempt,
        failed_at=datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ended),
        order=job.id,
    )


def _of_entry(entry: StripeFailure, unsure: set[tuple[str, str]]) -> Failed:
    name = _BY_STREAM.get(entry.stream, entry.stream)
    is_held = bool(_JOB.fullmatch(entry.job_id)) and (effect_id(entry.job_id), name) in unsure
    return Failed(
        job_id=entry.job_id,
        integration=name,
        state="held" if is_held else "failed",
        reason=entry.error,
        tries=entry.deliveries,
        failed_at=at if (at := entry.failed_at).tzinfo else at.replace(tzinfo=UTC),
    )
