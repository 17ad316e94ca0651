"""What people's programs may ask of razworks. Slow work is ordered, never awaited: 202."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp

from relevo import Relevo, StoreUnavailable
from relevo.apps.guard import Guard
from relevo.apps.razworks import records
from relevo.apps.razworks.auth.events import UserRegistered
from relevo.apps.razworks.cortex.queues import cortex
from relevo.apps.razworks.projects.events import ProjectPublished
from relevo.apps.razworks.settings import RazworksSettings

BODY_MAX = 2 * 1_048_576  # the longest text, however it is escaped, fits into it

Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_EMAIL = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+$"
_STORABLE = r"^[^\x00]+$"  # not every database keeps a NUL
_AUDIO = ("audio/ogg", "audio/mpeg", "audio/mp4", "audio/wav", "audio/webm")


class Wish(BaseModel):
    """What is asked for; a field nobody knows is a mistake somebody should hear of."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


class Registration(Wish):
    email: Annotated[str, Field(pattern=_EMAIL, max_length=254)]
    name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
    password: Annotated[str, Field(min_length=12, max_length=200)]


class Publication(Wish):
    user_id: Id
    title: Annotated[str, Field(min_length=1, max_length=200, pattern=_STORABLE)]
    text: Annotated[str, Field(min_length=1, max_length=100_000, pattern=_STORABLE)]


class Upload(Wish):
    user_id: Id
    storage_url: Annotated[str, Field(max_length=2000, pattern=r"^https?://\S+$")]
    media_type: Annotated[str, Field(pattern=r"^audio/[a-z0-9.+-]+$")]


def build(relevo: Relevo) -> ASGIApp:
    """The API under /razworks/api, described by its openapi.json."""
    prefix = "/razworks/api"
    api = FastAPI(
        title="razworks",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{prefix}/openapi.json",
    )

    @api.post(f"{prefix}/users", status_code=202)
    async def register(wish: Registration) -> dict[str, Any]:
        """Register: the profile, the wallet and the welcome letter follow by themselves."""
        async with relevo.transaction() as tx:
            user_id = await records.add_user(tx, wish.email, wish.name, wish.password)
            if user_id is None:
                raise HTTPException(409, "this address is registered already")
            # The fact carries an id: a password would be refused, and belongs in no queue.
            await relevo.publish(UserRegistered(user_id), tx=tx)
        return {"id": user_id, "status": "accepted"}

    @api.get(f"{prefix}/users/{{user_id}}")
    async def standing(user_id: Id) -> dict[str, Any]:
        found = await relevo.use(records.Records).standing(user_id)
        if found is None:
            raise HTTPException(404, "there is no such user")
        return found

    @api.post(f"{prefix}/projects", status_code=202)
    async def publish(wish: Publication) -> dict[str, Any]:
        await _check_user(relevo, wish.user_id)
        async with relevo.transaction() as tx:
            project_id = await records.add_project(tx, wish.user_id, wish.title, wish.text)
            await relevo.publish(ProjectPublished(project_id, wish.user_id), tx=tx)
        return {"id": project_id, "status": "accepted"}

    @api.post(f"{prefix}/recordings", status_code=202)
    async def upload(wish: Upload) -> dict[str, Any]:
        """Have a recording understood; it lies in storage, and only its address comes here."""
        hosts = relevo.use(RazworksSettings).storage_hosts
        if _host(wish.storage_url) not in hosts:
            raise HTTPException(422, "storage_url: not one of our storage hosts")
        if wish.media_type not in _AUDIO:
            raise HTTPException(422, f"media_type: one of {', '.join(_AUDIO)}")
        await _check_user(relevo, wish.user_id)
        async with relevo.transaction() as tx:
            id = await records.add_recording(tx, wish.user_id, wish.storage_url, wish.media_type)
            started = await relevo.start(cortex(id), tx=tx)
            await records.follow(tx, id, started.id)
        return {"id": id, "flow": started.id, "status": "accepted"}

    @api.get(f"{prefix}/recordings/{{recording_id}}")
    async def recording(recording_id: Id) -> dict[str, Any]:
        known = relevo.use(records.Records)
        found = await known.recording(recording_id)
        if found is None:
            raise HTTPException(404, "there is no such recording")
        return {
            "id": found.id,
            "flow": found.flow_id,
            "status": await known.status(found),
            "transcript": found.transcript,
            "mentions": found.mentions,
            "intent": found.intent,
            "summary": found.summary,
        }

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        """Which fields are wrong, and why; never what was sent, which may be a password."""
        shown = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
        return JSONResponse({"detail": shown}, 422)

    @api.exception_handler(StoreUnavailable)
    async def away(request: Request, error: StoreUnavailable) -> JSONResponse:
        """Nothing was stored, and nothing was promised."""
        return JSONResponse({"detail": "try again soon"}, 503, {"retry-after": "1"})

    return Guard(api, BODY_MAX, {"detail": "too_large"})


def _host(url: str) -> str:
    """The host that a URL names to every reader alike; empty when it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_plain = "\\" not in url and "@" not in parts.netloc
    return (parts.hostname or "") if is_plain else ""


async def _check_user(relevo: Relevo, user_id: str) -> None:
    if await relevo.use(records.Records).person(user_id) is None:
        raise HTTPException(422, "user_id: there is no such user")
