"""An engine without an address is on the store that the environment names, as `relevo work` is."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo import App, Command, Relevo, SettingsError
from relevo.sealing import SealKeys, new_key
from relevo.store import Filter
from relevo.stores import open_store

app = App("test")


class Ship(Command, queue="test:orders:ship"):
    order: str


@app.worker
async def ship(order: Ship) -> None: ...


async def test_the_environment_names_the_store_and_what_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key()
    url = f"sqlite:///{tmp_path}/named.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELEVO_STORE_URL", url)
    monkeypatch.setenv("RELEVO_SEAL_KEYS", key)
    monkeypatch.setenv("RELEVO_TRACING", "on")
    monkeypatch.setenv("RELEVO_CONNECTIONS", "7")
    monkeypatch.setenv("RELEVO_KEEP_DEAD", "3d")
    async with Relevo(apps=[app]) as relevo:
        assert relevo.telemetry.tracing is not None
        assert relevo.places.most == 7
        assert relevo.keep_dead.days == 3
        await relevo.enqueue(Ship("A-canary"))
    assert not (tmp_path / "relevo.db").exists()
    assert b"A-canary" not in (tmp_path / "named.db").read_bytes()
    async with Relevo(open_store(url), seal=SealKeys(key)) as there:
        [job] = (await there.store.page(Filter())).jobs
    assert b"A-canary" in job.payload


async def test_a_database_beside_a_store_is_found_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_STORE_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("RELEVO_DATABASE_URL", f"sqlite:///{tmp_path}/side.db")
    relevo = Relevo(apps=[app])
    assert relevo.is_atomic
    assert relevo.database is not None


async def test_an_address_that_is_given_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_STORE_URL", f"sqlite:///{tmp_path}/named.db")
    monkeypatch.setenv("RELEVO_SEAL_KEYS", new_key())
    async with Relevo(f"sqlite:///{tmp_path}/given.db", apps=[app]) as relevo:
        assert relevo.seal is None
        await relevo.enqueue(Ship("A-1"))
    assert (tmp_path / "given.db").exists()
    assert not (tmp_path / "named.db").exists()


async def test_without_either_it_is_a_file_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELEVO_STORE_URL", raising=False)
    async with Relevo(apps=[app]):
        pass
    assert (tmp_path / "relevo.db").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RELEVO_STORE_URL", "mysql://shop"),
        ("RELEVO_SEAL_KEYS", "no key"),
        ("RELEVO_STORE", "sqlite:///relevo.db"),
    ],
)
def test_what_is_wrong_with_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        Relevo(apps=[app])
