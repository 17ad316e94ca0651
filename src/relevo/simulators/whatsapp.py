"""Meta's Graph API for WhatsApp, pretended: signed webhooks, media for five minutes, sending.

A text that was sent is in the ledger as ("whatsapp", "send", its biz_opaque_callback_data or else
its id), with recipient and text; its status goes out as a webhook, as with the real one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

APP_SECRET = "relevo_simulator_app_secret"  # noqa: S105 - opens nothing but the simulators
VERIFY_TOKEN = "relevo_simulator_verify"  # noqa: S105 - likewise
ACCESS_TOKEN = "relevo_simulator_access"  # noqa: S105 - likewise
NUMBER = "15550001111"
NUMBER_ID = "800000000000001"
ACCOUNT_ID = "900000000000001"
URL_LIFE = 300.0  # seconds

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


def environment(base: str) -> dict[str, str]:
    return {
        "WHATSAPP_APP_SECRET": APP_SECRET,
        "WHATSAPP_VERIFY_TOKEN": VERIFY_TOKEN,
        "WHATSAPP_ACCESS_TOKEN": ACCESS_TOKEN,
        "WHATSAPP_GRAPH_URL": f"{base}/whatsapp",
        "WHATSAPP_STATUS_SECONDS": "8",  # its statuses come at once
    }


@dataclass(slots=True)
class File:
    """Something a person attached."""

    data: bytes
    content_type: str
    url: str = ""  # another address than ours, for bad stories


@dataclass(slots=True)
class Phone:
    """One business number: files, addresses that are still good, and who may not be written to."""

    files: dict[str, File] = field(default_factory=dict[str, File])
    urls: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    refused: dict[str, int] = field(default_factory=dict[str, int])  # recipient → error code
    token_leaks: list[str] = field(default_factory=list[str])
    has_statuses: bool = True
    statuses_path: str = "/api/webhook"


def phone(world: World) -> Phone:
    return world.room("whatsapp", Phone)


# Webhooks


def sign(body: bytes, secret: str = APP_SECRET) -> dict[str, str]:
    """The headers of a webhook."""
    seal = hmac.digest(secret.encode(), body, "sha256").hex()
    return {
        "content-type": "application/json",
        "x-hub-signature-256": f"sha256={seal}",
        "user-agent": "facebookexternalua",
    }


def envelope(
    value: Mapping[str, Any], *, field: str = "messages", number: str = NUMBER_ID
) -> bytes:
    """What Meta sends around messages or statuses; non-ASCII is escaped, as it does."""
    metadata = {"display_phone_number": NUMBER, "phone_number_id": number}
    change = {
        "field": field,
        "value": {"messaging_product": "whatsapp", "metadata": metadata, **value},
    }
    entry = {"id": ACCOUNT_ID, "changes": [change]}
    whole = {"object": "whatsapp_business_account", "entry": [entry]}
    return json.dumps(whole, separators=(",", ":")).encode()


def message(
    world: World,
    content: Mapping[str, Any],
    *,
    sender: str = "5491100000001",
    user_id: str = "",
    name: str = "Ana",
    id: str = "",
    at: float | None = None,
) -> dict[str, Any]:
    """The value of a webhook with one message; without a sender, from someone with a user name."""
    contact: dict[str, Any] = {"profile": {"name": name}}
    told: dict[str, Any] = {
        "id": id or new_wamid(),
        "timestamp": str(int(world.now() if at is None else at)),
        **content,
    }
    if sender:
        contact["wa_id"] = told["from"] = sender
    if user_id:
        contact["user_id"] = told["from_user_id"] = user_id
    return {"contacts": [contact], "messages": [told]}


def text(body: str) -> dict[str, Any]:
    return {"type": "text", "text": {"body": body}}


def attach(
    world: World, data: bytes, content_type: str = "image/png", *, kind: str = "image", **more: Any
) -> dict[str, Any]:
    """The content of a message with a file, which can be fetched from now on."""
    media_id = str(secrets.randbelow(10**15) + 10**15)
    phone(world).files[media_id] = File(data, content_type)
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    return {
        "type": kind,
        kind: {"id": media_id, "mime_type": content_type, "sha256": digest, **more},
    }


def new_wamid() -> str:
    return "wamid." + base64.b64encode(secrets.token_bytes(30)).decode()


# The API


def routes(world: World) -> list[BaseRoute]:
    @world.call("whatsapp", "media")
    async def describe(request: Request) -> Response:
        if (refused := _unknown_caller(request)) is not None:
            return refused
        id = request.path_params["id"]
        file = phone(world).files.get(id)
        if file is None or fault(request) == "refuse":
            return _error(400, 100, "Unsupported get request. Object does not exist")
        ticket = secrets.token_hex(8)
        phone(world).urls[ticket] = (id, world.now() + URL_LIFE)
        return JSONResponse(
            {
                "messaging_product": "whatsapp",
                "url": file.url or f"{world.base}/whatsapp/attachments/{ticket}",
                "mime_type": file.content_type,
                "sha256": hashlib.sha256(file.data).hexdigest(),
                "file_size": len(file.data),
                "id": id,
            }
        )

    @world.call("whatsapp", "download")
    async def download(request: Request) -> Response:
        if (refused := _unknown_caller(request)) is not None:
            return refused
        id, until = phone(world).urls.get(request.path_params["ticket"], ("", 0.0))
        if world.now() > until or fault(request) == "refuse":
            return Response("", 404)
        file = phone(world).files[id]
        return Response(file.data, media_type=file.content_type)

    @world.call("whatsapp", "elsewhere")
    async def elsewhere(request: Request) -> Response:
        """A host that is not Meta's: notes whether it was given the token."""
        if request.headers.get("authorization"):
            phone(world).token_leaks.append(str(request.url))
        return Response(PNG, media_type="image/png")

    @world.call("whatsapp", "send")
    async def send(request: Request) -> Response:
        if (refused := _unknown_caller(request)) is not None:
            return refused
        told: dict[str, Any] = await request.json()
        to = str(told.get("to", ""))
        if fault(request) == "refuse":
            return _error(400, 131026, "Message undeliverable")
        if to in phone(world).refused:
            return _error(400, phone(world).refused[to], "refused")
        body = str(told.get("text", {}).get("body", ""))
        if told.get("messaging_product") != "whatsapp" or not to or not 0 < len(body) <= 4096:
            return _error(400, 131009, "Parameter value is not valid")
        wamid = new_wamid()
        mark = str(told.get("biz_opaque_callback_data", ""))
        world.effect("whatsapp", "send", mark or wamid, to=to, text=body, wamid=wamid)
        if phone(world).has_statuses:
            # relevo: allow RV001 the courier works beside the answer
            _announce(world, wamid, to, mark)
        return JSONResponse(
            {
                "messaging_product": "whatsapp",
                "contacts": [{"input": to, "wa_id": to}],
                "messages": [{"id": wamid}],
            }
        )

    base = "/whatsapp/{version}"
    return [
        Route("/whatsapp/attachments/{ticket}", download),
        Route("/whatsapp-elsewhere/{name}", elsewhere),
        Route(f"{base}/{{number}}/messages", send, methods=["POST"]),
        Route(f"{base}/{{id}}", describe),
    ]


def _announce(world: World, wamid: str, to: str, mark: str) -> None:
    for word in ("sent", "delivered"):
        status = {
            "id": wamid,
            "status": word,
            "timestamp": str(int(world.now())),
            "recipient_id": to,
            "pricing": {"billable": True, "pricing_model": "PMP", "category": "service"},
        }
        if mark:
            status["biz_opaque_callback_data"] = mark
        path = phone(world).statuses_path
        world.courier.send(path, envelope({"statuses": [status]}), sign)


def _unknown_caller(request: Request) -> Response | None:
    if request.headers.get("authorization") == f"Bearer {ACCESS_TOKEN}":
        return None
    return _error(401, 190, "Invalid OAuth access token")


def _error(status: int, code: int, text: str) -> Response:
    error = {
        "message": f"(#{code}) {text}",
        "type": "OAuthException",
        "code": code,
        "error_data": {"messaging_product": "whatsapp", "details": text},
        "fbtrace_id": secrets.token_urlsafe(8),
    }
    return JSONResponse({"error": error}, status)
