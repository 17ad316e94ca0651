"""Source for the tests of `relevo check`: for every rule, what is bad and what is good.

In a bad snippet each line that must be reported, and no other, ends with `# <-`.
"""

from __future__ import annotations

BAD: dict[str, list[str]] = {}
GOOD: dict[str, list[str]] = {}

# RV000: a file that cannot be read

BAD["RV000"] = ["def broken(:  # <-\n    pass\n", "x = 1\ny = 2 +  # <-\n"]
GOOD["RV000"] = ["", "# -*- coding: latin-1 -*-\nx = 'plain'\n"]

# RV001: slow work in a handler

BAD["RV001"] = [
    """
import httpx
from fastapi import APIRouter

router = APIRouter()

@router.post("/orders")
async def create(order: dict):
    async with httpx.AsyncClient() as client:
        await client.post("/notify", json=order)  # <-
""",
    """
from relevo import App
from shop.mail import send_email

app = App("shop")

@app.webhook("/hooks/stripe", verify=None)
async def stripe_hook(delivery, tx):
    await send_email(delivery.json["email"])  # <-
""",
    """
import asyncio
import time

@app.get("/slow")
async def slow():
    await asyncio.sleep(5)  # <-

@app.delete("/slower")
def slower():
    time.sleep(5)  # <-
""",
    """
from openai import AsyncOpenAI

client = AsyncOpenAI()

@api.put("/summaries/{id}")
async def summarise(id: str):
    answer = await client.chat.completions.create(model="m", messages=[])  # <-
    return answer.choices[0].message.content
""",
    """
from starlette.routing import Route
from weasyprint import HTML

async def invoice(request):
    pdf = HTML(string="<p>").write_pdf()  # <-
    return pdf

async def other(request):
    return await gateway.book(request)  # <-

routes = [Route("/invoice", invoice), Route("/other", endpoint=other)]
""",
    """
from starlette.endpoints import HTTPEndpoint
import aiohttp

class Orders(HTTPEndpoint):
    async def post(self, request):
        async with aiohttp.ClientSession() as session:
            async with session.get("x") as answer:  # <-
                return await answer.json()
""",
    """
import requests

@app.patch("/a")
def handler():
    return fetch()  # <-

def fetch():
    return again()

def again():
    return deeper() or fetch()

def deeper():
    return requests.get("x").headers.get("y")
""",
    """
import httpx

class Mailer:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def send(self, text):
        return await self._post(text)

    async def _post(self, text):
        return await self.client.post("x", json=text)

mailer = Mailer(httpx.AsyncClient())

@app.post("/m")
async def handler(text: str):
    await mailer.send(text)  # <-
""",
    """
import asyncio
import smtplib
import requests

@app.post("/threads")
async def handler(text: str):
    await asyncio.to_thread(requests.post, "x")  # <-
    await asyncio.gather(*(deliver(each) for each in text))  # <-
    asyncio.create_task(deliver(text))  # <-

async def deliver(text):
    with smtplib.SMTP("localhost") as server:
        server.send_message(text)
""",
    """
from fastapi import Depends
import httpx

async def user(token: str):
    return httpx.get("https://login.example/me")

@app.get("/me")
async def me(who=Depends(user)):  # <-
    return who
""",
    """
import stripe

@app.webhook("/hooks/stripe")
async def hook(delivery, ctx):
    event = stripe.Webhook.construct_event(delivery.body, "", "")
    await stripe.PaymentIntent.capture_async(event.id)  # <-
    await ctx.once("x", lambda key: None)  # <-
""",
    """
import subprocess

@app.post("/whatever")
async def handler(mailer):
    await mailer.send("x")  # <-
    await send_whatsapp_message("x")  # <-
    await sendEmail("x")  # <-
    await ask_llm("x")  # <-
    await payment_gateway.charge(1)  # <-

def create_app():
    @app.get("/inside")
    async def inner():
        subprocess.run(["wkhtmltopdf"])  # <-
""",
    """
def build_pdf(order):
    return b""

@app.get("/pdf")
def handler(order: int):
    return build_pdf(order)  # <-
""",
    """
@app.get("/x")
async def handler(http, client):
    await http.get("/y")  # <-
    await client.post("/y")  # <-
    await client.get("https://example.org")  # <-
""",
]
GOOD["RV001"] = [
    """
from relevo import Relevo
from shop.queues import SendEmail

@app.post("/orders", status_code=202)
async def create(order: dict, relevo: Relevo, session):
    session.add(order)
    await relevo.enqueue(SendEmail(order["id"]), tx=session)
    await session.commit()
""",
    """
import stripe

@app.webhook("/hooks/stripe")
async def hook(delivery, tx):
    event = stripe.Webhook.construct_event(delivery.body, "", "")
    await relevo.enqueue(Pay(event["id"]), tx=tx)
""",
    """
import httpx

async def worker_like(order):
    await httpx.AsyncClient().post("x")

@app.get("/x")
async def handler(redis, session, client):
    await redis.get("x")
    await client.get("key")
    await session.get(dict, 1)
    return {"answer": worker_like.__name__}
""",
    '''
async def send_email(relevo, to):
    """A producer: it only enqueues."""
    await relevo.enqueue(SendEmail(to))

@app.post("/x")
async def handler(relevo):
    await send_email(relevo, "a")
    await queues.send_email("a")
''',
    """
import unittest.mock as mock
import httpx
import asyncio

@mock.patch("shop.mail.send")
async def test_it(send):
    await httpx.AsyncClient().get("x")

@cache.get("x")
async def cached():
    await asyncio.sleep(1)

@app.get("/yield")
async def handler(requests: list):
    await asyncio.sleep(0)
    requests.append(1)
    requests.get(1)
""",
    """
import httpx

async def client():
    async with httpx.AsyncClient(timeout=httpx.Timeout(5)) as made:
        yield made

@app.get("/x")
async def handler(made=Depends(client)):
    return isinstance(made, httpx.AsyncClient)
""",
    """
def ping(n):
    return pong(n)

def pong(n):
    return ping(n)

@app.get("/circle")
def handler():
    return ping(1)
""",
]

# RV002: blocking calls where others wait

BAD["RV002"] = [
    """
import time
from relevo import Command, Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    time.sleep(1)  # <-
""",
    """
import requests
import subprocess

@app.listener
async def hear(fact: Paid, ctx) -> None:
    subprocess.run(["true"])  # <-
    pause()  # <-

def pause():
    return requests.get("x")
""",
    """
from smtplib import SMTP
import urllib.request

@app.poller("hotel:{id}")
async def poll(ctx):
    with SMTP("localhost") as server:
        server.sendmail("a", "b", "c")  # <-

@app.get("/x")
async def handler():
    urllib.request.urlopen("x")  # <-
""",
    """
import requests

async def ask(key):
    requests.get("https://api.example.com")

@app.worker
async def work(order: Ask, ctx) -> None:
    await ctx.once("ask", lambda key: ask(key))  # <-
""",
]
GOOD["RV002"] = [
    """
import openai

client = openai.OpenAI()

def ask(key):
    return client.responses.create(input="y")

@app.worker
async def work(order: Ask, ctx) -> None:
    await ctx.once("ask", lambda key: client.responses.create(input="x"))
    await ctx.once("ask-again", lambda key: ask(key))
""",
    """
import asyncio
import requests
import time
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    await asyncio.to_thread(requests.get, "x")
    await asyncio.to_thread(lambda: time.sleep(1))
    await asyncio.sleep(1)
""",
    """
import time

@app.worker
def book(order: Book) -> None:
    time.sleep(1)
""",
    """
import subprocess
import httpx

async def a_script():
    subprocess.run(["true"])

@app.worker
async def book(order: Book, ctx) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("x")
        async with client.stream("GET", "x"):
            pass
""",
]

# RV003: queue names

BAD["RV003"] = [
    """
from relevo import Command

class A(Command, queue="orders"):  # <-
    id: str

class B(Command, queue="Shop:Orders:Send"):  # <-
    id: str

class C(Command):  # <-
    id: str
""",
    """
from relevo import Command, App, listener

QUEUE = "shop:send email"

class A(Command, queue=QUEUE):  # <-
    id: str

@app.listener(queue="shop.orders.send")  # <-
async def hear(fact: Paid) -> None: ...

app = App("shop", listeners=[listener(hear, queue="a:b:c:d")])  # <-
""",
]
GOOD["RV003"] = [
    """
from relevo import Command

QUEUE = "razworks:auth:welcome-email"
OPTIONS = {"queue": "what we cannot see"}

class A(Command, queue=QUEUE):
    id: str

class B(Command, queue=f"shop:{x}:send"):
    id: str

class C(Command, **OPTIONS):
    id: str
""",
    """
from cmd import Command

class A(Command):
    id: str

@app.listener(queue="shop:orders:hear")
async def hear(fact: Paid) -> None: ...
""",
    """
from sanic import Sanic

app = Sanic("x")

@app.listener(queue="before_server_start")
async def start(app) -> None: ...
""",
]

# RV004: event names

BAD["RV004"] = [
    """
from relevo import Event

class A(Event, name="registered"):  # <-
    id: str

class B(Event, name="User.Registered"):  # <-
    id: str
""",
    """
import relevo

class A(relevo.Event, name="user.register"):  # <-
    id: str

class B(relevo.Event, name="data.feed"):  # <-
    id: str

class C(relevo.Event):  # <-
    id: str
""",
]
GOOD["RV004"] = [
    """
from relevo import Event

class A(Event, name="user.registered"):
    id: str

class B(Event, name="payment.succeeded.v2"):
    id: str

class C(Event, name="reservation.paid-in-full"):
    id: str
""",
    """
from threading import Event
from relevo import Event as Fact

class A(Event):
    id: str

class B(Fact, name="message.sent"):
    id: str
""",
]

# RV005: secrets

BAD["RV005"] = [
    """
from relevo import Command, Event

class A(Command, queue="a:b:c"):
    user_id: str
    password: str  # <-

class B(Event, name="user.registered"):
    api_key: str | None = None  # <-
""",
    """
from dataclasses import dataclass
from relevo import Command

@dataclass
class Card:
    holder: str
    cvv: str

class Pay(Command, queue="a:b:c"):
    cards: list[Card]  # <-
""",
]
GOOD["RV005"] = [
    """
from relevo import Command

class A(Command, queue="a:b:c"):
    password_reset_id: str
    has_password: bool
    secret: bool
""",
    """
class Login:
    password: str

def f(password: str) -> None:
    token: str = password
""",
]

# RV006: what cannot travel

BAD["RV006"] = [
    """
from decimal import Decimal
from typing import BinaryIO, Optional
from fastapi import UploadFile
from relevo import Command, Event

class A(Command, queue="a:b:c"):
    picture: bytes  # <-
    pictures: list[bytearray] | None  # <-
    amount: Decimal
    file: "BinaryIO"  # <-
    upload: Optional[UploadFile]  # <-
    tags: set[str]  # <-
    prices: dict[int, str]  # <-

class B(Event, name="a.done"):
    body: dict[str, bytes]  # <-
""",
    """
from dataclasses import dataclass
from relevo import Command

@dataclass
class Line:
    parent: "Line | None"
    picture: memoryview

class A(Command, queue="a:b:c"):
    lines: tuple[Line, ...]  # <-
""",
]
GOOD["RV006"] = [
    """
from datetime import datetime
from typing import Annotated, ClassVar, Literal
from relevo import Command

class A(Command, queue="a:b:c"):
    id: int
    at: datetime
    kind: Literal["bytes", "set"]
    note: Annotated[str, bytes]
    names: dict[str, list[str]]
    cache: ClassVar[set[str]] = set()
""",
    """
from relevo import Command

class Path:
    steps: list[str]

class A(Command, queue="a:b:c"):
    way: Path

class Plain:
    data: bytes
""",
]

# RV007, RV008, RV009: what a command should say of itself

_FULL = """
from relevo import Command, exponential

class A(
    Command,
    queue="a:b:c",
    attempts=3,
    backoff=exponential("1s"),
    timeout="45s",
):
    id: str
"""
_OPEN = """
from relevo import Command

OPTIONS = dict(attempts=3)

class A(Command, queue="a:b:c", **OPTIONS):
    id: str
"""
_BARE = """
from relevo import Command

class A(Command, queue="a:b:c"):  # <-
    id: str
"""
for _code, _option in (("RV007", "attempts=3"), ("RV008", "backoff=B"), ("RV009", 'timeout="5s"')):
    _others = [each for each in ("attempts=3", "backoff=B", 'timeout="5s"') if each != _option]
    BAD[_code] = [
        _BARE,
        f"""
import relevo
from relevo import Command as Order

class Base(Order, queue="a:b:c", {", ".join(_others)}):  # <-
    id: str

class A(Base, queue="a:b:d", {", ".join(_others)}):  # <-
    id: str

class B(relevo.Command, queue="a:b:e", {_option}):
    id: str
""",
    ]
    GOOD[_code] = [_FULL, _OPEN]

# RV010: effects outside once

BAD["RV010"] = [
    """
import httpx
from relevo import Context
from shop.queues import Book

async def book(order: Book, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        await client.post("x")  # <-
""",
    """
from relevo import App, Command, Context
from shop import gateways

class Book(Command, queue="a:b:c"):
    id: str

async def book(order: Book, ctx: Context) -> None:
    gateway = gateways.pick(1)
    await gateway.book(order)  # <-
    await notify(order)  # <-

async def notify(order):
    await tell(order)

async def tell(order):
    await send_email("guest")

app = App("shop", workers=[book])
""",
    """
import asyncio
import requests
import stripe

@app.worker
def charge(order: Charge) -> None:
    stripe.Charge.create(amount=1)  # <-

@app.listener
async def hear(fact: Paid, ctx) -> None:
    await asyncio.to_thread(requests.put, "x")  # <-
    requests.request("POST", "x")  # <-
""",
]
GOOD["RV010"] = [
    """
import httpx
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    code = await ctx.once("book", lambda key: gateway.book(order, key), find=gateway.find)

    async def call(key: str) -> str:
        async with httpx.AsyncClient() as client:
            return (await client.post("x")).text

    await ctx.once("mail", call)
    await helper(order, ctx)

async def helper(order, ctx):
    return await ctx.once("tell", lambda key: send_email("guest", key))
""",
    """
import httpx
import requests

@app.worker
async def look(order: Look, ctx) -> None:
    await httpx.AsyncClient().get("x")
    await gateway.find_booking(order.id)
    requests.request("GET", "x")

async def not_a_worker(order) -> None:
    await httpx.AsyncClient().post("x")
""",
    """
from relevo import Context

@app.listener
async def hear(fact: Paid, ctx: Context) -> None:
    await ctx.enqueue(SendEmail(fact.id))
    await ctx.publish(EmailAsked(fact.id))
""",
]

# RV011: once inside a transaction

BAD["RV011"] = [
    """
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await ctx.once("book", lambda key: gateway.book(order, key))  # <-
""",
    """
@app.worker
async def book(order: Book, ctx) -> None:
    async with ctx.transaction() as tx:
        tx.add(order)
        if order.id:
            await helper(ctx)  # <-

async def helper(ctx):
    return await ctx.once("book", gateway.book)
""",
]
GOOD["RV011"] = [
    """
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    code = await ctx.once("book", lambda key: gateway.book(order, key))
    async with ctx.transaction() as tx:
        tx.add(code)
""",
    """
async def test(timer, ctx):
    async with ctx.transaction():
        timer.once("tick", print)
""",
]

# RV012: calls outside while a transaction is open

BAD["RV012"] = [
    """
import httpx
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with ctx.transaction() as tx, httpx.AsyncClient() as client:
        await client.get("x")  # <-
        await gateway.find(order.id)  # <-
""",
    """
import asyncio
import requests

async def anything(session, engine, ctx):
    async with session.begin():
        await asyncio.sleep(3)  # <-
        await helper()  # <-
    async with engine.begin() as conn:
        await ctx.once("x", print)  # <-

async def helper():
    return requests.get("x")

def plain(Session):
    with Session.begin() as session:
        requests.post("x")  # <-
""",
]
GOOD["RV012"] = [
    """
import httpx

@app.worker
async def book(order: Book, ctx) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get("x")
    async with ctx.transaction() as tx:
        tx.add(answer.json())
        await ctx.enqueue(SendEmail(order.id))
""",
    """
import sentry_sdk
import httpx

async def traced(session):
    with sentry_sdk.transaction():
        await httpx.AsyncClient().get("x")
    async with session.begin():
        async def later():
            await httpx.AsyncClient().get("x")
        session.add(later)
""",
]

# RV013: enqueued outside the transaction it belongs to

BAD["RV013"] = [
    """
@app.post("/orders")
async def create(relevo, session):
    session.add(Order())
    await session.commit()
    await relevo.enqueue(SendEmail(1))  # <-
""",
    """
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        tx.add(order)
    await ctx.enqueue(SendEmail(1))  # <-
""",
    """
from sqlalchemy import insert

async def create(self, sessions):
    async with sessions() as session, session.begin():
        await session.execute(insert(Order))
    if self.is_paid:
        await self.relevo.publish(Paid(1))  # <-

async def beside(relevo, session):
    async with relevo.transaction() as tx:
        tx.add(Order())
        await relevo.enqueue(SendEmail(1))  # <-
""",
    """
async def ways(relevo, session):
    try:
        await session.commit()
    except ValueError:
        return
    for each in range(3):
        await relevo.enqueue(SendEmail(each), tx=None)  # <-
""",
]
GOOD["RV013"] = [
    """
async def create(relevo, session):
    session.add(Order())
    await relevo.enqueue(SendEmail(1), tx=session)
    await session.commit()
""",
    """
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        tx.add(order)
        await ctx.enqueue(SendEmail(1))
""",
    """
async def ways(relevo, session, repo, queue):
    if session.is_dirty:
        await session.commit()
        return
    await relevo.enqueue(SendEmail(1))
    repo.index.commit("message")
    await relevo.enqueue(SendEmail(1))
    await session.commit()
    queue.enqueue(print)

async def reads(relevo, session):
    async with session.begin():
        rows = await session.execute(select(Order))
    await relevo.enqueue(SendEmail(rows.one()))

async def joined(relevo):
    async with relevo.transaction() as tx:
        tx.add(Order())
        await relevo.enqueue(SendEmail(1), tx=tx)
""",
    """
from sqlalchemy import select, text

async def tables(relevo):
    async with relevo.transaction() as tx:
        await tx.execute(text("create table if not exists orders (id text primary key)"))
        await tx.execute("pragma optimize")
    await relevo.enqueue(SendEmail(1))

async def looks(relevo):
    async with relevo.transaction() as tx:
        question = select(Order).limit(1)
        found = await tx.execute(question)
        await tx.execute(text("SELECT id FROM orders WHERE id = :id"), {"id": 1})
    await relevo.enqueue(SendEmail(found.one()))
""",
    """
from relevo import App, Context, Intake

app = App("shop")

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with relevo.transaction() as tx:
        tx.add(order)
    await ctx.enqueue(SendEmail(1))  # the run is repeated, and orders it then
    await relevo.enqueue(SendEmail(2))

@app.webhook("/hooks/shop")
async def told(delivery, ctx: Intake) -> None:
    async with relevo.transaction() as tx:
        tx.add(delivery)
    await ctx.enqueue(SendEmail(1))  # so is the delivery
""",
]
BAD["RV013"].append(
    """
from sqlalchemy import text

async def writes(relevo):
    async with relevo.transaction() as tx:
        await tx.execute(text("with old as (select 1) insert into orders select * from old"))
    await relevo.enqueue(SendEmail(1))  # <-
"""
)

# RV014: rows that a second run makes again

BAD["RV014"] = [
    """
from relevo import Command, Context
from sqlalchemy.ext.asyncio import AsyncSession

class Save(Command, queue="a:b:c"):
    id: str

@app.worker
async def save(order: Save, ctx: Context) -> None:
    async with AsyncSession() as session:
        session.add(order)  # <-
        await session.commit()
""",
    """
from relevo import Command
from sqlalchemy import insert

class Save(Command, queue="a:b:c"):
    id: str

@app.worker
async def save(order: Save, ctx) -> None:
    async with db.begin() as tx:
        await tx.execute(insert(Row).values(id=order.id))  # <-
""",
]
GOOD["RV014"] = [
    """
from relevo import Command, Context

class Save(Command, queue="a:b:c"):
    id: str

@app.worker
async def save(order: Save, ctx: Context) -> None:
    seen: set[str] = set()
    seen.add(order.id)
    async with ctx.transaction() as tx:
        tx.add(order)
""",
    """
from relevo import Command
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy import select

class Save(Command, queue="a:b:c", key="save:{id}"):
    id: str

class Upsert(Command, queue="a:b:c"):
    id: str

@app.worker
async def save(order: Save, ctx) -> None:
    session.add(order)

@app.worker
async def upsert(order: Upsert, ctx) -> None:
    await session.execute(insert(Row).values(id=1).on_conflict_do_nothing())
    await session.execute(select(Row))
""",
]

# RV015: comments that say too little

BAD["RV015"] = [
    """
x = 1  # relevo: allow RV001
y = 1  # relevo: allow because I say so
z = 1  # relevo: allow
""",
    """
# relevo: allow RV999 no such rule
x = 1
y = 1  # relevo: allow RV015 quis custodiet
z = 1  # relevo: allow RV001,RV002 two at once
""",
]
GOOD["RV015"] = [
    """
x = 1  # relevo: allow RV001 the provider wants its answer in the response
text = "# relevo: allow"
""",
    """
# relevo: allow RV002 - a reason
# relevo: allow RV010: another reason
x = 1
""",
]

# RV016: orders that are not awaited

BAD["RV016"] = [
    """
from relevo import Command, Context

class Ship(Command, queue="a:b:c"):
    id: str

@app.worker
async def pack(order: Ship, ctx: Context) -> None:
    ctx.enqueue(Ship(order.id))  # <-
    ctx.once("mail", lambda key: mail(order.id, key))  # <-
""",
    """
from relevo import App, Intake

app = App("shop")

@app.webhook("/hooks/shop", verify=None, key=None)
async def paid(delivery, ctx: Intake):
    if delivery.json["paid"]:
        ctx.publish(Paid(delivery.json["id"]))  # <-
""",
]
BAD["RV016"].append(
    """
from relevo import Context

@app.worker
async def pack(order: Ship, ctx: Context) -> str:
    receipt = ctx.enqueue(Ship(order.id))  # <-
    other: object = ctx.publish(Packed(order.id))  # <-
    again = ctx.enqueue(Ship(order.id))  # <-
    first = ctx.enqueue(Ship(order.id)).id  # <-
    return again.id
""",
)
BAD["RV016"].append(
    """
from relevo import PlainContext, Relevo

relevo = Relevo()

@app.worker
def pack(order: Ship, ctx: PlainContext) -> None:
    ctx.enqueue(Ship(order.id))
    relevo.enqueue(Ship(order.id))  # <-
""",
)
GOOD["RV016"] = [
    """
import asyncio
from relevo import Command, Context

@app.worker
async def pack(order: Ship, ctx: Context) -> None:
    await ctx.enqueue(Ship(order.id))
    await asyncio.gather(*(ctx.enqueue(Ship(each)) for each in order.parts))
    later = ctx.enqueue(Ship("last"))
    await later
    tasks = []
    one = ctx.enqueue(Ship("one"))
    tasks.append(one)
    await asyncio.gather(*tasks)
    receipt = (await ctx.enqueue(Ship("two"))).id
""",
    """
from relevo import Context

def ordered(order: Ship, ctx: Context):
    work = ctx.enqueue(Ship(order.id))
    return work
""",
    """
from relevo import Command

@app.worker
def pack(order: Ship, ctx) -> None:
    ctx.enqueue(Ship(order.id))
    ctx.once("mail", lambda key: mail(order.id, key))
""",
]

# RV017: follow-ups that differ from run to run

BAD["RV017"] = [
    """
from datetime import UTC, datetime
from relevo import Command, Context

class Ship(Command, queue="a:b:c"):
    id: str
    at: str

@app.worker
async def pack(order: Ship, ctx: Context) -> None:
    await ctx.enqueue(Ship(order.id, at=datetime.now(UTC).isoformat()))  # <-
""",
    """
import uuid
from relevo import Command, Context

class Ship(Command, queue="a:b:c"):
    id: str

@app.worker
def pack(order: Ship, ctx: Context) -> None:
    number = str(uuid.uuid4())
    parcel = Ship(number)
    ctx.enqueue(parcel)  # <-
""",
]
GOOD["RV017"] = [
    """
from datetime import UTC, datetime, timedelta
from relevo import Command, Context

class Ship(Command, queue="a:b:c"):
    id: str

@app.worker
async def pack(order: Ship, ctx: Context) -> None:
    await ctx.enqueue(Ship(order.id), at=datetime.now(UTC) + timedelta(days=1))
""",
    """
import uuid

async def order(relevo):
    await relevo.enqueue(Ship(str(uuid.uuid4())))
""",
]

# RV018: one name for several effects

BAD["RV018"] = [
    """
from relevo import Command, Context

@app.worker
async def invite(order: Invite, ctx: Context) -> None:
    for who in order.people:
        await ctx.once("mail", lambda key: mail(who, key))  # <-
        await ctx.once(f"mail:{order.id}", lambda key: mail(who, key))  # <-
""",
    """
import asyncio

@app.worker
async def invite(order: Invite, ctx) -> None:
    await asyncio.gather(*(
        ctx.once("mail", lambda key: mail(who, key))  # <-
        for who in order.people
    ))
""",
]
GOOD["RV018"] = [
    """
from relevo import Command, Context

@app.worker
async def invite(order: Invite, ctx: Context) -> None:
    await ctx.once("invoice", lambda key: invoice(order, key))
    for number, who in enumerate(order.people):
        await ctx.once(f"mail:{who}", lambda key: mail(who, key))
        name = f"sms:{number}"
        await ctx.once(name, lambda key: sms(who, key))
""",
    """
@app.worker
async def invite(order: Invite, ctx) -> None:
    [await ctx.once(f"mail:{who}", send) for who in order.people]
""",
]

# RV019: answers whose status nothing looks at

BAD["RV019"] = [
    """
import httpx
from relevo import Command, Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        response = await client.post("https://api.example.com/bookings")  # <-
        code = response.json()["code"]
        await client.delete("https://api.example.com/carts/1")  # <-
""",
    """
import requests

def price(code):
    return requests.get(f"https://api.example.com/prices/{code}").json()["price"]  # <-
""",
]
GOOD["RV019"] = [
    """
import httpx
from relevo import Command, Context

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        await ctx.once("book", lambda key: client.post("https://api.example.com/bookings"))
        response = await client.get("https://api.example.com/bookings")
        response.raise_for_status()
        other = await client.get("https://api.example.com/bookings")
        checked(other)
""",
    """
import requests

def price(code):
    response = requests.get("https://api.example.com/prices")
    if response.status_code == 404:
        return None
    return response.json()

def answer():
    return requests.get("https://api.example.com/prices")
""",
]

# RV020: keys that do not say what they are for

BAD["RV020"] = [
    """
from relevo import Command

class Save(Command, queue="a:b:c", key="save:{id}"):  # <-
    id: str
""",
    """
from relevo import Event

class Paid(
    Event,
    name="order.paid",
    key="{id}",  # <-
):
    id: str
""",
]
GOOD["RV020"] = [
    """
from relevo import Command

class Save(Command, queue="a:b:c", key="save:{id}", unique="latest"):
    id: str
""",
    """
from relevo import Command

options = {"unique": "forever"}

class Save(Command, queue="a:b:c", key="save:{id}", **options):
    id: str

class Plain(Command, queue="a:b:d"):
    id: str
""",
]

# RV018 and RV019 as people write them

BAD["RV018"].append(
    """
import asyncio
import aiohttp
import httpx
import requests
from relevo import App, Command, Context, PlainContext

@app.worker
async def a1(order: Ship, ctx: Context) -> None:
    for item in order.items:
        await ctx.once("charge", lambda key: client.charge(item, key))  # <-

@app.worker
async def a2(order: Ship, ctx: Context) -> None:
    name = "charge"
    for item in order.items:
        await ctx.once(name, lambda key: client.charge(item, key))  # <-

@app.worker
async def a6(order: Ship, ctx: Context) -> None:
    async def one(item):
        await ctx.once("charge", lambda key: client.charge(item, key))
    for item in order.items:
        await one(item)  # <-

@app.worker
async def a8(order: Ship, ctx: Context) -> None:
    for attempt in range(3):
        try:
            await ctx.once("charge", lambda key: client.charge(order, key))  # <-
        except ValueError:
            continue

@app.worker
def a9(order: Ship, ctx: PlainContext) -> None:
    for item in order.items:
        ctx.once("charge", lambda key: client.charge(item, key))  # <-

@app.worker
def a11(order: Ship, ctx: PlainContext) -> None:
    ids = [ctx.once("charge", lambda key: client.charge(i, key)) for i in order.items]  # <-

@app.worker
async def a13(order: Ship, ctx: Context) -> None:
    await charge_each(order, ctx)

async def charge_each(order, ctx: Context):
    for item in order.items:
        await charge_one(item, ctx)  # <-

async def charge_one(item, ctx: Context):
    await ctx.once("charge", lambda key: client.charge(item, key))
""",
)
GOOD["RV018"].append(
    """
import asyncio
import aiohttp
import httpx
import requests
from relevo import App, Command, Context, PlainContext

@app.worker
async def a3(order: Ship, ctx: Context) -> None:
    for item in order.items:
        await ctx.once("charge:" + item.id, lambda key: client.charge(item, key))

@app.worker
async def a4(order: Ship, ctx: Context) -> None:
    for item in order.items:
        await ctx.once("charge:{}".format(item.id), lambda key: client.charge(item, key))

@app.worker
async def a5(order: Ship, ctx: Context) -> None:
    for item in order.items:
        await ctx.once("charge", lambda key: client.charge(item, key), of=f"{order.id}:{item}")

@app.worker
async def a7(order: Ship, ctx: Context) -> None:
    while True:
        code = await ctx.once("charge", lambda key: client.charge(order, key))
        break

@app.worker
def a10(order: Ship, ctx: PlainContext) -> None:
    for item in order.items:
        ctx.once(f"charge:{item['id']}", lambda key: client.charge(item, key))

@app.worker
async def a12(order: Ship, ctx: Context) -> None:
    for item in order.items:
        if item.first:
            await ctx.once("charge", lambda key: client.charge(item, key))
            return
""",
)
BAD["RV019"].append(
    """
import asyncio
import aiohttp
import httpx
import requests
from relevo import App, Command, Context, PlainContext

@app.worker
async def b1(order: Ship, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        async def call(key):
            response = await client.post("https://x/y", json={"key": key})  # <-
            return response.json()
        await ctx.once("b", call)

@app.worker
def b4(order: Ship, ctx: PlainContext) -> None:
    ctx.once("b", lambda key: requests.post("https://x/y").json())  # <-

@app.worker
async def b6(order: Ship, ctx: Context) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get("https://x/y") as response:  # <-
            data = await response.json()

@app.worker
def b10(order: Ship, ctx: PlainContext) -> None:
    with requests.Session() as session:
        response = session.post("https://x/y")  # <-
        data = response.json()

@app.worker
async def b14(order: Ship, ctx: Context) -> None:
    response = await asyncio.to_thread(requests.get, "https://x/y")  # <-
    data = response.json()

@app.worker
def b17(order: Ship, ctx: PlainContext) -> None:
    (response := requests.get("https://x/y"))  # <-
    print(response.json())

@app.worker
def b18(order: Ship, ctx: PlainContext) -> None:
    status = requests.get("https://x/y").status_code
    response: requests.Response = requests.get("https://x/z")  # <-
    print(response.json())

@app.worker
def b19(order: Ship, ctx: PlainContext) -> None:
    for page in range(3):
        response = requests.get("https://x/y", params={"page": page})  # <-
        for each in response.json():
            ctx.enqueue(Ship(each))

@app.worker
async def b20(order: Ship, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        one, two = await asyncio.gather(client.get("https://x/1"), client.post("y"))  # <-
        print(one.json(), checked(two))

class Gateway:
    def __init__(self):
        self.client = httpx.AsyncClient(base_url="https://x")

    async def book(self, key):
        response = await self.client.post("/book")  # <-
        return response.json()["code"]

    async def find(self, key):
        response = await self.client.get("/book")
        return checked(response)["code"]
""",
)
GOOD["RV019"].append(
    """
import asyncio
import aiohttp
import httpx
import requests
from relevo import App, Command, Context, PlainContext

@app.worker
async def b2(order: Ship, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        async def call(key):
            response = await client.post("https://x/y", json={})
            response.raise_for_status()
            return response.json()
        await ctx.once("b", call)

@app.worker
async def b3(order: Ship, ctx: Context) -> None:
    async with httpx.AsyncClient() as client:
        await ctx.once("b", lambda key: client.post("https://x/y"))

@app.worker
def b5(order: Ship, ctx: PlainContext) -> None:
    ctx.once("b", lambda key: requests.post("https://x/y", timeout=3))

@app.worker
async def b7(order: Ship, ctx: Context) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        async with session.get("https://x/y") as response:
            data = await response.json()

@app.worker
async def b8(order: Ship, ctx: Context) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get("https://x/y", raise_for_status=True) as response:
            data = await response.json()

@app.worker
async def b9(order: Ship, ctx: Context) -> None:
    client = httpx.AsyncClient()
    response = await client.get("https://x/y")
    match response.status_code:
        case 200:
            pass

@app.worker
def b11(order: Ship, ctx: PlainContext) -> None:
    response = requests.post("https://x/y")
    assert response.ok
    data = response.json()

@app.worker
def b12(order: Ship, ctx: PlainContext) -> None:
    data = requests.post("https://x/y").raise_for_status().json()

@app.worker
async def b13(order: Ship, ctx: Context) -> None:
    client = httpx.AsyncClient(event_hooks={"response": [check]})
    data = (await client.get("https://x/y")).json()

@app.worker
def b15(order: Ship, ctx: PlainContext) -> None:
    response = ctx.once("b", lambda key: requests.post("https://x/y"))
    print(response.json())

@app.worker
def b16(order: Ship, ctx: PlainContext) -> None:
    if (response := requests.get("https://x/y")).status_code == 404:
        return
    print(response.json())
""",
)


BAD["RV021"] = [
    """
import stripe

@app.worker
async def pay(order: Pay, ctx) -> None:
    await ctx.once("pay", lambda key: stripe.PaymentIntent.create(idempotency_key=key))  # <-
    await ctx.once("refund", lambda key: stripe.Refund.create(idempotency_key=key))
""",
    """
import boto3
from slack_sdk.web.async_client import AsyncWebClient

session = boto3.Session()
queue = session.client("sqs")  # <-
store = boto3.session.Session(region_name="eu-west-1").resource("s3")  # <-

@app.worker
async def tell(order: Tell, ctx) -> None:
    slack = AsyncWebClient("xoxb")  # <-
    await ctx.once("tell", lambda key: slack.chat_postMessage(channel="C1"))
""",
    """
import boto3
from openai import OpenAI

@app.worker
async def ask(order: Ask, ctx) -> None:
    client = OpenAI(api_key="x")  # <-
    await ctx.once("ask", lambda key: client.responses.create(input="x"))
    queue = boto3.client("sqs")  # <-
    await ctx.once("tell", lambda key: queue.send_message(QueueUrl="q", MessageBody="x"))
""",
]
GOOD["RV021"] = [
    """
import stripe

stripe.max_network_retries = 0

@app.worker
async def pay(order: Pay, ctx) -> None:
    event = stripe.Webhook.construct_event(payload, header, secret)
    await ctx.once("pay", lambda key: stripe.PaymentIntent.create(idempotency_key=key))
""",
    """
import stripe
from github import Github

client = stripe.StripeClient("sk_test_x")  # which makes one try
hub = Github(**options)

@app.worker
async def pay(order: Pay, ctx) -> None:
    await ctx.once("pay", lambda key: client.v1.refunds.create(params={}))
""",
    """
import openai

client = openai.AsyncOpenAI()  # nothing here is made once

async def ask():
    return await client.responses.create(input="x")
""",
]


# RV022: work after the transaction that ends the job

BAD["RV022"] = [
    """
import httpx
from relevo import Context

@app.worker
async def book(order: Book, ctx: Context) -> dict:
    async with ctx.transaction() as tx:
        tx.add(order)
    if order.is_loud:
        await tell(order)  # <-
    return await summary(order)  # <-
""",
    """
import requests
from relevo import PlainContext

@app.worker
def book(order: Book, ctx: PlainContext) -> None:
    with ctx.transaction() as tx:
        tx.add(order)
    requests.get("https://api.example.com")  # <-
""",
]
GOOD["RV022"] = [
    """
import logging
from relevo import Context, Retry

@app.worker
async def book(order: Book, ctx: Context):
    if order.is_paid:
        async with ctx.transaction() as tx:
            tx.add(order)
        return {"pages": 4}
    await tell(order)
    async with ctx.transaction() as tx:
        rows = await tx.scalars(order.question)
        await ctx.enqueue(Ship(order.id))
        if not rows:
            return Retry("not yet")
    logging.info("saved %s", order.id)
    return {"rows": len(rows)}

async def elsewhere(relevo):
    async with relevo.transaction() as tx:
        tx.add(1)
    await tell(tx)
""",
    """
from relevo import PlainContext

@app.worker
def book(order: Book, ctx: PlainContext) -> dict:
    with ctx.transaction() as tx:
        tx.add(order)
        ctx.enqueue(Ship(order.id))
    print("saved")
    return {"pages": 4}
""",
]


# RV023: one once() is one call

BAD["RV023"] = [
    """
import stripe

client = stripe.StripeClient("x", max_network_retries=0)

@app.worker
async def pay(order: Pay, ctx: Context) -> None:
    await ctx.once("pay", lambda key: charge(order, key))  # <-

def charge(order, key):
    customer = client.v1.customers.create(params={})
    return client.v1.charges.create(params={"customer": customer.id})
""",
    """
import httpx

@app.worker
async def pay(order: Pay, ctx: Context) -> None:
    async def charge(key):
        for attempt in range(3):
            try:
                return httpx.post("https://x", json={}).raise_for_status()
            except httpx.HTTPError:
                continue

    await ctx.once("pay", charge)  # <-
""",
    """
import requests

@app.worker
def pay(order: Pay, ctx: PlainContext) -> None:
    ctx.once("pay", lambda key: (requests.post("https://a"), requests.post("https://b")))  # <-
    ctx.once("all", lambda key: [requests.post(each) for each in order.urls])  # <-

    def twice(key):
        try:
            return requests.post("https://a")
        except requests.Timeout:
            return requests.get("https://a")

    ctx.once("twice", twice)  # <-
""",
    """
import httpx
from functools import partial

class Gateway:
    def __init__(self) -> None:
        self.client = httpx.AsyncClient()

    async def book(self, key, order):
        while True:
            answer = await self.client.post("/book")
            if answer.status_code < 500:
                return answer
            await asyncio.sleep(1)

gateway = Gateway()

@app.worker
async def book(order: Book, ctx: Context) -> None:
    await ctx.once("book", partial(gateway.book, order=order))  # <-
""",
    """
import httpx
import tenacity

@tenacity.retry(stop=tenacity.stop_after_attempt(3))
def book(key):
    return httpx.post("https://x")

@app.worker
def work(order: Book, ctx: PlainContext) -> None:
    ctx.once("book", book)  # <-
""",
]
GOOD["RV023"] = [
    """
import httpx

@app.worker
async def pay(order: Pay, ctx: Context) -> None:
    await ctx.once("pay", lambda key: charge(order, key))
    for who in order.people:
        await ctx.once(f"mail:{who}", lambda key: httpx.post("https://mail", json={"to": who}))

def charge(order, key):
    price = httpx.get("https://x/price").raise_for_status().json()
    lines = [each.strip() for each in order.lines]
    for line in lines:
        print(line)
    if order.is_gift:
        return httpx.post("https://x/gift", json=price)
    elif order.is_free:
        return None
    try:
        return httpx.post("https://x/pay", json=price)
    except httpx.ConnectError as error:
        raise ProviderUnavailable("away") from error
    finally:
        print("asked")
""",
    """
import httpx

@app.worker
async def book(order: Book, ctx: Context) -> None:
    async def find(key):
        for page in range(3):
            answer = httpx.get(f"https://x/{page}").raise_for_status()
            if answer.json():
                return answer.json()

    async def call(key):
        for url in order.urls:
            if url.startswith("https"):
                return await client.post(url)
        async with httpx.AsyncClient() as client:
            answer = await client.post("https://x")
            return answer.json()

    await ctx.once("book", call, find=find)
""",
    """
import requests

@app.worker
def pay(order: Pay, ctx: PlainContext) -> None:
    ctx.once("pay", lambda key: requests.post("https://a" if order.a else "https://b"))
    ctx.once("or", lambda key: requests.post("https://a") if order.a else requests.put("https://b"))
""",
]

# RV024: breakers that are not opened by what they count

BAD["RV024"] = [
    """
from relevo import Command, exponential

class Book(
    Command,
    queue="a:b:c",
    attempts=6,
    backoff=exponential("1m", cap="10m"),
    breaker="supplier:{id}",  # <-
):
    id: str
""",
    """
from relevo import Breaker, Command, constant

WAIT = constant("5m")
RULE = Breaker("supplier", failures=3, window="2m")

class Book(Command, queue="a:b:c", backoff=WAIT, breaker=RULE):  # <-
    id: str
""",
]
GOOD["RV024"] = [
    """
from relevo import Breaker, Command, exponential

class Book(
    Command,
    queue="a:b:c",
    attempts=6,
    backoff=exponential("1m", cap="10m"),
    breaker=Breaker("supplier:{id}", window="10m"),
):
    id: str

class Few(Command, queue="a:b:d", attempts=2, backoff=exponential("1m"), breaker="supplier:{id}"):
    id: str

class First(
    Command, queue="a:b:e", backoff=exponential("5m"), breaker=Breaker("first", failures=1)
):
    id: str

class Quick(Command, queue="a:b:f", attempts=5, breaker="quick"):
    id: str

""",
    """
from relevo import Breaker, Command, constant, exponential

from shop import patience

class Unknown(Command, queue="a:b:g", backoff=patience(), breaker="unknown"):
    id: str

class Without(Command, queue="a:b:h", backoff=exponential("5m"), breaker=None):
    id: str
""",
]
