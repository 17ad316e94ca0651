"""A store as it looks on an ordinary bad day: some of everything, in every state.

With `hostile`, every text that somebody outside may choose carries a script.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from relevo.breaker import Circuit, Turn
from relevo.events import Subscriber, Subscribers, with_subscriber
from relevo.ids import derived_id, new_id
from relevo.job import After, Ending, Failure, Lease, NewJob, State
from relevo.message import EVENTS
from relevo.outcome import behind, fingerprint
from relevo.poller import Progress
from relevo.store import (
    Arrival,
    By,
    DeliveryState,
    Effect,
    EffectState,
    Kept,
    Note,
    QueueMode,
    Store,
    Want,
    WorkerInfo,
)
from relevo.webhook import Answer

SAVE = "hotel:messages:save"
REPLY = "hotel:messages:reply"
PULL = "hotel:pollers:pull"
REPORT = "hotel:schedules:report"
BOOK = "cars:suppliers:book"
CONFIRM = "cars:mail:confirm"
READ = "expenses:receipts:read"
CHARGE = "subscriptions:billing:charge"
WELCOME = "razworks:auth:welcome-email"

SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'{{7*7}}"
ODD = "\ud800\u202e\N{PILE OF POO}"  # half a character, a change of direction, an emoji
MINUTE = 60_000


class Filled(NamedTuple):
    """What was put where, for a test to look up."""

    thread: str
    booked: str
    dead: str
    held: str
    running: str
    scheduled: str
    flow: str
    delivery: str
    event: str
    group: str
    job_group: str
    confirmation: str


async def fill(store: Store, *, hostile: bool = False) -> Filled:
    """Put some of everything into a store."""
    return await Filling(store, SCRIPT if hostile else "").fill()


class Filling:
    def __init__(self, store: Store, script: str) -> None:
        self.store = store
        self.script = f"{script}{ODD}" if script else ""

    async def fill(self) -> Filled:
        await self.workers()
        thread, booked = await self.reservation()
        group, dead = await self.dead_letters()
        held = await self.held()
        flow = await self.flow()
        await self.breakers()
        await self.recurring()
        running, scheduled = await self.others()
        await self.deliveries()
        event = await self.event()
        await self.store.set_mode([WELCOME], QueueMode.PAUSED, By("marta", self.said("deploy")))
        return Filled(
            thread=thread,
            dead=dead,
            held=held,
            running=running,
            scheduled=scheduled,
            flow=flow,
            delivery=thread,
            event=event,
            booked=booked,
            group=group,
            job_group=await self.job_group(),
            confirmation="MX-774120",
        )

    async def job_group(self) -> str:
        """A group of jobs that nobody has closed, and that has no member."""
        job = self.new(
            WELCOME, "Report", {"day": "2026-11-18"}, node=self.said("import:2026-11-18")
        )
        await self.store.insert([msgspec.structs.replace(job, after=(After(job.id, "tally"),))])
        return job.id

    async def event(self) -> str:
        """An event that is still to be given to its only subscriber."""
        new = Subscriber(
            name="mail.receipt",
            queue="mail:listeners:receipt",
            attempts=3,
            keep=MINUTE,
            where={"code": [self.mild("RES-1")]},
            registered_at=await self.store.now(),
        )
        await Subscribers(self.store).change("order.paid", with_subscriber(new))
        payload = msgspec.json.encode({"code": self.mild("RES-1")})
        [receipt] = await self.store.insert(
            [NewJob(id=new_id(), queue=EVENTS, kind="order.paid", payload=payload)]
        )
        return receipt.id

    def said(self, text: str) -> str:
        return f"{text}{self.script}"

    def mild(self, text: str) -> str:
        """The same for what travels as JSON."""
        return self.said(text).replace("\ud800", "")

    def new(self, queue: str, kind: str, payload: Any, **fields: Any) -> NewJob:
        data = self.data(payload)
        return NewJob(id=new_id(), queue=queue, kind=kind, payload=data, **fields)

    def data(self, payload: Any) -> bytes:
        # Half a character never gets into a payload: enqueue refuses it.
        return json.dumps(payload).replace("\\ud800", "").encode()

    async def job(self, queue: str, kind: str, payload: Any, **fields: Any) -> str:
        job = self.new(queue, kind, payload, **fields)
        await self.store.insert([job])
        return job.id

    async def take(self, queue: str, id: str, worker: str = "web-1-4180") -> Lease:
        for _ in range(50):
            claim = await self.store.claim([Want(queue=queue)], 1, self.said(worker), 60_000)
            for lease in claim.leases:
                if lease.id == id:
                    return lease
        raise AssertionError(f"{id} is not due")

    async def end(self, lease: Lease, state: State, **how: Any) -> None:
        assert await self.store.settle([Ending(lease=lease, state=state, **how)]) == [True]

    def failure(self, kind: str, message: str) -> Failure:
        text = self.said(message)
        trace = '  File "workers.py", line 41, in book\n    reply = await supplier.book(order)\n'
        mark = fingerprint(kind, "workers.py:book", message)
        return Failure(type=kind, message=text, trace=self.said(trace), fingerprint=mark)

    # what there is

    async def workers(self) -> None:
        everything = [SAVE, REPLY, PULL, REPORT, BOOK, CONFIRM, READ, CHARGE]
        for number, (note, running) in enumerate([("", 3), ("event loop blocked for 7 s", 1)]):
            worker = WorkerInfo(
                id=self.said(f"worker-{number + 1}-{4180 + number}"),
                host=self.said("cars-eu-1"),
                pid=4180 + number,
                queues=everything,
                concurrency=100,
                running=running,
                note=self.said(note) if note else "",
            )
            await self.store.beat(worker, 3_600_000)
        gone = WorkerInfo(
            id="worker-0-3977", host="cars-eu-1", pid=3977, queues=everything, concurrency=100,
            running=2,
        )  # fmt: skip
        await self.store.beat(gone, 1)

    async def reservation(self) -> tuple[str, str]:
        """One thread from a signed request to the mail: a retry on the way, two effects."""
        store = self.store
        event = {
            "id": "evt_3PqL8sK2",
            "type": "checkout.session.completed",
            "reservation": "R-20418",
            "email": "ana.perez@example.com",
            "note": self.said("window seat"),
        }
        thread, first = new_id(), new_id()
        book = NewJob(
            id=first,
            queue=BOOK,
            kind="BookSupplier",
            payload=json.dumps(
                {"reservation": "R-20418", "supplier": 28, "email": "ana.perez@example.com"}
            ).encode(),
            attempts=6,
            key=self.said("book:R-20418"),
            thread=thread,
            cause=thread,
        )
        kept = Kept(
            id=thread,
            endpoint="cars:/hooks/stripe",
            key=self.said("evt_3PqL8sK2"),
            path="/hooks/stripe",
            query=self.said("livemode=true"),
            headers=json.dumps(
                [["content-type", "application/json"], ["user-agent", self.mild("Stripe/1.0")]]
            ).encode(),
            body=json.dumps(event).encode(),
            answer=msgspec.msgpack.encode(Answer.json({"received": True})),
            thread=thread,
            jobs=(first,),
        )
        await store.receive([Arrival(kept, (book,))])
        await store.receive([Arrival(msgspec.structs.replace(kept, id=new_id()), (book,))])
        lease = await self.take(BOOK, first)
        trouble = self.failure("ProviderUnavailable", "supplier 28 answered 503")
        await self.end(lease, State.SCHEDULED, delay=0, failure=trouble)
        lease = await self.take(BOOK, first)
        await self.effect(
            first,
            BOOK,
            "book",
            EffectState.CONFIRMED,
            result={"confirmation": "MX-774120"},
            of=thread,
        )
        mail = await self.job(
            CONFIRM,
            "SendConfirmation",
            {"reservation": "R-20418", "to": "ana.perez@example.com"},
            thread=thread,
            cause=first,
            key="mail:R-20418",
        )
        sheet = await self.job(
            READ, "WriteLedgerRow", {"reservation": "R-20418"}, thread=thread, cause=first
        )
        await self.end(lease, State.DONE, result=b'{"confirmation":"MX-774120"}')
        lease = await self.take(CONFIRM, mail)
        await self.effect(
            mail, CONFIRM, "mail", EffectState.CONFIRMED, result="msg_01J9", of=thread
        )
        await self.end(lease, State.DONE)
        lease = await self.take(READ, sheet)
        await self.end(lease, State.DONE, result=b"1")
        return thread, first

    async def effect(
        self,
        job: str,
        queue: str,
        name: str,
        state: EffectState,
        *,
        result: Any = None,
        error: str = "",
        of: str = "",
    ) -> None:
        mine = Effect(
            job=job,
            queue=queue,
            name=self.said(name),
            key=self.said(f"{job}:{name}"),
            attempt=1,
            run="r1",
            thread=of or job,
        )
        await self.store.intend([mine])
        if state is not EffectState.INTENDED:
            data = None if result is None else json.dumps(result).encode()
            ended = msgspec.structs.replace(
                mine, state=state, result=data, error=self.said(error) if error else ""
            )
            assert await self.store.conclude([ended]) == [True]

    async def dead_letters(self) -> tuple[str, str]:
        refused = self.failure("ProviderRefused", "card_declined: insufficient funds for invoice")
        broken = self.failure("ValueError", "no amount on receipt page 2")
        charges = [
            self.new(
                CHARGE,
                "ChargeSubscription",
                {"subscription": f"sub_{number}", "phone": "+52 55 1234 5678"},
                key=self.said(f"charge:{number}"),
            )
            for number in range(7)
        ]
        receipts = [self.new(READ, "ReadReceipt", {"receipt": number}) for number in range(3)]
        await self.store.insert([*charges, *receipts])
        for queue, failure in ((CHARGE, refused), (READ, broken)):
            claim = await self.store.claim([Want(queue=queue)], 10, self.said("web-1"), 60_000)
            await self.store.settle(
                [Ending(lease=lease, state=State.DEAD, failure=failure) for lease in claim.leases]
            )
        last = charges[-1].id
        return refused.fingerprint, last

    async def held(self) -> str:
        id = await self.job(
            BOOK, "BookSupplier", {"reservation": "R-20431", "supplier": 7}, key="book:R-20431"
        )
        lease = await self.take(BOOK, id)
        await self.effect(
            id, BOOK, "book", EffectState.UNKNOWN, error="the connection was cut after sending"
        )
        lost = self.failure("ProviderUncertain", "no answer within 30 s; it may have been booked")
        await self.end(lease, State.HELD, failure=lost)
        return id

    async def flow(self) -> str:
        """An order of six pages read side by side, two of them dead, one sum, one mail."""
        flow = new_id()
        names = ["fetch", *(f"page-{number}" for number in range(1, 7)), "vat", "sum", "mail"]
        ids = {name: derived_id(int(flow[:12], 16), f"{flow}/{name}") for name in names}
        after: dict[str, tuple[After, ...]] = {
            **{f"page-{number}": (After(ids["fetch"]),) for number in range(1, 7)},
            "vat": (After(ids["fetch"]),),
            "sum": (
                *(After(ids[f"page-{number}"]) for number in range(1, 7)),
                After(ids["vat"], "continue"),
            ),
            "mail": (After(ids["sum"]),),
        }
        kinds = {"fetch": "FetchReceipt", "vat": "CheckVat", "sum": "AddUp", "mail": "SendReport"}
        await self.store.insert(
            [
                NewJob(
                    id=ids[name],
                    queue=READ if name != "mail" else CONFIRM,
                    kind=kinds.get(name, "ReadPage"),
                    payload=self.data({"node": self.said(name)}),
                    flow=flow,
                    node=self.said(name),
                    bundle=flow,
                    thread=ids["fetch"],
                    after=after.get(name, ()),
                )
                for name in names
            ]
        )
        note = Note(kind="flow", name=self.said("expenses/2026-11"), value=flow.encode())
        await self.store.remember([note])
        await self.end(await self.take(READ, ids["fetch"]), State.DONE)
        claim = await self.store.claim([Want(queue=READ)], 50, "worker-1-4180", 3_600_000)
        leases = {lease.id: lease for lease in claim.leases}
        for name in ("page-1", "page-2", "page-3"):
            await self.end(leases[ids[name]], State.DONE, result=b'{"total": 120}')
        lost = self.failure("ProviderUnavailable", "the reader answered 429")
        await self.end(leases[ids["page-4"]], State.SCHEDULED, delay=15 * MINUTE, failure=lost)
        await self.end(leases[ids["page-5"]], State.PARKED, park=behind("reader"), failure=lost)
        await self.end(leases[ids["vat"]], State.DEAD, failure=lost)
        return flow

    async def breakers(self) -> None:
        now = await self.store.now()
        turns = (
            Turn(now - 40 * MINUTE, "open", "5 failures in a row: supplier 28 answered 503"),
            Turn(now - 30 * MINUTE, "half_open", "a job probes"),
            Turn(now - 29 * MINUTE, "closed", "the probe worked"),
        )
        opened = Circuit(
            state="open",
            until=now + 4 * MINUTE,
            cooldown=5 * MINUTE,
            history=(Turn(now - MINUTE, "open", self.mild("5 failures in a row: 429")),),
        )
        await self.store.remember(
            [
                Note(kind="breaker", name=name, value=msgspec.json.encode(circuit))
                for name, circuit in (
                    ("reader", opened),
                    ("supplier:28", Circuit(history=turns)),
                    *([(self.said("s/"), opened)] if self.script else []),
                )
            ]
        )

    async def recurring(self) -> None:
        now = await self.store.now()
        good = Progress(cursor={"since": "2026-11-15T23:58:00Z"}, last_at=now - 9_000)
        bad = Progress(
            failures=3, error=self.mild("ProviderUnavailable: 502"), last_at=now - 90_000
        )
        for name, progress in (("hotel:hotel999", good), (self.said("hotel:hotel217"), bad)):
            id = await self.job(PULL, "poll:pull", {"key": "x"}, key=name, attempts=1_000)
            lease = await self.take(PULL, id)
            kept = msgspec.json.encode(progress)
            await self.end(lease, State.SCHEDULED, delay=6_000, spend=False, result=kept)
        id = await self.job(
            REPORT, "tick:report", {"name": "x"}, key="hotel.report", attempts=1_000
        )
        kept = msgspec.json.encode(Progress(last_at=now - 3_600_000))
        lease = await self.take(REPORT, id)
        await self.end(lease, State.SCHEDULED, delay=5 * 3_600_000, spend=False, result=kept)

    async def others(self) -> tuple[str, str]:
        done = [self.new(SAVE, "SaveMessage", {"message": number}) for number in range(30)]
        await self.store.insert(done)
        claim = await self.store.claim([Want(queue=SAVE)], 30, "worker-1-4180", 60_000)
        endings = [Ending(lease=lease, state=State.DONE) for lease in claim.leases]
        assert await self.store.settle(endings) == [True] * 30
        more = [self.new(SAVE, "SaveMessage", {"message": 100 + number}) for number in range(4)]
        more += [self.new(WELCOME, "SendWelcome", {"user": number}) for number in range(3)]
        await self.store.insert(more)
        running = await self.job(REPLY, "Reply", {"message": self.said("hello")}, key="reply:1")
        await self.take(REPLY, running, "worker-1-4180")
        scheduled = await self.job(REPLY, "Reply", {"message": "later"}, delay=45 * MINUTE)
        return running, scheduled

    async def deliveries(self) -> None:
        rejected = Kept(
            id=new_id(),
            endpoint="hotel:/api/integrations/beds24/webhooks",
            key=None,
            state=DeliveryState.REFUSED,
            reason=self.said(
                "no configured secret gives this signature; wrong secret, one of another "
                "endpoint, of another mode (test and live differ) or an older one; or the body was "
                "changed in a way that cannot be guessed"
            ),
            path="/api/integrations/beds24/webhooks",
            body=json.dumps({"text": self.said("hi")}).encode(),
            status=401,
        )
        await self.store.receive([Arrival(rejected)])
        for number in range(4):
            job = NewJob(
                id=new_id(), queue=SAVE, kind="SaveMessage", payload=b'{"message":7}', attempts=3
            )
            kept = Kept(
                id=new_id(),
                endpoint="hotel:/hooks/channel",
                key=f"msg-{number}",
                path="/hooks/channel",
                body=b'{"message": 7}',
                thread=job.id,
                jobs=(job.id,),
            )
            await self.store.receive([Arrival(kept, (job,))])
