"""The hotel's documents in Astra DB, through the Data API.

There is no transaction over several documents, so the order of the writes is the promise: what may
be written twice comes first, and the insert that says "it is done" comes last. An insert of an
`_id` that exists is refused atomically; that refusal, and never a look before it, is the strong
barrier against duplicates.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx  # astrapy's own client, whose errors it lets through
import msgspec
from astrapy import AsyncDatabase, DataAPIClient
from astrapy.exceptions import (
    DataAPIException,
    DataAPIHttpException,
    DataAPIResponseException,
    TooManyDocumentsToCountException,
)
from astrapy.info import CollectionDefinition
from astrapy.utils.api_options import APIOptions, DataAPIURLOptions

from relevo import Context, ProviderRefused, ProviderUnavailable, judge_response
from relevo.apps.hotel import booking, names
from relevo.apps.hotel.queues import SaveBooking
from relevo.apps.hotel.records import (
    PAGE,
    CmEvent,
    Conversation,
    Guest,
    Message,
    Reservation,
    conversation_of,
    details_of,
    event_of,
    guest_of,
    status_of,
)
from relevo.apps.hotel.settings import Astra, Mode
from relevo.apps.outside import NOT_NOW, provider_error

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

COLLECTIONS = ("reservations", "cm_events", "messages", "conversations", "guests")
UNINDEXED = {"reservations": ["details"], "cm_events": ["changes"], "messages": ["content"]}
_EXISTS = "DOCUMENT_ALREADY_EXISTS"
_MISSING = {"UNKNOWN_COLLECTION_OR_TABLE", "COLLECTION_NOT_EXIST"}
_UNSORTED = {"OVERLOADED_SORT_ROW_LIMIT", "DATASET_TOO_BIG"}
_TRIES = 20
COUNTED = 1_000  # what Astra counts at most; beyond it the number is an estimate
BACK = (timedelta(days=90), timedelta(days=7), timedelta(hours=12))
"""How far back a list looks, one after the other, where Astra has too many documents to sort."""


class AstraRecords:
    """The collections of one keyspace."""

    def __init__(self, database: AsyncDatabase, collections: dict[str, Any], mode: Mode) -> None:
        self._database = database
        self._collections = collections
        self._mode: Mode = mode

    # writing

    @asynccontextmanager
    async def saving(self, ctx: Context) -> AsyncGenerator[AstraRecords]:
        yield self

    def within(self, tx: Any) -> None:
        return None

    async def booking(self, change: SaveBooking, now: int) -> bool:
        event = names.scoped(change.hotel_id, change.event_id)
        known = await self._one("cm_events", CmEvent, event)
        if known is not None and change.change_id in known.changes:
            return False
        status = await self._follow(change, now)
        told = event_of(change, status, now)
        if known is None and await self._insert("cm_events", told):
            return True
        # Set by its id, so that two processes that add two changes keep both.
        added: dict[str, Any] = {f"changes.{id}": each for id, each in told.changes.items()}
        where, added["receivedAt"] = {"_id": event}, now
        await self._call("cm_events", lambda each: each.update_one(where, {"$set": added}))
        return True

    async def _follow(self, change: SaveBooking, now: int) -> str:
        """Let the reservation follow a change; gives the status that the change led to."""
        id = names.scoped(change.hotel_id, change.booking_id)
        for _ in range(_TRIES):
            known = await self._one("reservations", Reservation, id)
            standing = booking.follow(
                known and booking.Standing(known.status, known.modified_at),
                change.status,
                change.modified_at,
            )
            if standing is None:
                return status_of(change, known.status if known else "")
            made = Reservation(
                id=id,
                hotel_id=change.hotel_id,
                booking_id=change.booking_id,
                status=standing.status,
                modified_at=standing.at,
                via=change.via,
                # What nobody else can have written meanwhile without our seeing it.
                updated_at=max(now, known.updated_at + 1 if known else 0),
                created_at=known.created_at if known else now,
                **details_of(known.details if known else {}, change),
            )
            if known is None:
                if await self._insert("reservations", made):
                    return made.status
            elif await self._replace(made, known):
                return made.status
        raise ProviderUnavailable(f"a reservation of {change.hotel_id} is changed by too many")

    async def _replace(self, made: Reservation, known: Reservation) -> bool:
        """Write only if no other process has written since we read.

        The server counts what matched before it lost to another writer, so that only what it
        modified says whether the document is ours; `updatedAt` makes every change one.
        """
        document = _document(made)
        where = {"_id": document.pop("_id"), "updatedAt": known.updated_at}
        done = await self._call(
            "reservations", lambda each: each.update_one(where, {"$set": document})
        )
        return done.update_info["nModified"] == 1

    async def message(self, message: Message, guest_name: str = "") -> bool:
        await self._meet(guest_of(message, guest_name))
        await self._talk(conversation_of(message, guest_name, self._mode))
        if await self._insert("messages", message):
            return True
        # Ours, if this job died after the insert: what follows it has then not happened.
        kept = await self.message_of(message.id)
        return kept is not None and kept.job == message.job

    async def _meet(self, guest: Guest) -> None:
        document = _document(guest)
        id, seen, name = document.pop("_id"), document.pop("lastSeenAt"), document.pop("name")
        change: dict[str, Any] = {"$setOnInsert": document, "$max": {"lastSeenAt": seen}}
        if name:
            change["$set"] = {"name": name}
        await self._upsert("guests", id, change)

    async def _talk(self, conversation: Conversation) -> None:
        document = _document(conversation)
        id = document.pop("_id")
        last = {name: document.pop(name) for name in ("lastText", "lastDirection", "lastAt")}
        told = {name: value for name in ("guestName", "bookingId") if (value := document.pop(name))}
        change: dict[str, Any] = {"$setOnInsert": {**document, "lastAt": 0}}
        if told:
            change["$set"] = told
        await self._upsert("conversations", id, change)
        newer = {"_id": id, "lastAt": {"$lte": last["lastAt"]}}
        await self._call("conversations", lambda each: each.update_one(newer, {"$set": last}))

    async def _upsert(self, name: str, id: str, change: dict[str, Any]) -> None:
        await self._call(name, lambda each: each.update_one({"_id": id}, change, upsert=True))

    async def _insert(self, name: str, row: msgspec.Struct) -> bool:
        document = _document(row)
        try:
            await self._call(name, lambda each: each.insert_one(document))
        except _Exists:
            return False
        return True

    # reading

    async def has_message(self, id: str) -> bool:
        found = await self._call(
            "messages", lambda each: each.find_one({"_id": id}, projection={"_id": True})
        )
        return found is not None

    async def message_of(self, id: str) -> Message | None:
        return await self._one("messages", Message, id)

    async def conversation(self, hotel: str, id: str) -> Conversation | None:
        return await self._one("conversations", Conversation, names.scoped(hotel, id))

    async def reservation(self, hotel: str, id: str) -> Reservation | None:
        return await self._one("reservations", Reservation, names.scoped(hotel, id))

    async def set_mode(self, hotel: str, id: str, mode: Mode) -> bool:
        where = {"_id": names.scoped(hotel, id)}
        change = {"$set": {"mode": mode}}
        done = await self._call("conversations", lambda each: each.update_one(where, change))
        return done.update_info["n"] == 1

    async def reservations(self, hotel: str | None, limit: int = PAGE) -> list[Reservation]:
        return await self._newest("reservations", Reservation, "updatedAt", hotel, limit)

    async def events(self, hotel: str | None, limit: int = PAGE) -> list[CmEvent]:
        return await self._newest("cm_events", CmEvent, "receivedAt", hotel, limit)

    async def conversations(self, hotel: str | None, limit: int = PAGE) -> list[Conversation]:
        return await self._newest("conversations", Conversation, "lastAt", hotel, limit)

    async def messages(self, hotel: str, conversation: str, limit: int = 200) -> list[Message]:
        where = {"hotelId": hotel, "conversationId": conversation}
        # A sorted find answers at most a hundred documents.
        found = await self._find("messages", Message, where, "timestamp", min(limit, 100))
        return found[::-1]

    async def count(self, table: str) -> int:
        try:
            return await self._call(
                table, lambda each: each.count_documents({}, upper_bound=COUNTED)
            )
        except _TooMany:
            return await self._call(table, lambda each: each.estimated_document_count())

    async def _one(self, name: str, kind: type[S], id: str) -> S | None:
        found = await self._call(name, lambda each: each.find_one({"_id": id}))
        return None if found is None else _row(found, kind)

    async def _newest(
        self, name: str, kind: type[S], by: str, hotel: str | None, limit: int
    ) -> list[S]:
        where: dict[str, Any] = {} if hotel is None else {"hotelId": hotel}
        for back in BACK:
            with suppress(_TooMany):
                return await self._find(name, kind, where, by, limit)
            # Astra sorts in memory, and refuses to sort more: the newest are looked for among few.
            since = datetime.now(UTC) - back
            where = {**where, by: {"$gt": round(since.timestamp() * 1000)}}
        return await self._find(name, kind, where, by, limit)

    async def _find(
        self, name: str, kind: type[S], where: dict[str, Any], by: str, limit: int
    ) -> list[S]:
        found = await self._call(
            name, lambda each: each.find(where, sort={by: -1}, limit=limit).to_list()
        )
        return [_row(document, kind) for document in found]

    # calling

    async def ensure(self) -> None:
        """Make the collections that are not there yet."""
        there = await _asked(self._database.list_collection_names())
        for name in COLLECTIONS:
            if name not in there:
                await self._create(name)

    async def _create(self, name: str) -> None:
        deny = {"deny": UNINDEXED[name]} if name in UNINDEXED else None
        definition = CollectionDefinition(indexing=deny)
        await _asked(self._database.create_collection(name, definition=definition))

    async def _call(self, name: str, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        collection = self._collections[name]
        try:
            return await _asked(ask(collection))
        except _Missing:
            await self._create(name)
            return await _asked(ask(collection))


class _Exists(Exception):
    """The `_id` is taken."""


class _TooMany(Exception):
    """More documents than Astra counts, or sorts."""


class _Missing(Exception):
    """There is no such collection yet."""


async def _asked(answer: Awaitable[T]) -> T:
    """What the Data API answered; HTTP says 200 also when a command failed."""
    try:
        return await answer
    except DataAPIResponseException as error:
        codes = {each.error_code for each in error.error_descriptors}
        families = {getattr(each, "family", None) for each in error.error_descriptors}
        said = f"Astra answered {', '.join(sorted(code or '?' for code in codes))}"
        if _EXISTS in codes:
            raise _Exists from error
        if codes & _UNSORTED:
            raise _TooMany from error
        if codes & _MISSING:
            raise _Missing from error
        if "SERVER" in families:
            raise ProviderUnavailable(said) from error
        raise ProviderRefused(said) from error
    except TooManyDocumentsToCountException as error:
        raise _TooMany from error
    except DataAPIHttpException as error:
        status = error.response.status_code
        said = f"Astra answered {status}"
        raise provider_error(judge_response(error.response, NOT_NOW), said, acts=False) from error
    except (DataAPIException, httpx.HTTPError, OSError, ValueError) as error:
        raise ProviderUnavailable(f"Astra does not answer: {type(error).__name__}") from error


def _document(row: msgspec.Struct) -> dict[str, Any]:
    made = msgspec.to_builtins(row)
    made["_id"] = made.pop("id")
    if "sentAt" in made:
        made["timestamp"] = datetime.fromtimestamp(made.pop("sentAt") / 1000, UTC).isoformat(
            timespec="milliseconds"
        )
    return made


def _row(document: dict[str, Any], kind: type[S]) -> S:
    made = {**document, "id": document["_id"]}
    if "timestamp" in made:
        at = datetime.fromisoformat(made["timestamp"])
        made["sentAt"] = round(at.timestamp() * 1000)
    return msgspec.convert(made, kind)


@asynccontextmanager
async def open_astra(settings: Astra, mode: Mode) -> AsyncGenerator[AstraRecords]:
    """The records of a keyspace, with their collections made."""
    parts = urlsplit(settings.endpoint)
    # A Data API may stand behind a proxy; the client itself takes only a host for an address.
    path = {"api_path": place} if (place := parts.path.strip("/")) else {}
    options = APIOptions(data_api_url_options=DataAPIURLOptions(**path))
    client = DataAPIClient(environment=settings.environment)
    database = client.get_async_database(
        f"{parts.scheme}://{parts.netloc}",
        token=settings.token,
        keyspace=settings.keyspace,
        spawn_api_options=options,
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(database)
        collections = {
            name: await stack.enter_async_context(database.get_collection(name))
            for name in COLLECTIONS
        }
        records = AstraRecords(database, collections, mode)
        await records.ensure()
        yield records
