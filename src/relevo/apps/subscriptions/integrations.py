"""EmailWorker, ListWorker, SpreadsheetWorker: one call outside each, and the flag that tells of it.

The same three serve relevo's queues and the Redis streams. An effect belongs to the job, not to the
way it came, so that a job that came both ways is still done once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import escape

from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Relevo
from relevo.apps.doppler_relay import DopplerRelay, Letter
from relevo.apps.subscriptions.gateways import Doppler, Gateways, Sheet
from relevo.apps.subscriptions.records import StripeJob, mark
from relevo.ids import derived_id, moment_of
from relevo.outcome import scrub
from relevo.telemetry import log


def effect_id(job_id: str) -> str:
    """Whose effects the three calls are: the job's, by whatever queue it came."""
    return derived_id(moment_of(job_id), f"stripe-job/{job_id}")


class Integration(ABC):
    """What the three have in common."""

    name: str  # for logs
    stream: str
    effect: str  # its name in the ledger of effects
    flags: tuple[str, ...]  # what may be true from then on; the usual one first
    is_repeatable = False  # whether calling twice is the same as calling once
    can_look_up = False  # whether it can find out what it did

    @abstractmethod
    def is_job_processed(self, job: StripeJob) -> bool:
        """Whether its flag is set."""

    @abstractmethod
    async def process_job(self, job: StripeJob) -> str:
        """Make the call; the flag that is true from then on."""

    async def look_up(self, job: StripeJob) -> str | None:
        """The flag, if the call was made after all; nobody asks one that cannot look up."""
        return None

    def flag(self, result: str) -> str:
        """What a result sets: a person who confirmed the call has said it in words of their own."""
        return result if result in self.flags else self.flags[0]

    async def mark_job_as_processed(self, tx: AsyncSession, job_id: str, flag: str) -> None:
        await mark(tx, job_id, flag, self.stream)

    def say_done(self, job_id: str, flag: str, **facts: str) -> None:
        """The one line of log that each success has."""
        log.info("done", extra={"worker": self.name, "job": job_id, "flag": flag, **facts})

    def say_failed(self, job_id: str, error: Exception, **facts: str) -> None:
        said = scrub(f"{type(error).__name__}: {error}")
        log.warning("failed", extra={"worker": self.name, "job": job_id, "error": said, **facts})


class EmailWorker(Integration):
    """Welcomes by letter, through Doppler Relay."""

    name = "EMAIL_WORKER"
    stream = "stripe_jobs_email"
    effect = "email"
    flags = ("email_sent",)

    def __init__(self, relay: DopplerRelay) -> None:
        self._relay = relay

    def is_job_processed(self, job: StripeJob) -> bool:
        return job.email_sent

    async def process_job(self, job: StripeJob) -> str:
        text = f"Hello {job.name or job.email}, your subscription {job.plan} has begun. Thank you."
        letter = Letter(
            job.email, job.name, "Your subscription has begun", text, f"<p>{escape(text)}</p>"
        )
        await self._relay.send(letter)
        return "email_sent"


class ListWorker(Integration):
    """Adds to a list at Doppler; one who unsubscribed is left alone."""

    name = "LIST_WORKER"
    stream = "stripe_jobs_list"
    effect = "list"
    flags = ("list_added", "list_skipped")
    is_repeatable = True  # Doppler updates whoever is there already

    def __init__(self, doppler: Doppler) -> None:
        self._doppler = doppler

    def is_job_processed(self, job: StripeJob) -> bool:
        return job.list_added or job.list_skipped

    async def process_job(self, job: StripeJob) -> str:
        is_added = await self._doppler.subscribe(job.email, job.name)
        return "list_added" if is_added else "list_skipped"


class SpreadsheetWorker(Integration):
    """Writes a row to a Google sheet, whose first column holds the job's id."""

    name = "SPREADSHEET_WORKER"
    stream = "stripe_jobs_spreadsheet"
    effect = "spreadsheet"
    flags = ("spreadsheet_saved",)
    can_look_up = True

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet

    def is_job_processed(self, job: StripeJob) -> bool:
        return job.spreadsheet_saved

    async def process_job(self, job: StripeJob) -> str:
        await self._sheet.append(
            [
                job.id,
                job.created_at.date().isoformat(),
                job.email,
                job.name,
                job.plan,
                job.amount,
                job.currency.upper(),
            ]
        )
        return "spreadsheet_saved"

    async def look_up(self, job: StripeJob) -> str | None:
        return "spreadsheet_saved" if await self._sheet.has(job.id) else None


KINDS: dict[str, type[Integration]] = {
    kind.effect: kind for kind in (EmailWorker, ListWorker, SpreadsheetWorker)
}


@dataclass(frozen=True, slots=True)
class Integrations:
    email: EmailWorker
    list: ListWorker
    spreadsheet: SpreadsheetWorker

    def named(self, name: str) -> Integration:
        found: dict[str, Integration] = {
            "email": self.email,
            "list": self.list,
            "spreadsheet": self.spreadsheet,
        }
        return found[name]


@asynccontextmanager
async def open_integrations(relevo: Relevo) -> AsyncGenerator[Integrations]:
    gateways = relevo.use(Gateways)
    yield Integrations(
        EmailWorker(gateways.relay),
        ListWorker(gateways.doppler),
        SpreadsheetWorker(gateways.sheet),
    )
