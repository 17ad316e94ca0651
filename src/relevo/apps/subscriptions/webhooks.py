"""Stripe calls us: a subscription that was paid becomes a job and its order, in one transaction."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Answer, Delivery, Intake, Reject, sources
from relevo.apps.subscriptions import records
from relevo.apps.subscriptions.queues import PublishJob
from relevo.apps.subscriptions.settings import SubscriptionSettings
from relevo.ids import derived_id
from relevo.route import Use
from relevo.sources import Source

PATH = "/hooks/stripe/subscriptions"
SUBSCRIBED = ("checkout.session.completed", "checkout.session.async_payment_succeeded")
PAID = ("paid", "no_payment_required")

CREATED_MAX = 10**11  # seconds; what is above it is in milliseconds

_EMAIL = re.compile(
    r"(?=.{,254}$)[^\s@,;<>\"\x00-\x1f\x7f]{1,64}@[A-Za-z0-9.-]{1,190}\.[A-Za-z0-9-]{2,63}"
)


class InvalidSession(ValueError):
    """A signed session that is not as Stripe sends them: kept as failed, for a person."""


def source(use: Use) -> Source:
    return sources.stripe(use(SubscriptionSettings).webhook_secret)


def key(delivery: Delivery) -> str:
    event_id: Any = delivery.json.get("id")
    if not isinstance(event_id, str) or not 0 < len(event_id) <= 255:
        raise Reject(422, "invalid_event_id")
    return event_id


async def subscribed(delivery: Delivery, ctx: Intake, tx: AsyncSession) -> Answer | None:
    """Anything but a paid subscription is acknowledged and kept, and nothing comes of it."""
    event = delivery.json
    if event.get("livemode") is not ctx.use(SubscriptionSettings).livemode:
        raise Reject(400, "livemode_mismatch")
    # Those of an account that is connected to ours are not our customers.
    is_ours = event.get("type") in SUBSCRIBED and "account" not in event
    job = _job(event) if is_ours else None
    if job is not None and await records.add_job(tx, job):
        await ctx.enqueue(PublishJob(job["id"]))
    return None


def _job(event: dict[str, Any]) -> dict[str, Any] | None:
    """The row of a subscription; None when the session is not one, or is not paid yet."""
    try:
        session: dict[str, Any] = event["data"]["object"]
        if session["mode"] != "subscription" or session["payment_status"] not in PAID:
            return None
        person: dict[str, Any] = session["customer_details"]
        metadata: dict[str, Any] = session.get("metadata") or {}
        made: dict[str, Any] = {
            "event_id": event["id"],
            "subscription_id": session["subscription"],
            "email": person["email"],
            "name": person.get("name") or "",
            "plan": metadata.get("plan", ""),
            "amount": session["amount_total"],
            "currency": session["currency"],
        }
        created = event["created"]
    except (LookupError, TypeError, AttributeError) as error:
        raise InvalidSession(f"it is no session of Stripe's: {error}") from error
    # What no row and no id can hold is told by name here, not by the database's error.
    wrong = [name for name, fits in _FITS.items() if not fits(made[name])]
    if type(created) is not int or not 0 <= created < CREATED_MAX:
        wrong.append("created")
    if wrong:
        raise InvalidSession(f"not as Stripe sends them: {', '.join(wrong)}")
    return {"id": derived_id(created * 1000, f"stripe/{event['id']}"), **made}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 200


_FITS: dict[str, Callable[[Any], bool]] = {
    "subscription_id": _is_text,
    "email": lambda value: isinstance(value, str) and bool(_EMAIL.fullmatch(value)),
    "name": lambda value: _is_text(value) and not re.search(r"[\x00-\x1f\x7f]", value),
    "plan": _is_text,
    "amount": lambda value: type(value) is int and abs(value) < 2**63,
    "currency": lambda value: _is_text(value) and len(value) == 3,
}
