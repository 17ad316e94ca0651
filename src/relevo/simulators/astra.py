"""Astra DB's Data API: one JSON command a POST, failures told with HTTP 200.

An insert is conditional: an `_id` that exists is refused, atomically. `astra(world)` is its memory;
what is put into its `rivals` changes the next document that is updated, as another process does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from relevo.ids import new_id
from relevo.simulators.world import World, fault

PREFIX = "/astra"
TOKEN = "AstraCS:of-the-simulator"  # noqa: S105 - it guards nothing
PAGE, SORTED, SORTABLE = 50, 100, 10_000

Document: TypeAlias = dict[str, Any]
_MISSING: Any = object()


def environment(base: str) -> dict[str, str]:
    return {
        "ASTRA_DB_API_ENDPOINT": base + PREFIX,
        "ASTRA_DB_APPLICATION_TOKEN": TOKEN,
        "ASTRA_DB_KEYSPACE": "default_keyspace",
        "ASTRA_DB_ENVIRONMENT": "other",
    }


class Refusal(Exception):
    """A command that fails, in the Data API's words."""

    def __init__(self, code: str, title: str, *, family: str = "REQUEST", **status: Any) -> None:
        super().__init__(title)
        self.status = status
        self.told = {
            "family": family,
            "scope": "DOCUMENT" if "DOCUMENT" in code else "",
            "errorCode": code,
            "id": new_id(),
            "title": title,
            "message": title,
        }


class Astra:
    """The collections of every keyspace."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.collections: dict[tuple[str, str], dict[Any, Document]] = {}
        self.options: dict[tuple[str, str], Any] = {}
        self.rivals: list[Callable[[Document], None]] = []

    def documents(self, name: str, keyspace: str = "default_keyspace") -> list[Document]:
        return list(self.collections.get((keyspace, name), {}).values())

    # of a keyspace

    def create_collection(self, keyspace: str, told: Document) -> Document:
        place = (keyspace, str(told["name"]))
        options = told.get("options", {})
        if self.options.setdefault(place, options) != options:
            raise Refusal("EXISTING_COLLECTION_DIFFERENT_SETTINGS", "It exists, and differs")
        self.collections.setdefault(place, {})
        return {"status": {"ok": 1}}

    def find_collections(self, keyspace: str, told: Document) -> Document:
        there = [name for space, name in self.collections if space == keyspace]
        if told.get("options", {}).get("explain"):
            listed: list[Any] = [
                {"name": name, "options": self.options[keyspace, name]} for name in there
            ]
            return {"status": {"collections": listed}}
        return {"status": {"collections": there}}

    def delete_collection(self, keyspace: str, told: Document) -> Document:
        self.collections.pop((keyspace, str(told["name"])), None)
        self.options.pop((keyspace, str(told["name"])), None)
        return {"status": {"ok": 1}}

    # of a collection

    def insert_one(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        document = copy.deepcopy(told["document"])
        id = document.setdefault("_id", new_id())
        if not isinstance(id, str | int | float | bool):
            raise Refusal("SHREDDER_BAD_DOCUMENT_ID_TYPE", "Bad type for '_id'", insertedIds=[])
        if id in kept:
            title = "Document the given _id already exists"
            raise Refusal("DOCUMENT_ALREADY_EXISTS", title, insertedIds=[])
        kept[id] = document
        self._world.effect("astra", f"insert:{name}", str(id))
        return {"status": {"insertedIds": [id]}}

    def find_one(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        found = _found(kept, told)
        return {"data": {"document": _projected(found[0], told) if found else None}}

    def find(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        options = told.get("options", {})
        found = _found(kept, told)
        if told.get("sort") and len(found) > SORTABLE:
            raise Refusal("OVERLOADED_SORT_ROW_LIMIT", "Sort aborted: too many documents")
        start = int(options.get("pageState") or 0) + int(options.get("skip", 0))
        limit = int(options.get("limit") or len(found))
        most = min(SORTED if told.get("sort") else PAGE, limit)
        page = found[start : start + most]
        has_more = not told.get("sort") and start + most < len(found) and most < limit
        listed = [_projected(each, told) for each in page]
        state = str(start + most) if has_more else None
        return {"data": {"documents": listed, "nextPageState": state}}

    def count_documents(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        count = len(_found(kept, told))
        more = {"moreData": True} if count > 1000 else {}
        return {"status": {"count": min(count, 1000), **more}}

    def estimated_document_count(
        self, kept: dict[Any, Document], told: Document, name: str
    ) -> Document:
        return {"status": {"count": len(kept)}}

    def update_one(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        found = _found(kept, told)
        if found:
            if self.rivals:
                # Another writer comes between look and write. The server looks again, by the filter
                # and the id, and has counted the match of its first look all the same.
                self.rivals.pop()(found[0])
                if not _fits(found[0], told.get("filter") or {}):
                    return {"status": {"matchedCount": 1, "modifiedCount": 0}}
            before = copy.deepcopy(found[0])
            _change(found[0], told["update"], is_new=False)
            changed = int(found[0] != before)
            return {"status": {"matchedCount": 1, "modifiedCount": changed}}
        status: Document = {"matchedCount": 0, "modifiedCount": 0}
        if told.get("options", {}).get("upsert"):
            equal = {
                key: value for key, value in told.get("filter", {}).items() if _is_value(value)
            }
            document: Document = {"_id": new_id(), **equal}
            _change(document, told["update"], is_new=True)
            kept[document["_id"]] = document
            status["upsertedId"] = document["_id"]
        return {"status": status}

    def find_one_and_update(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        found = _found(kept, told)
        before = copy.deepcopy(found[0]) if found else None
        status = self.update_one(kept, told, name)["status"]
        is_after = told.get("options", {}).get("returnDocument") == "after"
        id = before["_id"] if before else status.get("upsertedId")
        return {"data": {"document": kept.get(id) if is_after else before}, "status": status}

    def delete_one(self, kept: dict[Any, Document], told: Document, name: str) -> Document:
        found = _found(kept, told)[:1]
        for each in found:
            del kept[each["_id"]]
        return {"status": {"deletedCount": len(found)}}


OF_KEYSPACE = {
    "createCollection": "create_collection",
    "findCollections": "find_collections",
    "deleteCollection": "delete_collection",
}
OF_COLLECTION = {
    "insertOne": "insert_one",
    "findOne": "find_one",
    "find": "find",
    "countDocuments": "count_documents",
    "estimatedDocumentCount": "estimated_document_count",
    "updateOne": "update_one",
    "findOneAndUpdate": "find_one_and_update",
    "deleteOne": "delete_one",
}


def astra(world: World) -> Astra:
    """The database of a world."""
    return world.room("astra", lambda: Astra(world))


def routes(world: World) -> list[BaseRoute]:
    def handler(command: str) -> Callable[[Request], Any]:
        @world.call("astra", command)
        async def answer(request: Request) -> Response:
            told = (await request.json())[command]
            try:
                if fault(request) == "refuse":
                    raise Refusal("SERVER_INTERNAL_ERROR", "Something broke", family="SERVER")
                return JSONResponse(_carried_out(astra(world), command, request, told))
            except Refusal as refusal:
                return JSONResponse({"status": refusal.status, "errors": [refusal.told]})

        return answer

    handlers = {name: handler(name) for name in (*OF_KEYSPACE, *OF_COLLECTION)}

    async def command(request: Request) -> Response:
        if request.headers.get("token") != TOKEN:
            told = Refusal("UNAUTHENTICATED_REQUEST", "The token is missing or wrong").told
            return JSONResponse({"errors": [told]}, 401)
        body = await request.json()
        if not isinstance(body, dict) or len(cast("Document", body)) != 1:
            told = Refusal("INVALID_REQUEST", "One command, please").told
            return JSONResponse({"errors": [told]})
        [name] = cast("Document", body)
        if name not in handlers:
            told = Refusal("COMMAND_UNKNOWN", f"No command {name}").told
            return JSONResponse({"errors": [told]})
        return await handlers[name](request)

    return [
        Route(f"{PREFIX}/v1/{{keyspace}}", command, methods=["POST"]),
        Route(f"{PREFIX}/v1/{{keyspace}}/{{collection}}", command, methods=["POST"]),
    ]


def _carried_out(database: Astra, command: str, request: Request, told: Document) -> Document:
    keyspace = request.path_params["keyspace"]
    if command in OF_KEYSPACE:
        return getattr(database, OF_KEYSPACE[command])(keyspace, told)
    name = request.path_params["collection"]
    kept = database.collections.get((keyspace, name))
    if kept is None:
        raise Refusal("UNKNOWN_COLLECTION_OR_TABLE", f"No collection {name}")
    return getattr(database, OF_COLLECTION[command])(kept, told, name)


def _found(kept: dict[Any, Document], told: Document) -> list[Document]:
    where: Document = told.get("filter") or {}
    found = [each for each in kept.values() if _fits(each, where)]
    sort: dict[str, int] = told.get("sort") or {}
    for name, direction in reversed(sort.items()):
        found.sort(key=lambda each: _order(each.get(name)), reverse=direction == -1)
    return found


def _order(value: Any) -> tuple[int, Any]:
    return (0, 0) if value is None else (1, value) if isinstance(value, int | float) else (2, value)


def _is_value(value: Any) -> bool:
    return not (isinstance(value, dict) and any(str(key).startswith("$") for key in _keys(value)))


def _keys(value: Any) -> list[Any]:
    return list(cast("Document", value))


def _fits(document: Document, where: Document) -> bool:
    for name, wanted in where.items():
        if name in ("$and", "$or"):
            fits = [_fits(document, each) for each in wanted]
            if not (all(fits) if name == "$and" else any(fits)):
                return False
        elif _is_value(wanted):
            if document.get(name, _MISSING) != wanted:
                return False
        elif not all(_holds(document.get(name, _MISSING), op, than) for op, than in wanted.items()):
            return False
    return True


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


def _holds(value: Any, operator: str, than: Any) -> bool:
    if operator in _COMPARE:
        is_alike = isinstance(value, str) == isinstance(than, str)
        return value is not _MISSING and is_alike and _COMPARE[operator](value, than)
    match operator:
        case "$eq":
            return value == than
        case "$ne":
            return value != than
        case "$in":
            return value in than
        case "$nin":
            return value not in than
        case "$exists":
            return (value is not _MISSING) is than
        case _:
            raise Refusal("FILTER_UNSUPPORTED_OPERATOR", f"Filter operator {operator}")


def _change(document: Document, update: Document, *, is_new: bool) -> None:
    for operator, fields in update.items():
        for name, value in fields.items():
            match operator:
                case "$set":
                    *path, last = name.split(".")
                    place = document
                    for part in path:
                        place = place.setdefault(part, {})
                    place[last] = value
                case "$setOnInsert":
                    if is_new:
                        document[name] = value
                case "$unset":
                    document.pop(name, None)
                case "$inc":
                    document[name] = document.get(name, 0) + value
                case "$max":
                    document[name] = max(document.get(name, value), value)
                case "$min":
                    document[name] = min(document.get(name, value), value)
                case "$push":
                    document.setdefault(name, []).append(value)
                case _:
                    raise Refusal("UNSUPPORTED_UPDATE_OPERATION", f"Update operator {operator}")


def _projected(document: Document, told: Document) -> Document:
    wanted: dict[str, Any] = told.get("projection") or {}
    if not any(wanted.values()):
        return document
    return {name: value for name, value in document.items() if name == "_id" or wanted.get(name)}
