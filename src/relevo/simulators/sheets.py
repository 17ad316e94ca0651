"""Google Sheets, pretended: a service account's token, and rows that are added as they come."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.simulators.world import World, fault

SPREADSHEET = "1relevoSimulatedSheet"
TITLE = "Subscriptions"
TOKEN = "ya29.simulated"  # noqa: S105 - of the simulator


def environment(base: str) -> dict[str, str]:
    account = {
        "type": "service_account",
        "project_id": "relevo-simulated",
        "private_key_id": "1",
        "private_key": _private_key(),
        "client_email": "relevo@simulated.example",
        "client_id": "1",
        "token_uri": f"{base}/google/token",
    }
    return {
        "GOOGLE_SHEETS_URL": f"{base}/google",
        "GOOGLE_SERVICE_ACCOUNT": json.dumps(account),
        "SPREADSHEET_ID": SPREADSHEET,
    }


def routes(world: World) -> list[BaseRoute]:
    async def token(request: Request) -> Response:
        form = await request.body()
        if b"jwt-bearer" not in form or b"assertion=" not in form:
            return JSONResponse({"error": "invalid_grant"}, 400)
        answer = {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"}
        return JSONResponse(answer)

    @world.call("sheets", "open")
    async def opened(request: Request) -> Response:
        if refused := _refused(request):
            return refused
        grid = {"rowCount": 1000, "columnCount": 26}
        properties = {
            "sheetId": 0,
            "title": TITLE,
            "index": 0,
            "sheetType": "GRID",
            "gridProperties": grid,
        }
        answer = {
            "spreadsheetId": SPREADSHEET,
            "properties": {"title": "Subscriptions"},
            "sheets": [{"properties": properties}],
        }
        return JSONResponse(answer)

    @world.call("sheets", "append")
    async def append(request: Request) -> Response:
        if refused := _refused(request):
            return refused
        if request.query_params.get("valueInputOption") != "RAW":
            return _error(400, "INVALID_ARGUMENT", "values must be written as they are: RAW")
        rows: list[list[Any]] = world.room("sheets", list[list[Any]])
        added: list[list[Any]] = (await request.json())["values"]
        for row in added:
            rows.append(row)
            world.effect("sheets", "append", str(row[0]), row=row)
        where = f"'{TITLE}'!A{len(rows)}:G{len(rows)}"
        updates = {
            "spreadsheetId": SPREADSHEET,
            "updatedRange": where,
            "updatedRows": len(added),
            "updatedColumns": 7,
            "updatedCells": 7 * len(added),
        }
        return JSONResponse({"spreadsheetId": SPREADSHEET, "updates": updates})

    @world.call("sheets", "read")
    async def read(request: Request) -> Response:
        if refused := _refused(request):
            return refused
        rows: list[list[Any]] = world.room("sheets", list[list[Any]])
        asked = request.path_params["range"]
        by_column = request.query_params.get("majorDimension") == "COLUMNS"
        answer: dict[str, Any] = {"range": asked, "majorDimension": "ROWS"}
        if rows:  # of an empty sheet Google leaves them out
            answer["values"] = [[row[0] for row in rows]] if by_column else rows
        return JSONResponse(answer)

    prefix = f"/google/v4/spreadsheets/{SPREADSHEET}"
    return [
        Route("/google/token", token, methods=["POST"]),
        Route(prefix, opened),
        Route(prefix + "/values/{range}:append", append, methods=["POST"]),
        Route(prefix + "/values/{range}", read),
    ]


def _refused(request: Request) -> Response | None:
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        return _error(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
    if fault(request) == "refuse":
        return _error(403, "PERMISSION_DENIED", "The caller does not have permission")
    return None


def _error(code: int, status: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "status": status}}, code)


@cache
def _private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
