"""Doctor on what protects relevo, and the rotations of its page that need a server."""

from __future__ import annotations

import re
import resource
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from relevo.sealing import SealKeys, new_key, opened, sealed_text
from relevo.store import Arrival, DeliveryState, Effect, Kept, Store
from relevo.stores import open_store
from relevo.stores.sealed import sealed
from tests.conformance.steps import add
from tests.edges.box import Box
from tests.edges.site import PASSWORD
from tests.servers.postgres import ROLE, PostgresServer
from tests.servers.redis import RedisServer

PAGE = (Path(__file__).parents[2] / "docs/guides/rotate-a-secret.md").read_text()
OLD, NEW = new_key(), new_key()
HOOKS = """
import os
from relevo import App, sources

app = App("hooks")

@app.webhook(
    "/hooks/a", verify=sources.hmac_header("X-A", os.environ["A_SECRET"].split(",")), key=str
)
async def a(delivery, ctx): ...
"""


def told(box: Box, *args: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for row in box("doctor", *args, "--json").json:
        found.setdefault(row["subject"], []).append((row["level"], row["message"]))
    return found


@pytest.fixture
def hooks(box: Box, monkeypatch: pytest.MonkeyPatch) -> Box:
    (box.path.parent / "hooks.py").write_text(HOOKS)
    monkeypatch.delitem(sys.modules, "hooks", raising=False)
    monkeypatch.setenv("A_SECRET", "a-secret-of-the-door,another-of-the-door")
    return box


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RELEVO_HOST": "0.0.0.0"}, "RELEVO_ADMIN_PASSWORD"),  # noqa: S104 - refused
        (
            {"RELEVO_HOST": "no.such.host.invalid", "RELEVO_ADMIN_PASSWORD": PASSWORD},
            "cannot listen on no.such.host.invalid",
        ),
        ({"A_SECRET": "changeme"}, "placeholder"),
    ],
)
def test_doctor_fails_on_what_serve_would_refuse(
    hooks: Box, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], said: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    answer = hooks("doctor", "--app", "hooks:app", "--json")
    assert answer.code == 1
    [error] = [row for row in answer.json if row["level"] == "error"]
    assert error["subject"] in ("serve", "apps") and said in error["message"]
    served = hooks("serve", "--app", "hooks:app", "--port", "0")
    assert served.code != 0 and said in served.err


def test_doctor_warns_of_what_leaves_the_doors_open(
    hooks: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(hooks, "--app", "hooks:app")
    assert [level for level, _ in found["password"]] == ["warning"]
    assert found["workers"][0][0] == found["seal"][0][0] == "warning"
    [(level, said)] = found["hooks:/hooks/a"]
    assert level == "ok" and re.search("1 of 2, [0-9a-f]{4}; 2 of 2, [0-9a-f]{4}", said)
    assert "a-secret" not in said and "serve" not in found and "hosts" not in found
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", "correct horse battery")
    found = told(hooks, "--app", "hooks:app")
    assert "password" not in found and found["hosts"][0][0] == "warning"
    monkeypatch.setenv("RELEVO_ALLOWED_HOSTS", "relevo.example.com")
    monkeypatch.setenv("RELEVO_SEAL_KEYS", NEW)
    found = told(hooks, "--app", "hooks:app")
    assert "hosts" not in found and {level for level, _ in found["seal"]} == {"ok"}
    assert "no app is named" in told(hooks)["serve"][0][1]


def test_doctor_looks_at_the_machine(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        assert "512" in told(box)["descriptors"][0][1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    monkeypatch.setenv("RELEVO_SPOOL", "/nowhere/at/all/spool.db")
    assert "cannot be written" in told(box)["spool"][0][1]
    monkeypatch.setenv("RELEVO_SPOOL", str(box.path.parent / "spool.db"))
    monkeypatch.setattr("relevo.cli.doctor.LOW_SPACE", 1 << 60)
    assert "MiB are free" in told(box)["spool"][0][1]


def test_doctor_tells_of_a_clock_that_makes_signatures_fail(box: Box) -> None:
    async def refuse(store: Store) -> None:
        why = "it was signed 4000 s ago, and 300 s are allowed: a replay, or a wrong clock"
        kept = Kept(
            id="0" * 32,
            endpoint="shop:/hooks",
            key=None,
            state=DeliveryState.REFUSED,
            reason=why,
            status=401,
        )
        await store.receive([Arrival(kept)])

    assert "clock" not in [key for key in told(box) if told(box)[key][0][0] == "warning"]
    box.do(refuse)
    assert any("1 call of the last day" in said for _, said in told(box)["clock"])


def test_doctor_counts_what_is_sealed_with_which_key(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23: and fails when a key is missing."""
    old, new = SealKeys(OLD).names[0], SealKeys(NEW).names[0]

    def come(number: int, body: bytes) -> Arrival:
        return Arrival(Kept(id=f"{number:032x}", endpoint="shop:/hooks", key=None, body=body))

    async def fill(store: Store) -> None:
        await add(sealed(store, SealKeys(OLD)), payload=b'{"a":1}')
        for number in range(3):
            await sealed(store, SealKeys(OLD)).receive([come(number + 1, b"old")])
        await sealed(store, SealKeys(NEW)).receive([come(9, b"new")])
        await add(store, payload=b'{"a":2}')

    box.do(fill)
    monkeypatch.setenv("RELEVO_SEAL_KEYS", f"{NEW},{OLD}")
    found = told(box)["seal"]
    assert {level for level, _ in found} == {"ok"}
    said = "\n".join(message for _, message in found)
    assert f"1 job and 3 deliveries are sealed with {old}, key 2 of 2" in said
    assert f"0 jobs and 1 delivery are sealed with {new}, key 1 of 2" in said
    assert "1 not sealed" in said
    for keys in (NEW, ""):
        monkeypatch.setenv("RELEVO_SEAL_KEYS", keys)
        answer = box("doctor", "--json")
        errors = [row["message"] for row in answer.json if row["level"] == "error"]
        assert answer.code == 1
        assert any(
            f"1 job and 3 deliveries are sealed with the key called {old}" in e for e in errors
        )
        assert OLD not in answer.out + answer.err
    third = new_key()
    monkeypatch.setenv("RELEVO_SEAL_KEYS", f"{NEW},{OLD},{third}")
    assert any("it can be taken out" in message for _, message in told(box)["seal"])


async def _used(url: str) -> int:
    """Migrate and use the store as a process would; how many jobs it has."""
    store = open_store(url)
    await store.migrate()
    try:
        await store.open()
        await add(store, payload=b"{}")
        return sum(sum(tally.counts.values()) for tally in await store.tally())
    finally:
        await store.close()


async def test_the_database_s_password_is_rotated_as_the_page_says() -> None:
    create, close = re.findall(r"```sql\n(.*?)```", PAGE, re.S)
    with PostgresServer() as server:
        assert await _used(server.url) == 1
        for statement in (
            create.replace(" relevo ", f" {ROLE} ")
            .replace("set role relevo;", f"set role {ROLE};")
            .split(";")
        ):
            if statement.strip():
                server.sql(statement)
        other = server.url.replace(f"//{ROLE}@", "//relevo_b:the-new-password@")
        assert await _used(other) == 2
        assert server.sql("select count(*) from pg_tables where tableowner = 'relevo_b'") == "0"
        count, login, _ = (
            close.replace("'relevo'", f"'{ROLE}'")
            .replace("role relevo ", f"role {ROLE} ")
            .split(";")
        )
        assert server.sql(count) == "0"
        server.sql(login)
        with pytest.raises(Exception, match="not permitted to log in"):
            await _used(server.url)
        assert await _used(other) == 3


async def test_the_password_of_redis_is_rotated_as_the_page_says() -> None:
    [steps] = re.findall(r"```redis\n(.*?)```", PAGE, re.S)
    add_new, remove_old = steps.strip().splitlines()
    conf = "user relevo on >the-old-password ~* &* +@all"
    with RedisServer(conf) as server:
        place = server.url.removeprefix("redis://")
        old, new = (f"redis://relevo:the-{each}-password@{place}/0" for each in ("old", "new"))
        assert await _used(old) == 1
        with pytest.raises(Exception, match=r"(?i)password|auth"):
            await _used(new)
        server.command(*add_new.split())
        assert (await _used(old), await _used(new)) == (2, 3)
        server.command(*remove_old.split())
        with pytest.raises(Exception, match=r"(?i)password|auth"):
            await _used(old)
        assert await _used(new) == 4


def test_seal_renew_seals_all_with_the_newest_key_and_doctor_lets_the_old_one_go(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = SealKeys(OLD).names[0], SealKeys(NEW).names[0]
    spool = box.folder / "relevo-spool.db"

    async def fill(store: Store) -> None:
        before = sealed(store, SealKeys(OLD))
        await add(before, payload=b'{"a":1}')
        await before.receive([Arrival(Kept(id=f"{3:032x}", endpoint="shop:/hooks", key="e"))])
        await before.receive(
            [Arrival(Kept(id=f"{4:032x}", endpoint="shop:/hooks", key="f", body=b"ana"))]
        )
        effect = Effect(job=f"{5:032x}", queue="shop:mail:send", name="m", key="k", result=b"1")
        await before.intend([effect])

    box.do(fill)
    with closing(sqlite3.connect(spool, isolation_level=None)) as file:
        file.execute("create table spool (id integer primary key autoincrement, data blob)")
        file.execute("insert into spool (data) values (?)", [sealed_text(SealKeys(OLD), b"call")])
    assert box("seal", "renew").code == 2
    monkeypatch.setenv("RELEVO_SEAL_KEYS", f"{NEW},{OLD}")
    [said] = [said for _, said in told(box)["seal"] if f"with {old}" in said]
    assert "1 job, 1 delivery, 1 effect and 1 spooled delivery are sealed" in said

    done = box("seal", "renew", "--json")

    assert done.code == 0, done.err
    assert done.json["renewed"][old] >= 4
    assert done.json["left"] == done.json["closed"] == {}
    assert "everything that is sealed" in box("seal", "renew").out
    monkeypatch.setenv("RELEVO_SEAL_KEYS", NEW)
    assert {level for level, _ in told(box)["seal"]} == {"ok"}
    with closing(sqlite3.connect(spool)) as file:
        [(data,)] = file.execute("select data from spool")
    assert opened(SealKeys(NEW), data) == b"call"
    monkeypatch.setenv("RELEVO_SEAL_KEYS", OLD)
    found = told(box)["seal"]
    assert any(level == "error" and new in said for level, said in found)
    assert box("seal", "renew").code == 1
