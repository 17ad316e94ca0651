"""QStash, pretended: publish, deduplicate, deliver with its signature, try again.

For stories about its customers; whoever needs the whole of it runs `relevo qstash`. Point a program
at it with QSTASH_TOKEN and the two keys below. A message taken in is in the ledger as ("qstash",
"publish", its deduplication id or else its own).
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
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

TOKEN = "relevo-simulator-token"  # noqa: S105 - opens nothing but the simulators
CURRENT = "sig_relevo_simulator_current_0123456789"
NEXT = "sig_relevo_simulator_next_0123456789abc"
SEEN_SECONDS = 600


def environment(base: str) -> dict[str, str]:
    """Its address only: without a token our own queue is used, which is the usual way."""
    return {"QSTASH_URL": f"{base}/qstash"}


def credentials() -> dict[str, str]:
    """What a program needs besides, to send its messages this way."""
    return {
        "QSTASH_TOKEN": TOKEN,
        "QSTASH_CURRENT_SIGNING_KEY": CURRENT,
        "QSTASH_NEXT_SIGNING_KEY": NEXT,
    }


@dataclass(slots=True)
class Account:
    """What it has taken in lately, by deduplication id, and the key it signs with."""

    seen: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    key: str = CURRENT


def account(world: World) -> Account:
    return world.room("qstash", Account)


def token(key: str, url: str, body: bytes, now: float) -> str:
    """The JWT of `Upstash-Signature`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
    claims = {
        "iss": "Upstash",
        "sub": url,
        "exp": int(now) + 300,
        "nbf": int(now),
        "iat": int(now),
        "jti": f"jwt_{secrets.token_hex(12)}",
        "body": digest,
    }
    parts = [_part({"alg": "HS256", "typ": "JWT"}), _part(claims)]
    seal = hmac.digest(key.encode(), ".".join(parts).encode(), "sha256")
    return ".".join([*parts, base64.urlsafe_b64encode(seal).rstrip(b"=").decode()])


def routes(world: World) -> list[BaseRoute]:
    @world.call("qstash", "publish")
    async def publish(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"error": "invalid token"}, 401)
        raw = request.scope["raw_path"].decode("ascii", "replace").partition("/v2/publish/")[2]
        query = request.scope["query_string"].decode("ascii", "replace")
        url = f"{raw}?{query}" if query else raw
        if not url.startswith(("http://", "https://")):
            return JSONResponse({"error": "invalid destination url"}, 400)
        here = account(world)
        known = request.headers.get("upstash-deduplication-id", "")
        earlier, until = here.seen.get(known, ("", 0.0))
        if known and until > world.now():
            return JSONResponse({"messageId": earlier, "deduplicated": True}, 202)
        id = f"msg_{secrets.token_hex(12)}"
        if known:
            here.seen[known] = (id, world.now() + SEEN_SECONDS)
        world.effect("qstash", "publish", known or id, url=url)
        body = await request.body()
        # relevo: allow RV001 the courier works beside the answer
        _send(world, id, url, body, request.headers.get("content-type", ""))
        if fault(request) == "duplicate":
            # relevo: allow RV001 the courier works beside the answer
            _send(world, id, url, body, request.headers.get("content-type", ""))
        return JSONResponse({"messageId": id}, 201)

    return [Route("/qstash/v2/publish/{destination:path}", publish, methods=["POST"])]


def _send(world: World, id: str, url: str, body: bytes, content_type: str) -> None:
    """To our own front door, whatever the host: the signature is for the URL as published."""
    tries = 0

    def sign(body: bytes) -> Mapping[str, str]:
        nonlocal tries
        tries += 1
        return {
            "content-type": content_type,
            "user-agent": "Upstash-QStash",
            "upstash-message-id": id,
            "upstash-retried": str(tries - 1),
            "upstash-signature": token(account(world).key, url, body, world.now()),
        }

    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    world.courier.send(path, body, sign)


def _part(value: dict[str, Any]) -> str:
    data = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
