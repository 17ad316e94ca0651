"""The ground floor of the simulators: faults happen as asked, effects are counted."""

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from relevo.simulators import World, running, server
from relevo.simulators.faults import Faults


class Provider:
    """One that sells hats."""

    @staticmethod
    def routes(world: World) -> list[Route]:
        @world.call("hats", "buy")
        async def buy(request: Request) -> Response:
            world.effect("hats", "buy", request.query_params["key"])
            return JSONResponse({"hat": "bowler, black, with a band"})

        return [Route("/hats", buy, methods=["POST"])]

    @staticmethod
    def environment(base: str) -> dict[str, str]:
        return {"HATS_URL": f"{base}/hats"}


@pytest.fixture(autouse=True)
def hats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "providers", lambda: [Provider])


@pytest.mark.parametrize(
    ("kind", "happened", "answer"),
    [
        ("lost", 1, "cut"),
        ("down", 0, "cut"),
        ("error", 0, 503),
        ("limit", 0, 429),
        ("malformed", 1, 200),
        ("slow", 1, 200),
        ("hang", 1, 200),
    ],
)
async def test_a_fault_happens_once_and_as_asked(kind: str, happened: int, answer: object) -> None:
    async with running() as world, httpx2.AsyncClient(base_url=world.base) as client:
        wish = {"provider": "hats", "operation": "buy", "kind": kind, "times": 1, "seconds": 0.01}
        assert (await client.post("/faults", json=wish)).status_code == 200
        try:
            got: object = (await client.post("/hats?key=a")).status_code
        except httpx2.HTTPError:
            got = "cut"
        assert (got, world.ledger.count("hats", "buy", "a")) == (answer, happened)
        assert (await client.post("/hats?key=b")).json()["hat"]
        assert (await client.get("/calls")).json() == {"hats:buy": 2}
        assert [one["key"] for one in (await client.get("/ledger")).json()["hats"]["buy"]][
            -1
        ] == "b"


async def test_an_unknown_fault_is_refused_with_what_there_is() -> None:
    async with running() as world, httpx2.AsyncClient(base_url=world.base) as client:
        refused = await client.post("/faults", json={"provider": "hats", "kind": "flood"})
        assert refused.status_code == 422
        assert "malformed" in refused.json()["wanted"]


async def test_the_courier_tries_until_it_is_taken() -> None:
    world = World()
    async with running(world):
        world.target = world.base
        world.faults.add("hats", "buy", "error", times=2)
        world.courier.send(
            "/hats?key=x", b"{}", lambda body: {"x-length": str(len(body))}, copies=2
        )
        await world.courier.rest()
        assert world.ledger.count("hats", "buy", "x") == 2
        assert world.ledger.doubled("hats") == {"buy:x": 2}


def test_an_outage_lasts_from_its_first_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("relevo.simulators.faults.time.monotonic", lambda: now)
    faults = Faults()
    outage = faults.add("hats", "buy", "error", lasts=10)
    now = 200.0
    assert faults.pick("hats", "buy") is outage
    now = 209.9
    assert faults.pick("hats", "buy") is outage
    now = 210.0
    assert faults.pick("hats", "buy") is None
