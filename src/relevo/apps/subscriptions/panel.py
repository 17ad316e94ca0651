"""Subscriptions for people: each job with its three flags, what failed for good, and retry."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import NotFoundError, Relevo
from relevo.apps.subscriptions.integrations import effect_id
from relevo.apps.subscriptions.queues import AddToList, SaveRow, SendEmail
from relevo.apps.subscriptions.records import Records
from relevo.apps.subscriptions.words import REFUSALS, SPANISH
from relevo.store import Audit, By, EffectState
from relevo.web import Room, go, needs, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)

ORDERS = {"email": SendEmail, "list": AddToList, "spreadsheet": SaveRow}


async def _ask_afresh(relevo: Relevo, job_id: str, name: str, by: str) -> None:
    """Let the next run ask again for what was refused, with a key new to the provider."""
    refused, _ = await relevo.store.effects(
        job=effect_id(job_id), states=frozenset({EffectState.REFUSED})
    )
    wanted = [replace(each, run="") for each in refused if each.name == name]
    if wanted:
        await relevo.store.conclude(wanted, By(by, "ordered again"))


def build(relevo: Relevo) -> ASGIApp:
    async def overview(request: Request) -> Response:
        records = relevo.use(Records)
        return room.page(
            request,
            "subscriptions.html",
            jobs=await records.jobs(),
            failures=await records.failures(),
        )

    @needs("operator")
    async def retry(request: Request) -> Response:
        """Order an integration again from our own queues; what was done already is not repeated."""
        job_id, name = request.path_params["job"], request.path_params["integration"]
        if name not in ORDERS or await relevo.use(Records).job(job_id) is None:
            raise NotFoundError("there is no such job")
        by = request.state.person.name
        await _ask_afresh(relevo, job_id, name, by)
        receipt = await relevo.enqueue(ORDERS[name](job_id))
        act = Audit(
            who=by, verb="subscription retried", target=receipt.id, note=f"{name} of {job_id}"
        )
        await relevo.store.audit([act])
        return go(request, "/subscriptions", said=room.words(request)("Ordered again."))

    return site(
        [
            Route("/subscriptions", overview),
            Route("/subscriptions/{job}/{integration}/retry", retry, methods=["POST"]),
        ],
        room,
    )
