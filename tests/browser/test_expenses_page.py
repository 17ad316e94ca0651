"""A person's month as they see it: the table, the chart, the export, in two languages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from relevo.apps.expenses import app, links, records
from relevo.apps.expenses.queues import Incoming
from relevo.apps.expenses.rules import REGIONS, Spent, after
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.engine import Relevo
from relevo.simulators import whatsapp
from tests.browser.conftest import Program, reading

pytestmark = pytest.mark.xdist_group("browser")

NAME = "Ana <script>alert(1)</script>"


class Book(Program):
    """A program with one person's expenses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, hostile=False, is_filled=False)
        self.relevo = Relevo(f"sqlite:///{folder / 'relevo.db'}", apps=[app])

    async def write(self) -> str:
        spent = [
            ("500", "groceries", "pan"),
            ("1200.50", "transport", "<b>uber</b>"),
            ("3000", "groceries", "=verdura"),
        ]
        now = datetime.now(UTC)
        async with self.relevo.transaction() as tx:
            for number, (amount, category, description) in enumerate(spent):
                message = Incoming(
                    id=f"wamid.{number}",
                    kind="text",
                    sent_at=1,
                    phone_number_id="1",
                    wa_id="5491100000001",
                    name=NAME,
                )
                times = records.Times(now, now)
                user = await records.upsert_user(tx, message, REGIONS["AR"], "es", now)
                made = Spent(Decimal(amount), "ARS", category, description, self.today())
                await records.add_expense(tx, user, message, made, "rules", times)
                await tx.flush()
        return user.id

    def today(self) -> date:
        """Where Ana lives, as on the pages."""
        return REGIONS["AR"].day(datetime.now(UTC))

    def link(self, user: str) -> str:
        first = self.today().replace(day=1)
        key = self.relevo.use(ExpensesSettings).link_key
        return links.make(key, links.Link(user, first, after(first)), datetime.now(UTC))


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Book]:
    before = dict(os.environ)
    os.environ.update(whatsapp.environment("http://127.0.0.1:9"))
    os.environ.pop("RELEVO_ADMIN_PASSWORD", None)
    try:
        with Book(tmp_path_factory.mktemp("book")).running() as made:
            assert isinstance(made, Book)
            yield made
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_staff_and_the_person_see_the_month(browser: Browser, book: Book) -> None:
    user = book.do(book.write())
    with reading(browser, book.url) as reader:
        page = reader.go("/expenses")
        page.get_by_role("link", name=NAME).click()
        expect(page.get_by_role("heading", name="Total: ARS 4.700,50")).to_be_visible()
        expect(page.get_by_role("img", name="By category ARS")).to_be_visible()
        assert page.locator("svg rect").count() == 2
        expect(page.get_by_role("cell", name="<b>uber</b>")).to_be_visible()
        page.get_by_role("link", name="Previous month").click()
        expect(page.get_by_text("Nothing was spent")).to_be_visible()
        assert reader.complaints == reader.dialogs == []
    with reading(browser, book.url, locale="es-AR") as reader:
        page = reader.go(f"/my/expenses?link={book.link(user)}")
        expect(page.get_by_role("columnheader", name="Descripción")).to_be_visible()
        with page.expect_download() as got:
            page.get_by_role("link", name="Descargar CSV").click()
        text = got.value.path().read_text()
        assert "'=verdura" in text
        page = reader.go("/my/expenses?link=forged", status=404)
        assert "pedí uno nuevo" in page.content()
        assert [each for each in reader.complaints if "404" not in each] == []
