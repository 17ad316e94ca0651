"""Whom subscriptions call: Doppler Relay for letters, Doppler for lists, Google for the sheet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import quote

import gspread
import requests
from google.auth.exceptions import GoogleAuthError, TransportError
from google.oauth2.service_account import Credentials
from gspread.exceptions import APIError
from gspread.http_client import HTTPClient

from relevo import (
    ErrorRow,
    Proof,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    Relevo,
    judge_client_error,
    judge_response,
)
from relevo.apps.doppler_relay import DopplerRelay
from relevo.apps.outside import Outside, Reply, as_objects, provider_error
from relevo.apps.subscriptions.settings import SubscriptionSettings

T = TypeVar("T")

GOOGLE = "https://sheets.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/spreadsheets",)
SECONDS = 25.0


class Doppler:
    """A list at Doppler."""

    def __init__(self, outside: Outside, *, key: str, account: str, list_id: str) -> None:
        self._outside = outside
        self._headers = {"authorization": f"token {key}"}
        self._path = (
            f"/accounts/{quote(account, safe='')}/lists/{quote(list_id, safe='')}/subscribers"
        )

    async def subscribe(self, email: str, name: str) -> bool:
        """Add or update; False for one who unsubscribed, whom nobody may add again."""
        first, _, last = name.partition(" ")
        fields = [{"name": "FIRSTNAME", "value": first}, {"name": "LASTNAME", "value": last}]
        body = {"email": email, "fields": [field for field in fields if field["value"]]}
        reply = await self._outside.call(
            "POST", self._path, json=body, headers=self._headers, acts=True
        )
        return _is_added(reply)


def _is_added(reply: Reply) -> bool:
    if reply.status >= 500 or reply.status == 429:
        reply.check()
    found = reply.object()
    # errorCode is only unique together with the status, and comes with a 2xx now and then.
    if found.get("errorCode") is None and not found.get("errors"):
        reply.check()
        return True
    texts = [found.get("detail"), *(each.get("detail") for each in as_objects(found.get("errors")))]
    if any("unsubscribed" in str(text).lower() for text in texts):
        return False
    raise ProviderRefused(f"{reply.who} refused: {found.get('type', '')!s:.100}")


class Login(Credentials):
    """Google's own, but for a second address it would ask about regions, which sheets have not."""

    def _is_regional_access_boundary_lookup_required(self) -> bool:
        return False


class Sheet:
    """A worksheet whose first column holds ids. Values are written as they are, never as formulas.

    Google's client blocks, so it works in a thread, one call at a time.
    """

    def __init__(self, account: Mapping[str, str], url: str, spreadsheet: str, title: str) -> None:
        self._account = dict(account)
        self._url = url.rstrip("/")
        self._spreadsheet = spreadsheet
        self._title = title
        self._sheet: gspread.Worksheet | None = None
        self._turn = asyncio.Lock()

    async def append(self, row: list[Any]) -> None:
        """Write a row at the end."""
        # INSERT_ROWS: the default looks for the end of a table and may write over what follows.
        await self._do(
            lambda sheet: sheet.append_row(
                row,
                value_input_option=gspread.utils.ValueInputOption.raw,
                insert_data_option=gspread.utils.InsertDataOption.insert_rows,
            ),
            acts=True,
        )

    async def has(self, id: str) -> bool:
        """Whether a row begins with this id."""
        return id in await self._do(lambda sheet: sheet.col_values(1), acts=False)

    async def _do(self, work: Callable[[gspread.Worksheet], T], *, acts: bool) -> T:
        try:
            async with asyncio.timeout(SECONDS * 1.5):
                try:
                    await self._turn.acquire()
                except asyncio.CancelledError:
                    # Nothing has left. Whoever waited longer than that may have been replaced.
                    acts = False
                    raise
                # A thread cannot be stopped, so the next one waits until it is really over: has()
                # must not say no while a row is still on its way.
                call = asyncio.ensure_future(asyncio.to_thread(self._work, work, acts))
                call.add_done_callback(self._done)
                return await asyncio.shield(call)
        except TimeoutError as error:
            said = "Google Sheets did not answer: time is up"
            raise (ProviderUncertain if acts else ProviderUnavailable)(said) from error

    def _work(self, work: Callable[[gspread.Worksheet], T], acts: bool) -> T:
        sheet = self._sheet = self._sheet or _told(self._open, False)
        return _told(lambda: work(sheet), acts)

    def _done(self, call: asyncio.Future[Any]) -> None:
        self._turn.release()
        if not call.cancelled():
            call.exception()  # nobody may be left to hear of it

    def _open(self) -> gspread.Worksheet:
        url = self._url

        class Client(HTTPClient):
            """gspread's own, at the address we were told."""

            def request(self, method: str, endpoint: str, *rest: Any, **options: Any) -> Any:
                return super().request(method, endpoint.replace(GOOGLE, url, 1), *rest, **options)

        made = cast("Any", Login).from_service_account_info(self._account, scopes=SCOPES)
        login = cast("Login", made)
        client = gspread.Client(auth=login, http_client=Client)
        client.set_timeout(SECONDS)
        return client.open_by_key(self._spreadsheet).worksheet(self._title)


def _of_answer(error: Any) -> Proof | None:
    """gspread's error stands for the answer in it; its own code is -1 when that is no JSON."""
    if not isinstance(error, APIError):
        return None
    return judge_response(error.response, [ErrorRow(status=429, means="wait", retry_after="60s")])


_ROWS = (
    _of_answer,
    ErrorRow(TransportError, "not_sent"),  # no token was to be had, so nothing was asked for
)


def _told(work: Callable[[], T], acts: bool) -> T:
    """What Google's client raises, in relevo's words."""
    try:
        return work()
    except gspread.WorksheetNotFound as error:
        raise ProviderRefused(f"the spreadsheet has no worksheet {error}") from error
    except APIError as error:
        said = f"Google Sheets answered {error.response.status_code}"
        raise provider_error(judge_client_error(error, _ROWS), said, acts=acts) from error
    except (
        requests.RequestException,
        gspread.exceptions.GSpreadException,
        GoogleAuthError,
        OSError,
    ) as error:
        said = f"Google Sheets did not answer: {type(error).__name__}"
        raise provider_error(judge_client_error(error, _ROWS), said, acts=acts) from error


@dataclass(frozen=True, slots=True)
class Gateways:
    relay: DopplerRelay
    doppler: Doppler
    sheet: Sheet


@asynccontextmanager
async def open_gateways(relevo: Relevo) -> AsyncGenerator[Gateways]:
    settings = relevo.use(SubscriptionSettings)
    async with (
        Outside("Doppler Relay", settings.relay_url) as relay,
        Outside("Doppler", settings.doppler_url) as doppler,
    ):
        yield Gateways(
            DopplerRelay(
                relay,
                key=settings.relay_key,
                account=settings.relay_account,
                sender=settings.mail_from,
                sender_name="Subscriptions",
            ),
            Doppler(
                doppler,
                key=settings.doppler_key,
                account=settings.doppler_account,
                list_id=settings.doppler_list,
            ),
            Sheet(
                settings.service_account,
                settings.sheets_url,
                settings.spreadsheet_id,
                settings.worksheet,
            ),
        )
