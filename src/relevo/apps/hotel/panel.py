"""The panel: conversations with a box to answer in, reservations, events, bots, dead lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import NotFoundError, PayloadError, Relevo, State, StoreError
from relevo.apps.hotel.board import Pulse
from relevo.apps.hotel.hotel import Hotel
from relevo.apps.hotel.queues import REPLIES, ReplyToGuest
from relevo.apps.hotel.reading import CONTENT_MAX, ENTRY_MAX, Unfit, edited
from relevo.apps.hotel.words import REFUSALS, SPANISH
from relevo.bridges.redis_list import Buried, NotAList
from relevo.ids import new_id, parse_id
from relevo.store import Audit, Filter
from relevo.web import Room, form, go, needs, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)

DEAD = 50
UNSENT = frozenset(State) - {State.DONE, State.CANCELLED}
LOOKED = 200  # unsent answers of all hotels that are looked through for a conversation's
SHOWN = 2_000  # characters of a dead entry


class Bot(NamedTuple):
    """One hotel's bot as people see it."""

    hotel: str
    pulse: Pulse
    is_enabled: bool
    waiting: int
    processing: int
    dead: int
    problem: str = ""

    @property
    def state(self) -> str:
        if self.problem:
            return "failed"
        if self.pulse.value is None:
            return "silent"
        return "alive" if self.is_enabled else "paused"


async def bots(hotel: Hotel) -> list[Bot]:
    """Every bot: alive or silent, and what waits for it."""
    found: list[Bot] = []
    for id in hotel.settings.hotels:
        try:
            pulse = await hotel.board.pulse(id)
            is_on = await hotel.board.is_enabled(id, hotel.settings.is_enabled)
            found.append(Bot(id, pulse, is_on, *await hotel.board.queue(id).lengths()))
        except (StoreError, NotAList) as error:
            found.append(Bot(id, Pulse(None, None), True, 0, 0, 0, str(error)))
    return found


class _Reply(msgspec.Struct):
    """What is read of a stored ReplyToGuest, of whichever version."""

    hotel_id: str = ""
    conversation_id: str = ""
    content: str = ""
    author: str = ""

    @property
    def place(self) -> tuple[str, str]:
        return self.hotel_id, self.conversation_id


_reply = msgspec.json.Decoder(_Reply).decode


class Unsent(NamedTuple):
    """An answer on its way to a guest, or one that failed."""

    id: str  # of its job
    state: State
    reply: _Reply


class Panel:
    """The pages; one for each question."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo

    @property
    def hotel(self) -> Hotel:
        return self._relevo.use(Hotel)

    def routes(self) -> list[Route]:
        talk = "/hotel/conversations/{hotel}/{id:path}"
        return [
            Route("/hotel", self.overview),
            Route("/hotel/reservations", self.reservations),
            Route("/hotel/events", self.events),
            Route("/hotel/conversations", self.conversations),
            Route(talk, self.conversation),
            Route("/hotel/dead/{hotel}", self.dead),
            Route("/hotel/dead/{hotel}/{id}", needs("admin")(self.dead_entry)),
            Route("/hotel/reply", needs("operator")(self.reply), methods=["POST"]),
            Route("/hotel/mode", needs("operator")(self.mode), methods=["POST"]),
            Route("/hotel/bots", needs("operator")(self.enable), methods=["POST"]),
            Route("/hotel/dead", needs("operator")(self.resolve), methods=["POST"]),
        ]

    # looking

    async def overview(self, request: Request) -> Response:
        records = self.hotel.records
        kinds = ("reservations", "cm_events", "conversations", "messages", "guests")
        return self._page(
            request,
            "overview.html",
            bots=await bots(self.hotel),
            counts={kind: await records.count(kind) for kind in kinds},
            conversations=await records.conversations(self._wanted(request), 10),
        )

    async def reservations(self, request: Request) -> Response:
        rows = await self.hotel.records.reservations(self._wanted(request), 100)
        return self._page(request, "reservations.html", rows=rows)

    async def events(self, request: Request) -> Response:
        rows = await self.hotel.records.events(self._wanted(request), 100)
        return self._page(request, "events.html", rows=rows)

    async def conversations(self, request: Request) -> Response:
        rows = await self.hotel.records.conversations(self._wanted(request), 100)
        return self._page(request, "conversations.html", rows=rows)

    async def conversation(self, request: Request) -> Response:
        hotel, id = self._ours(request.path_params["hotel"]), request.path_params["id"]
        talk = await self.hotel.records.conversation(hotel, id)
        if talk is None:
            raise NotFoundError("There is no such conversation.")
        messages = await self.hotel.records.messages(hotel, id)
        can_answer = self.hotel.way(hotel, talk.via) is not None
        return self._page(
            request,
            "conversation.html",
            talk=talk,
            messages=messages,
            unsent=await self._unsent(hotel, id),
            can_answer=can_answer,
            token=new_id(),
            is_list=False,
        )

    async def _unsent(self, hotel: str, id: str) -> list[Unsent]:
        """The answers of a conversation that have not reached the guest, the oldest first."""
        where = Filter(queue=REPLIES, states=UNSENT)
        page = await self._relevo.store.page(where, limit=LOOKED)
        found = [Unsent(job.id, job.state, _reply(job.payload)) for job in page.jobs[::-1]]
        return [each for each in found if each.reply.place == (hotel, id)]

    async def dead(self, request: Request) -> Response:
        hotel = self._ours(request.path_params["hotel"])
        buried = await self.hotel.board.queue(hotel).buried(DEAD)
        _, _, count = await self.hotel.board.queue(hotel).lengths()
        shown = [(each, each.entry[:SHOWN].decode("utf-8", "replace")) for each in buried]
        values: dict[str, Any] = {"dead_of": hotel, "dead_count": count, "is_list": False}
        return self._page(request, "dead.html", buried=shown, **values)

    async def dead_entry(self, request: Request) -> Response:
        hotel, id = self._ours(request.path_params["hotel"]), request.path_params["id"]
        buried = await self.hotel.board.queue(hotel).find(id)
        if buried is None:
            raise NotFoundError("There is no such entry any more.")
        return self._edit_page(request, hotel, buried)

    def _edit_page(
        self, request: Request, hotel: str, buried: Buried, typed: str = "", problem: str = ""
    ) -> Response:
        try:
            text = typed or buried.entry.decode()
        except UnicodeDecodeError:
            text = None
        values: dict[str, Any] = {
            "buried": buried,
            "text": None if len(buried.entry) > ENTRY_MAX else text,
            "dead_of": hotel,
            "problem": problem,
            "is_list": False,
            "status": 422 if problem else 200,
        }
        return self._page(request, "dead_entry.html", **values)

    # doing

    async def reply(self, request: Request) -> Response:
        """Answer a guest by hand; the form's token makes a double click one answer."""
        filled = await form(request)
        hotel, id = self._ours(filled["hotel"]), filled["conversation"]
        text, token = filled["text"].strip(), parse_id(filled["token"])
        talk = await self.hotel.records.conversation(hotel, id)
        via = None if talk is None else self.hotel.way(hotel, talk.via)
        if talk is None or via is None:
            raise NotFoundError("There is no such conversation, or no way to answer in it.")
        if not 0 < len(text) <= CONTENT_MAX or token is None:
            raise PayloadError(f"An answer has 1 to {CONTENT_MAX:,} characters.")
        person = request.state.person.name
        order = ReplyToGuest(
            hotel_id=hotel,
            channel=talk.channel,
            conversation_id=id,
            guest_id=talk.guest_id,
            reference=f"panel:{hotel}:{token}",
            content=text,
            via=via,
            booking_id=talk.booking_id,
            author=person,
            asked_at=talk.last_at,
        )
        receipt = await self._relevo.enqueue(order)
        if receipt.is_new:
            await self._write_down(request, "guest answered", receipt.id, f"{hotel}:{id}")
        return self._back(request, self._place(hotel, id), "The answer is on its way.")

    async def mode(self, request: Request) -> Response:
        filled = await form(request)
        hotel, id, mode = self._ours(filled["hotel"]), filled["conversation"], filled["mode"]
        if mode not in ("manual", "automatic"):
            raise PayloadError("A conversation is answered in manual or automatic mode.")
        if not await self.hotel.records.set_mode(hotel, id, mode):
            raise NotFoundError("There is no such conversation.")
        await self._write_down(request, "mode set", f"{hotel}:{id}", mode)
        return self._back(request, self._place(hotel, id), "Saved.")

    async def enable(self, request: Request) -> Response:
        filled = await form(request)
        hotel, is_on = self._ours(filled["hotel"]), filled["enabled"] == "1"
        if filled["enabled"] not in ("0", "1"):
            raise PayloadError("A bot is enabled (1) or paused (0).")
        await self.hotel.board.enable(hotel, is_on)
        verb = "bot enabled" if is_on else "bot paused"
        await self._write_down(request, verb, hotel, "")
        return self._back(request, "/hotel", "Saved.")

    async def resolve(self, request: Request) -> Response:
        """Send a dead entry back as it is or edited, send all back, or throw one away."""
        filled = await form(request)
        hotel, id, what = self._ours(filled["hotel"]), filled["id"], filled["what"]
        queue = self.hotel.board.queue(hotel)
        match what:
            case "retry_all":
                count = await queue.revive_all()
                await self._write_down(request, "entries sent back", hotel, f"{count}")
                return self._back(request, f"/hotel/dead/{hotel}", "Done.")
            case "edit":
                return await self._edit(request, hotel, id, filled["entry"])
            case "retry":
                verb, is_done = "entry sent back", await queue.revive(id)
            case "discard":
                verb, is_done = "entry discarded", await queue.discard(id)
            case _:
                raise PayloadError("A dead entry is sent back, edited or discarded.")
        if not is_done:
            raise NotFoundError("There is no such entry any more.")
        await self._write_down(request, verb, id, hotel)
        return self._back(request, f"/hotel/dead/{hotel}", "Done.")

    async def _edit(self, request: Request, hotel: str, id: str, typed: str) -> Response:
        """Put what a person has typed in the place of a dead entry, and send that back."""
        request.state.person.acts("edit")
        queue = self.hotel.board.queue(hotel)
        if (buried := await queue.find(id)) is None:
            raise NotFoundError("There is no such entry any more.")
        now = await self._relevo.time.now()
        try:
            entry = edited(hotel, buried.entry, typed.encode(), now, whole=True)
        except Unfit as error:
            return self._edit_page(request, hotel, buried, typed, str(error))
        if not await queue.revive(id, entry):
            raise NotFoundError("There is no such entry any more.")
        await self._write_down(request, "entry edited and sent back", id, hotel)
        return self._back(request, f"/hotel/dead/{hotel}", "Done.")

    # what they share

    def _page(self, request: Request, template: str, **more: Any) -> Response:
        hotels = self.hotel.settings.hotels
        wanted = self._wanted(request)
        values: dict[str, Any] = {"is_list": True, "place": self._place, **more}
        return room.page(request, template, hotels=hotels, wanted=wanted, **values)

    def _wanted(self, request: Request) -> str | None:
        """The one hotel that is asked for, if it is one of ours."""
        asked = request.query_params.get("hotel", "")
        return asked if asked in self.hotel.settings.hotels else None

    def _ours(self, hotel: str) -> str:
        if hotel not in self.hotel.settings.hotels:
            raise NotFoundError("There is no such hotel.")
        return hotel

    @staticmethod
    def _place(hotel: str, id: str) -> str:
        return f"/hotel/conversations/{hotel}/{quote(id, safe='')}"

    async def _write_down(self, request: Request, verb: str, target: str, note: str) -> None:
        who = request.state.person.name
        await self._relevo.store.audit([Audit(who=who, verb=verb, target=target, note=note)])

    @staticmethod
    def _back(request: Request, path: str, said: str) -> Response:
        return go(request, path, said=room.words(request)(said))


def build(relevo: Relevo) -> ASGIApp:
    """An ASGI app for /hotel."""
    return site(Panel(relevo).routes(), room)
