"""Orders: publish a subscription to its three integrations, and each of them."""

from __future__ import annotations

from relevo import Breaker, Command, exponential
from relevo.apps.subscriptions.settings import SHEET_WRITES

BACKOFF = exponential("15s", cap="120s")
ATTEMPTS = 6  # the first, and WORKERS_MAX_RETRIES by default


class PublishJob(
    Command,
    queue="subscriptions:stripe:publish",
    attempts=10,
    backoff=exponential("1s", cap="1m"),
    timeout="20s",
    key="publish:{job_id}",
    unique="unfinished",
):
    job_id: str


class SendEmail(
    Command,
    queue="subscriptions:stripe:email",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="45s",
    key="email:{job_id}",
    unique="unfinished",
    breaker=Breaker("doppler-relay", window="2m"),
):
    job_id: str


class AddToList(
    Command,
    queue="subscriptions:stripe:list",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="45s",
    key="list:{job_id}",
    unique="unfinished",
    breaker=Breaker("doppler", window="2m"),
):
    job_id: str


class SaveRow(
    Command,
    queue="subscriptions:stripe:spreadsheet",
    attempts=ATTEMPTS,
    backoff=BACKOFF,
    timeout="45s",
    key="spreadsheet:{job_id}",
    unique="unfinished",
    rate=f"{SHEET_WRITES}/m",
    breaker=Breaker("google-sheets", window="2m"),
):
    job_id: str
