"""An app's tables and its code, one of them newer than the other."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relevo import App, Relevo
from relevo.apps import tables
from relevo.errors import SchemaMismatch
from tests.conformance.fresh import SQL_STORES

PACKAGE = "stall_of_fruit.migrations"
REVISION = """
from alembic import op

revision = "{number}"
down_revision = {before}
{more}

def upgrade():
    op.execute("create table fruit_{number} (name text)")
"""


class Code:
    """An app's package, as this or that version has it."""

    def __init__(self, folder: Path) -> None:
        self._versions = folder / "stall_of_fruit" / "migrations" / "versions"
        self._versions.mkdir(parents=True)
        for package in (self._versions.parent, self._versions.parent.parent):
            (package / "__init__.py").touch()

    def knows(self, *revisions: tuple[str, str]) -> None:
        """Have these revisions, each with what it says of older code."""
        for file in self._versions.glob("*.py"):
            file.unlink()
        before = None
        for number, more in revisions:
            file = self._versions / f"{number}_fruit.py"
            file.write_text(
                REVISION.format(number=number, before=before and f'"{before}"', more=more)
            )
            before = number


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Code:
    monkeypatch.syspath_prepend(tmp_path)
    for name in (PACKAGE, PACKAGE.partition(".")[0]):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return Code(tmp_path)


@pytest.fixture(params=SQL_STORES)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'stall.db'}"
        return
    from tests.servers.postgres import fresh_address

    async with fresh_address() as address:
        yield address


async def opens(url: str) -> None:
    async with Relevo(url, apps=[App("stall", resources=[tables.tables(PACKAGE)])]):
        pass


async def test_older_code_works_on_what_a_revision_has_only_added(url: str, code: Code) -> None:
    first, adds = ("0001", ""), ("0002", 'readable_from = "0001"')
    takes_away = ("0003", 'readable_from = "0002"')
    code.knows(first)
    assert await tables.migrate(url, PACKAGE) == [f"{PACKAGE}: 0001"]
    await opens(url)

    code.knows(first, adds)
    assert await tables.migrate(url, PACKAGE) == [f"{PACKAGE}: 0002"]
    await opens(url)
    code.knows(first)
    await opens(url)
    assert await tables.migrate(url, PACKAGE) == []

    code.knows(first, adds, takes_away, ("0004", 'readable_from = "0001"'))
    assert len(await tables.migrate(url, PACKAGE)) == 2
    code.knows(first, adds)
    await opens(url)
    code.knows(first)
    for act in (opens(url), tables.migrate(url, PACKAGE)):
        with pytest.raises(SchemaMismatch, match="for code that knows 0002 or later"):
            await act


async def test_a_revision_that_says_nothing_is_for_code_of_its_own_age(
    url: str, code: Code
) -> None:
    code.knows(("0001", ""), ("0002", ""))
    await tables.migrate(url, PACKAGE)
    code.knows(("0001", ""))
    with pytest.raises(SchemaMismatch, match="upgrade relevo"):
        await opens(url)
