"""What the clients that people use give and raise inside once(), and what becomes of the job.

Real clients against a provider on the loopback, which counts how often it was asked.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import botocore.session
import github
import httpx
import openai
import pytest
import requests
import slack_sdk
import stripe
import twilio.rest
from botocore.config import Config
from slack_sdk.web.async_client import AsyncWebClient
from twilio.http.http_client import TwilioHttpClient

from relevo import App, Command, Context, ErrorRow, Relevo, State, constant
from relevo.desk import Desk, Person, Role
from relevo.job import Job
from relevo.store import Effect, EffectState
from relevo.testing import ManualClock, drain
from tests.servers.ports import free_port
from tests.servers.provider import Says, provider

# The clients' own pools keep connections that nothing closes.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ANA = Person("ana", Role.OPERATOR)


class Pay(Command, queue="shop:pay:charge", attempts=4, backoff=constant("2s", jitter=0)):
    cents: int = 1_000


# -- the clients, each with its own retries off


def _stripe(url: str, key: str) -> Any:
    client = stripe.StripeClient(
        "sk_test_x",
        base_addresses={"api": url},
        max_network_retries=0,
        http_client=stripe.RequestsClient(),
    )
    return client.v1.payment_intents.create(
        {"amount": 1_000, "currency": "eur"}, {"idempotency_key": key}
    )


def _requests(url: str, key: str) -> Any:
    answer = requests.post(f"{url}/charges", json={}, headers={"Idempotency-Key": key}, timeout=5)
    answer.raise_for_status()
    return answer.json()


def _twilio(url: str, key: str) -> Any:
    class There(TwilioHttpClient):
        def request(self, method: str, uri: str, *args: Any, **kwargs: Any) -> Any:
            return super().request(method, f"{url}/{uri.split('/', 3)[3]}", *args, **kwargs)

    client = twilio.rest.Client("AC" + "0" * 32, "token", http_client=There())
    return client.messages.create(to="+34600000000", from_="+34600000001", body="hi")


def _github(url: str, key: str) -> Any:
    hub = github.Github(
        auth=github.Auth.Token("t"),
        base_url=url,
        retry=None,
        lazy=True,
        seconds_between_requests=None,
        seconds_between_writes=None,
    )
    return hub.get_repo("a/b").create_issue(title="hi")


def _botocore(url: str, key: str) -> Any:
    client: Any = botocore.session.get_session().create_client(  # pyright: ignore[reportUnknownMemberType]
        "lambda",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
        config=Config(retries={"total_max_attempts": 1}),
    )
    return client.tag_resource(Resource="arn:aws:lambda:eu-west-1:1:function:f", Tags={"a": "b"})


def _slack(url: str, key: str) -> Any:
    client = slack_sdk.WebClient("xoxb-1", base_url=f"{url}/api/", retry_handlers=[])
    return client.chat_postMessage(channel="C1", text="hi")


def _openai(url: str, key: str) -> Any:
    client = openai.OpenAI(api_key="x", base_url=url, max_retries=0)
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], extra_headers={"X": key}
    )


async def _httpx(url: str, key: str) -> Any:
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/charges", json={}, headers={"Idempotency-Key": key})
        answer.raise_for_status()
        return answer.json()


async def _aiohttp(url: str, key: str) -> Any:
    headers = {"Idempotency-Key": key}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/charges", json={}, headers=headers) as answer,
    ):
        answer.raise_for_status()
        return await answer.json()


_NO = Says(402, {"error": {"message": "Your card was declined", "type": "card_error"}})


@dataclass(frozen=True)
class Client:
    call: Callable[[str, str], Any]
    good: Says
    read: Callable[[Any], object]
    gives: object
    no: Says = _NO
    words: str = "declined"
    tells_wait: bool = True


_COMPLETION = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}],
}
_INTENT = {"id": "pi_1", "object": "payment_intent", "amount": 1_000, "client_secret": "pi_1_x"}
_ISSUE = {"id": 7, "number": 42, "title": "hi", "url": "https://api.github.com/repos/a/b/issues/42"}

CLIENTS = {
    "stripe": Client(_stripe, Says(200, _INTENT), lambda r: (r.id, r["amount"]), ("pi_1", 1_000)),
    "requests": Client(_requests, Says(201, {"id": "ch_1"}), lambda r: r.id, "ch_1"),
    "twilio": Client(
        _twilio,
        Says(201, {"sid": "SM1"}),
        lambda r: r.sid,
        "SM1",
        no=Says(400, {"code": 21211, "message": "Invalid 'To' number"}),
        words="Invalid 'To' number",
        tells_wait=False,
    ),
    "github": Client(
        _github,
        Says(201, _ISSUE),
        lambda r: r.number,
        42,
        no=Says(422, {"message": "Validation failed"}),
        words="Validation failed",
    ),
    "botocore": Client(
        _botocore,
        Says(204, b""),
        lambda r: r.ResponseMetadata.HTTPStatusCode,
        204,
        no=Says(400, {"message": "no such function", "Type": "User"}),
        words="no such function",
    ),
    "slack": Client(
        _slack,
        Says(200, {"ok": True, "ts": "1.2"}),
        lambda r: r["ts"],
        "1.2",
        no=Says(200, {"ok": False, "error": "channel_not_found"}),
        words="channel_not_found",
    ),
    "openai": Client(
        _openai, Says(200, _COMPLETION), lambda r: r.choices[0].message.content, "yes"
    ),
    "httpx": Client(_httpx, Says(201, {"id": "ch_1"}), lambda r: r["id"], "ch_1"),
    "aiohttp": Client(
        _aiohttp,
        Says(201, {"id": "ch_1"}),
        lambda r: r.get("id"),
        "ch_1",
        words="Payment Required",  # it raises without the body
    ),
}
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))


@dataclass
class Ran:
    job: Job
    effect: Effect
    seen: list[object]
    relevo: Relevo


@contextmanager
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        yield


class Shop:
    """One queue whose worker calls a provider; `run` lets its job run as far as it goes."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.url = f"sqlite:///{path}/relevo.db"
        self.clock = clock

    async def run(
        self,
        client: Client,
        url: str,
        *,
        dies: bool = False,
        waits: bool = False,
        errors: Any = (),
        then: Callable[[], Any] | None = None,
        **options: Any,
    ) -> Ran:
        seen: list[object] = []

        async def pay(order: Pay, ctx: Context) -> None:
            result = await ctx.once("charge", lambda key: client.call(url, key), **options)
            seen.append(client.read(result))
            if dies and ctx.attempt == 1:
                raise RuntimeError("died after the call")

        with _environment():
            app = App("shop", workers=[pay], errors=errors)
            async with Relevo(self.url, apps=[app], clock=self.clock) as relevo:
                receipt = await relevo.enqueue(Pay())
                await drain(relevo, skip_waits=waits)
                if then is not None:
                    await then()
                    await drain(relevo, skip_waits=True)
                [job] = await relevo.store.find([receipt.id])
                [[effect], _] = await relevo.store.effects(job=receipt.id)
        assert job is not None
        return Ran(job, effect, seen, relevo)


@pytest.fixture
def shop(tmp_path: Path, clock: ManualClock) -> Shop:
    return Shop(tmp_path, clock)


@every_client
async def test_what_a_client_gives_is_the_same_in_every_run(shop: Shop, client: Client) -> None:
    with provider(client.good) as there:
        ran = await shop.run(client, there.url, dies=True, waits=True)

    assert (ran.job.state, ran.effect.state) == (State.DONE, EffectState.CONFIRMED), (
        ran.effect.error
    )
    assert ran.seen == [client.gives, client.gives]
    assert len(there.asked) == 1
    assert b"client_secret" not in (ran.effect.result or b"")


@every_client
async def test_a_provider_that_is_not_there_is_called_again(shop: Shop, client: Client) -> None:
    """An outage is no pile of jobs for a person."""
    port = free_port()
    ran = await shop.run(client, f"http://127.0.0.1:{port}")
    assert (ran.job.state, ran.effect.state) == (State.SCHEDULED, EffectState.FAILED)
    assert ran.job.attempt == 1


@every_client
async def test_a_no_is_dead_at_once_with_the_provider_s_words(shop: Shop, client: Client) -> None:
    with provider(client.no) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert (ran.job.state, ran.effect.state) == (State.DEAD, EffectState.REFUSED)
    assert len(there.asked) == ran.job.attempt == 1
    assert ran.job.failure is not None
    assert client.words in ran.job.failure.message
    assert str(client.no.status) in ran.effect.error or "ok: false" in ran.effect.error


@every_client
async def test_a_key_that_is_not_accepted_parks_the_job(shop: Shop, client: Client) -> None:
    with provider(Says(401, {"error": {"message": "no such key"}})) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert (ran.job.state, ran.effect.state) == (State.PARKED, EffectState.FAILED)
    assert (len(there.asked), ran.job.attempt) == (1, 0)


@every_client
async def test_a_request_to_wait_spends_nothing(shop: Shop, client: Client) -> None:
    busy = Says(429, {"error": {"message": "slow down"}}, {"Retry-After": "70"})
    with provider(busy, client.good) as there:
        ran = await shop.run(client, there.url)
        now = int(shop.clock.now().timestamp() * 1_000)

    assert (ran.job.state, ran.effect.state) == (State.SCHEDULED, EffectState.FAILED)
    assert (len(there.asked), ran.job.attempt) == (1, 0)
    assert ran.job.history[-1].outcome == "snooze"
    assert (60_000 < ran.job.run_at - now <= 70_000) or not client.tells_wait


@every_client
@pytest.mark.parametrize("says", [Says(500, {"error": "x"}), Says(503), Says(None)])
async def test_what_may_have_happened_is_held(shop: Shop, client: Client, says: Says) -> None:
    with provider(says) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert (ran.job.state, ran.effect.state) == (State.HELD, EffectState.UNKNOWN)
    assert len(there.asked) == 1


@every_client
async def test_what_may_be_repeated_is_asked_again_with_one_key(shop: Shop, client: Client) -> None:
    with provider(Says(503), Says(None), client.good) as there:
        ran = await shop.run(client, there.url, waits=True, repeatable=True)

    assert (ran.job.state, ran.effect.state) == (State.DONE, EffectState.CONFIRMED), (
        ran.effect.error
    )
    assert len(there.asked) == 3
    assert len(set(there.keys)) == 1
    assert ran.effect.error == ""


# -- the rules above the table


async def test_a_later_no_does_not_speak_for_an_earlier_try(shop: Shop) -> None:
    """Both stories are shown, and no fresh key is given by itself."""
    client = CLIENTS["stripe"]
    with provider(Says(None), client.no, client.good) as there:
        ran = await shop.run(client, there.url, waits=True, repeatable=True)

        assert (ran.job.state, ran.effect.state) == (State.HELD, EffectState.UNKNOWN)
        assert ran.job.failure is not None
        for text in (ran.job.failure.message, ran.effect.error):
            assert "APIConnectionError" in text and "; later stripe.CardError 402" in text
        async with Relevo(shop.url, clock=shop.clock) as relevo:
            desk = Desk(relevo.store)
            await desk.retry([ran.job.id], ANA)
        assert len(there.asked) == 2
    assert len(set(there.keys)) == 1


async def test_a_client_that_tries_again_by_itself_proves_less(shop: Shop) -> None:
    """The first try was charged and its answer lost; the second was refused."""

    def call(url: str, key: str) -> Any:
        client = openai.OpenAI(api_key="x", base_url=url, max_retries=2)
        return client.chat.completions.create(model="m", messages=[])

    client = Client(call, CLIENTS["openai"].good, lambda r: r.id, "c1")
    with provider(Says(None), Says(400, {"error": {"message": "no"}})) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert len(there.asked) == 2
    assert (ran.job.state, ran.effect.state) == (State.HELD, EffectState.UNKNOWN)
    assert "max_retries=0" in ran.effect.error or "other try" in ran.effect.error


def _stripe_of_module(url: str, key: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stripe, "api_key", "sk_test_x")
        patch.setattr(stripe, "api_base", url)
        patch.setattr(stripe, "default_http_client", stripe.RequestsClient())
        return stripe.PaymentIntent.create(amount=1, currency="eur", idempotency_key=key)


def _stripe_that_repeats(url: str, options: Any, **settings: Any) -> Any:
    return stripe.StripeClient(
        "sk_test_x",
        base_addresses={"api": url},
        http_client=stripe.RequestsClient(),
        **settings,
    ).v1.payment_intents.create({"amount": 1, "currency": "eur"}, options)


STRIPES: dict[str, Callable[[str, str], Any]] = {
    "the module": _stripe_of_module,
    "a client": lambda url, key: _stripe_that_repeats(
        url, {"idempotency_key": key}, max_network_retries=2
    ),
    "a call": lambda url, key: _stripe_that_repeats(
        url, {"idempotency_key": key, "max_network_retries": 2}
    ),
}


@pytest.mark.parametrize("call", STRIPES.values(), ids=list(STRIPES))
@pytest.mark.parametrize("status", [400, 402, 404, 401, 403, 429])
async def test_one_key_for_all_tries_of_stripe_is_a_proof(
    shop: Shop, call: Callable[[str, str], Any], status: int
) -> None:
    """Of a no that is said after the key was looked at: else the first answer had come again."""
    client = Client(call, _NO, lambda r: r.id, "pi_1")
    with provider(Says(None), Says(status, {"error": {"message": "no"}})) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert len(there.asked) == 2
    assert len(set(there.keys)) == 1
    is_proof = status in (400, 402, 404)
    state = EffectState.REFUSED if is_proof else EffectState.UNKNOWN
    assert ran.effect.state is state, ran.effect.error
    assert is_proof or "stripe.max_network_retries = 0" in ran.effect.error


async def test_a_client_of_stripe_makes_one_try_unless_it_is_told_more(shop: Shop) -> None:
    client = Client(
        lambda url, key: _stripe_that_repeats(url, {"idempotency_key": key}),
        *(_NO, lambda r: r.id, "pi_1"),
    )
    with provider(Says(401)) as there:
        ran = await shop.run(client, there.url, waits=True)
    assert len(there.asked) == 1
    assert (ran.job.state, ran.effect.state) == (State.PARKED, EffectState.FAILED)


# -- several calls in one once()


def _in_a_loop(url: str, key: str) -> Any:
    for _ in range(3):
        try:
            return _requests(url, key)
        except requests.HTTPError as error:
            if error.response.status_code < 500:
                raise
    return None


async def _in_an_async_loop(url: str, key: str) -> Any:
    while True:
        try:
            async with asyncio.timeout(5):
                return await _httpx(url, key)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise


def _raised_after_its_loop(url: str, key: str) -> Any:
    last: Exception | None = None
    for _ in range(2):
        try:
            return _stripe(url, key)
        except stripe.StripeError as error:
            last = error
    assert last is not None
    raise last


def _until_it_is_no_error(url: str, key: str) -> Any:
    answer = None
    while answer is None or answer.status_code >= 500:
        answer = requests.post(f"{url}/charges", timeout=5)
        if answer.status_code < 500:
            answer.raise_for_status()
    return answer.json()


def _calls_itself(url: str, key: str, left: int = 2) -> Any:
    failed = False
    try:
        return _requests(url, key)
    except requests.HTTPError as error:
        if not left or error.response.status_code < 500:
            raise
        failed = True
    return _calls_itself(url, key, left - 1) if failed else None


def _in_the_handler(url: str, key: str) -> Any:
    try:
        return _requests(url, key)
    except requests.HTTPError:
        return _requests(url, key)


def _after_a_customer(url: str, key: str) -> Any:
    client = stripe.StripeClient(
        "sk_test_x", base_addresses={"api": url}, http_client=stripe.RequestsClient()
    )
    customer = client.v1.customers.create({"name": "Ann"})
    return client.v1.payment_intents.create(
        {"amount": 1, "currency": "eur", "customer": customer.id}, {"idempotency_key": key}
    )


async def _after_an_answer(url: str, key: str) -> Any:
    async with httpx.AsyncClient(base_url=url) as client:
        customer = await client.post("/customers")
        answer = await client.post("/charges", json={"customer": customer.json()["id"]})
        answer.raise_for_status()
        return answer.json()


_FIRST = Says(200, {"id": "cus_1", "object": "customer"})
SEVERAL = {
    "a loop": (_in_a_loop, Says(500), "in a loop of _in_a_loop()"),
    "an async loop": (_in_an_async_loop, Says(500), "in a loop of _in_an_async_loop()"),
    "raised after a loop": (_raised_after_its_loop, Says(500), "in a loop of"),
    "a loop over answers": (_until_it_is_no_error, Says(500), "in a loop of"),
    "recursion": (_calls_itself, Says(500), "repeated by _calls_itself()"),
    "a handler": (_in_the_handler, Says(500), "after requests.HTTPError"),
    "stripe twice": (_after_a_customer, _FIRST, "after the call that gave 'customer'"),
    "httpx twice": (_after_an_answer, _FIRST, "after the call that gave 'customer'"),
}


@pytest.mark.parametrize(("call", "first", "why"), SEVERAL.values(), ids=list(SEVERAL))
async def test_the_last_error_of_several_calls_is_no_proof(
    shop: Shop, call: Callable[[str, str], Any], first: Says, why: str
) -> None:
    """An earlier one may have worked, or did."""
    client = Client(call, _FIRST, lambda r: r, None)
    with provider(first, _NO) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert len(there.asked) == 2
    assert (ran.job.state, ran.effect.state) == (State.HELD, EffectState.UNKNOWN), ran.effect.error
    assert "402" in ran.effect.error
    assert why in ran.effect.error


def _after_loops(url: str, key: str) -> Any:
    lines: list[str] = []
    for word in ("a", "b"):
        try:
            lines.append(str(int(word)))
        except ValueError:
            continue
    total = sum(len(each) for each in lines)
    for each in (url, key):
        if each:
            return _requests(each, f"{key}:{total}")
    return None


async def _in_a_with(url: str, key: str) -> Any:
    async with asyncio.timeout(5):
        async for each in _urls(url):
            return await asyncio.wait_for(_httpx(each, key), 5)
    return None


async def _urls(url: str) -> AsyncGenerator[str]:
    await asyncio.sleep(0)
    yield url


def _after_a_read(url: str, key: str) -> Any:
    session = requests.Session()
    price = session.get(f"{url}/price", timeout=5)
    answer = session.post(f"{url}/charges", json={"amount": price.json()["id"]}, timeout=5)
    answer.raise_for_status()
    return answer.json()


ONE = {"loops before": _after_loops, "a with": _in_a_with, "a read before": _after_a_read}


@pytest.mark.parametrize("call", ONE.values(), ids=list(ONE))
async def test_code_around_one_call_takes_nothing_from_its_proof(
    shop: Shop, call: Callable[[str, str], Any]
) -> None:
    client = Client(call, _FIRST, lambda r: r, None)
    says = [Says(200, {"id": 7}), _NO] if call is _after_a_read else [_NO]
    with provider(*says) as there:
        ran = await shop.run(client, there.url, waits=True)

    assert len(there.asked) == len(says)
    assert (ran.job.state, ran.effect.state) == (State.DEAD, EffectState.REFUSED), ran.effect.error


async def test_a_look_up_may_call_as_often_as_it_likes(shop: Shop) -> None:
    """It has no effect: an error of its last call says what is wrong."""

    async def find(key: str) -> None:
        for page in range(3):
            async with httpx.AsyncClient(base_url=there.url) as client:
                answer = await client.get(f"/charges?page={page}")
                answer.raise_for_status()

    client = CLIENTS["httpx"]
    with provider(Says(None), Says(200, {}), Says(401)) as there:
        ran = await shop.run(client, there.url, waits=True, find=find)

    assert (ran.job.state, ran.effect.state) == (State.PARKED, EffectState.UNKNOWN)


async def test_an_sdk_that_repeats_the_calls_of_a_lower_client_proves_less(shop: Shop) -> None:
    """AsyncWebClient raises what aiohttp raised: the first try was lost, the second refused."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def reset_and_go() -> None:
        there, _ = listener.accept()
        there.recv(1)
        listener.close()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()

    async def call(url: str, key: str) -> Any:
        return await AsyncWebClient("xoxb-1", base_url=f"{url}/api/").chat_postMessage(
            channel="C1", text="hi"
        )

    server = threading.Thread(target=reset_and_go)
    server.start()
    client = Client(call, Says(), lambda r: r["ts"], "1.2")
    ran = await shop.run(client, f"http://127.0.0.1:{port}", waits=True)
    server.join()

    assert "ClientConnectorError" in ran.effect.error
    assert (ran.job.state, ran.effect.state) == (State.HELD, EffectState.UNKNOWN)


# -- what the app and the call say themselves


async def test_a_response_is_judged_by_its_status(shop: Shop) -> None:
    client = Client(
        lambda url, key: requests.post(url, timeout=5), Says(), lambda r: r.json()["id"], "x"
    )
    with provider(Says(201, {"id": "x"})) as there:
        ran = await shop.run(client, there.url, dies=True, waits=True)
        assert (ran.job.state, ran.seen) == (State.DONE, ["x", "x"])
    with provider(Says(404, {"id": "x"})) as there:
        ran = await shop.run(client, there.url)
        assert (ran.job.state, ran.effect.state) == (State.DEAD, EffectState.REFUSED)
        ran = await shop.run(client, there.url, accept={404})
        assert (ran.job.state, ran.seen) == (State.DONE, ["x"])


async def test_a_row_of_the_app_decides_before_the_table(shop: Shop) -> None:
    client = CLIENTS["httpx"]
    rows = [ErrorRow(status=503, host="127.0.0.1", means="wait", retry_after="30s")]
    with provider(Says(503), client.good) as there:
        ran = await shop.run(client, there.url, errors=rows)
    assert (ran.job.state, ran.job.attempt) == (State.SCHEDULED, 0)
    assert "a row of the app" in ran.effect.error


async def test_a_call_s_own_judge_decides_before_the_app_s_rows(shop: Shop) -> None:
    from relevo import Means, Proof

    client = CLIENTS["httpx"]
    with provider(Says(500)) as there:
        ran = await shop.run(
            client, there.url, judge=lambda error: Proof(Means.REFUSED, "mine", "never")
        )
    assert (ran.job.state, ran.effect.state) == (State.DEAD, EffectState.REFUSED)
    assert ran.effect.error == "mine: never"
