"""Subscriptions for people: each job with its three flags, what failed for good, and retry."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import Relevo
from relevo.apps.subscriptions.integrations import effect_id
from relevo.apps.subscriptions.records import Records
from relevo.apps.subscriptions.support import Support, by_job
from relevo.apps.subscriptions.words import REFUSALS, SPANISH
from relevo.clock import stamp
from relevo.web import Room, go, needs, site

MOST = 500
"""Failures that the page looks for."""

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)


def build(relevo: Relevo) -> ASGIApp:
    def support(request: Request) -> Support:
        return Support(relevo, relevo.use(Records), request.state.desk)

    async def overview(request: Request) -> Response:
        failures = await support(request).failures(limit=MOST)
        return room.page(
            request,
            "subscriptions.html",
            jobs=await relevo.use(Records).jobs(),
            failures=failures,
            failed=by_job(failures),
            at=stamp,
            effect_id=effect_id,
        )

    @needs("operator")
    async def retry(request: Request) -> Response:
        """Order an integration again; what was done already is not repeated."""
        job_id, name = request.path_params["job"], request.path_params["integration"]
        await support(request).retry(job_id, name, request.state.person)
        return go(request, "/subscriptions", said=room.words(request)("Ordered again."))

    @needs("operator")
    async def retry_all(request: Request) -> Response:
        done = await support(request).retry_all(request.state.person)
        said = room.words(request)(
            "Ordered again: {retried}. Held for a decision: {held}.",
            retried=done.retried,
            held=done.held,
        )
        return go(request, "/subscriptions", said=said)

    return site(
        [
            Route("/subscriptions", overview),
            Route("/subscriptions/failures/retry", retry_all, methods=["POST"]),
            Route("/subscriptions/{job}/{integration}/retry", retry, methods=["POST"]),
        ],
        room,
    )
