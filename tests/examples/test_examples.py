"""The examples keep their promise: duplicates, lost answers and kill -9, each effect counted."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from relevo.store import Filter
from relevo.testing import deliver
from tests.examples.conftest import EXAMPLES, Answer, Asked, Example, Provider, serving

# The clients' own pools keep connections that nothing closes.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Make = Callable[[str], Example]


def rows(example: Example, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(example.url.removeprefix("sqlite:///")) as database:
        try:
            return sorted(database.execute(sql).fetchall())
        except sqlite3.OperationalError:
            return []
        finally:
            database.commit()


def finished(example: Example) -> bool:
    """Whether every job of the store has ended well."""

    async def look() -> bool:
        from relevo import Relevo

        async with Relevo(example.url) as relevo:
            page = await relevo.store.page(Filter())
            return all(job.state == "done" for job in page.jobs)

    return asyncio.run(look())


def test_stripe_charges_and_ships_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    charges: dict[str, dict[str, Any]] = {}

    def stripe(provider: Provider, asked: Asked) -> Answer:
        key = asked.headers["idempotency-key"]
        if key not in charges:
            order = asked.form["metadata[order]"]
            provider.did(order)
            charges[key] = {
                "id": f"pi_{order}",
                "object": "payment_intent",
                "client_secret": f"pi_{order}_" + "secret_3Mtw",
                "metadata": {"order": order},
            }
        return 200, charges[key]

    with serving(Provider(stripe)) as provider:
        monkeypatch.setenv("STRIPE_API", provider.url)
        monkeypatch.setenv("STRIPE_API_KEY", "sk_" + "test_x")
        monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", "whsec_" + "test")
        provider.faults = ["kill", "lose"]
        example = make("stripe")
        shop = example.module("shop")
        orders = ["A-1", "A-2", "A-3"]

        async def come() -> None:
            async with example.engine(shop) as relevo:
                for order in orders * 2:
                    await relevo.enqueue(
                        shop.Charge(order=order, cents=1_999, payment_method="pm_card_visa")
                    )
                for event, order in [("1", "A-1"), ("1", "A-1"), ("2", "A-1"), ("3", "A-2")]:
                    paid = {"id": f"pi_{order}", "metadata": {"order": order}}
                    body = {"id": f"evt_{event}", "type": "payment_intent.succeeded"}
                    answer = await deliver(
                        relevo, "/hooks/stripe", json={**body, "data": {"object": paid}}
                    )
                    assert answer.status == 200

        asyncio.run(come())
        example.survive("shop:app", provider, lambda: finished(example))
        assert sorted(provider.effects) == orders
        assert rows(example, "select * from parcels") == [("A-1", "pi_A-1"), ("A-2", "pi_A-2")]


def test_a_nightly_import_saves_each_product_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def supplier(provider: Provider, asked: Asked) -> Answer:
        page = int(asked.query["page"])
        provider.did(f"page {page}")
        products = [{"sku": f"{page}-{number}", "cents": number} for number in range(5)]
        return 200, {"products": products, "next": page + 1 if page < 4 else None}

    with serving(Provider(supplier)) as provider:
        monkeypatch.setenv("SUPPLIER_URL", provider.url)
        provider.faults = ["", "kill", "lose"]
        example = make("nightly_import")
        catalogue = example.module("catalogue")

        async def night() -> None:
            async with example.engine(catalogue) as relevo:
                for _ in range(2):
                    await relevo.enqueue(catalogue.ImportPage(day="2026-11-19", page=1))

        asyncio.run(night())
        skus = sorted((f"{page}-{number}",) for page in range(1, 5) for number in range(5))
        example.survive(
            "catalogue:app",
            provider,
            lambda: len(rows(example, "select sku from products")) >= len(skus),
        )
        assert rows(example, "select sku from products") == skus


def test_an_order_that_two_services_know_is_invoiced_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    example = make("two_services")
    monkeypatch.setenv("BILLING_SECRET", "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    billing = example.module("billing")
    orders = example.module("orders")
    told = Example("two_services", tmp_path)
    told.url = f"sqlite:///{tmp_path / 'billing.db'}"

    def door(provider: Provider, asked: Asked) -> Answer:
        headers = {name: asked.headers[name] for name in asked.headers if name[:8] == "webhook-"}

        async def take() -> int:
            async with told.engine(billing) as relevo:
                answer = await deliver(
                    relevo, "/hooks/orders", body=asked.body, headers=headers, sign=False
                )
                return answer.status

        status = asyncio.run(take())
        provider.did(f"{asked.json['order']} {status}")
        return status, {"ok": status == 200}

    with serving(Provider(door)) as provider:
        monkeypatch.setenv("BILLING_URL", f"{provider.url}/hooks/orders")
        provider.faults = ["kill", "lose"]

        async def come() -> None:
            async with example.engine(orders) as relevo:
                for order in ["A-1", "A-2", "A-1"]:
                    await relevo.enqueue(orders.TellBilling(order=order, cents=100))

        asyncio.run(come())
        example.survive("orders:app", provider, lambda: finished(example))
        assert len(provider.effects) == 4  # two of them were told again
        assert {effect.partition(" ")[2] for effect in provider.effects} == {"200"}
        with told.worker("billing:app"):
            told.until(lambda: finished(told))
        assert rows(told, "select * from invoices") == [("A-1", 100), ("A-2", 100)]


def test_a_model_reads_each_page_and_is_paid_for_each_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(provider: Provider, asked: Asked) -> Answer:
        question = asked.json["messages"][0]["content"]
        provider.did(question)
        said = {"role": "assistant", "content": f"seen: {question.splitlines()[-1]}"}
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        body = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m"}
        return 200, {**body, "choices": [choice]}

    with serving(Provider(model)) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        provider.faults = ["", "kill"]
        example = make("llm_pipeline")
        receipts = example.module("receipts")
        pages = ["Coffee 2.50", "Bread 1.20", "Milk 0.99"]

        async def come() -> None:
            async with example.engine(receipts) as relevo:
                for _ in range(2):
                    await relevo.start(receipts.pipeline("d-1", pages), key="d-1")

        asyncio.run(come())
        example.survive("receipts:app", provider, lambda: finished(example))
        # The answer of one call was lost with its worker; no other page was asked for twice.
        assert len(provider.effects) <= len(pages) + 1 + len(pages)
        summed = [asked for asked in provider.effects if asked.startswith("Sum up")]
        assert len(summed) == 1
        assert all(page in summed[0] for page in pages)


def test_an_issue_of_github_gets_one_comment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    comments: dict[str, list[dict[str, Any]]] = {}

    def github(provider: Provider, asked: Asked) -> Answer:
        base = provider.url
        parts = asked.path.strip("/").split("/")
        if parts[-1] == "comments":
            known = comments.setdefault(parts[-2], [])
            if asked.method == "GET":
                return 200, known
            provider.did(parts[-2])
            known.append({"id": len(known) + 1, "body": asked.json["body"]})
            return 201, known[-1]
        if "issues" in parts:
            return 200, {"number": int(parts[-1]), "url": f"{base}{asked.path}"}
        return 200, {"full_name": "octo/hello", "url": f"{base}/repos/octo/hello"}

    with serving(Provider(github)) as provider:
        monkeypatch.setenv("GITHUB_API", provider.url)
        monkeypatch.setenv("GITHUB_TOKEN", "t")
        monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", "a secret of tests")
        provider.faults = ["kill", "lose"]
        example = make("github")
        triage = example.module("triage")

        async def come() -> None:
            async with example.engine(triage) as relevo:
                for event, number in [("1", 7), ("1", 7), ("2", 7), ("3", 8)]:
                    answer = await deliver(
                        relevo,
                        "/hooks/github",
                        json={
                            "action": "opened",
                            "issue": {"number": number},
                            "repository": {"full_name": "octo/hello"},
                        },
                        headers={"X-GitHub-Delivery": event, "X-GitHub-Event": "issues"},
                    )
                    assert answer.status == 200

        asyncio.run(come())
        example.survive("triage:app", provider, lambda: finished(example))
        assert sorted(provider.effects) == ["7", "8"]


def test_a_deploy_is_posted_to_slack_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[dict[str, Any]] = []

    def slack(provider: Provider, asked: Asked) -> Answer:
        if asked.path.endswith("chat.postMessage"):
            sent = asked.json if asked.body[:1] == b"{" else asked.form
            mark = sent["metadata"]
            mark = json.loads(mark) if isinstance(mark, str) else mark
            posted.append({"ts": str(len(posted) + 1), "text": sent["text"], "metadata": mark})
            provider.did(sent["text"])
            return 200, {"ok": True, **posted[-1]}
        return 200, {"ok": True, "messages": posted}

    with serving(Provider(slack)) as provider:
        monkeypatch.setenv("SLACK_API", f"{provider.url}/api/")
        monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb" + "-1")
        monkeypatch.setenv("SLACK_CHANNEL", "C1")
        monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", "a secret of tests")
        provider.faults = ["kill", "lose"]
        example = make("slack")
        deploys = example.module("deploys")

        async def come() -> None:
            async with example.engine(deploys) as relevo:
                for event, run in [("1", 7), ("1", 7), ("2", 7), ("3", 8)]:
                    body = {"id": run, "name": f"deploy {run}", "conclusion": "success"}
                    answer = await deliver(
                        relevo,
                        "/hooks/github",
                        json={"action": "completed", "workflow_run": body},
                        headers={"X-GitHub-Delivery": event, "X-GitHub-Event": "workflow_run"},
                    )
                    assert answer.status == 200

        asyncio.run(come())
        example.survive("deploys:app", provider, lambda: finished(example))
        assert sorted(provider.effects) == ["deploy 7: success", "deploy 8: success"]


def test_an_order_of_shopify_is_tagged(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: dict[str, str] = {}

    def shopify(provider: Provider, asked: Asked) -> Answer:
        order = asked.json["order"]
        provider.did(str(order["id"]))
        tags[str(order["id"])] = order["tags"]
        return 200, {"order": order}

    with serving(Provider(shopify)) as provider:
        monkeypatch.setenv("SHOPIFY_URL", provider.url)
        monkeypatch.setenv("SHOPIFY_TOKEN", "t")
        monkeypatch.setenv("SHOPIFY_CLIENT_SECRET", "a secret of tests")
        provider.faults = ["kill", "lose"]
        example = make("shopify")
        stock = example.module("stock")

        async def come() -> None:
            async with example.engine(stock) as relevo:
                for event, order in [("1", 7), ("1", 7), ("2", 7), ("3", 8)]:
                    details = {"credit_card_number": "•••• •••• •••• 4242", "cvv_result_code": "M"}
                    answer = await deliver(
                        relevo,
                        "/hooks/shopify",
                        json={"id": order, "payment_details": details},
                        headers={
                            "X-Shopify-Webhook-Id": event,
                            "X-Shopify-Topic": "orders/create",
                        },
                    )
                    assert answer.status == 200

        asyncio.run(come())
        example.survive("stock:app", provider, lambda: finished(example))
        assert tags == {"7": "reserved", "8": "reserved"}
        assert len(provider.effects) == 4  # each once more, where its answer was lost


def test_a_reminder_is_sent_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def twilio(provider: Provider, asked: Asked) -> Answer:
        if asked.method == "POST":
            form = asked.form
            sent.append({"sid": f"SM{len(sent)}", "body": form["Body"], "to": form["To"]})
            provider.did(form["To"])
            return 201, sent[-1]
        to = asked.query["To"]
        return 200, {"messages": [each for each in sent if each["to"] == to], "page_size": 50}

    with serving(Provider(twilio)) as provider:
        monkeypatch.setenv("TWILIO_API", provider.url)
        monkeypatch.setenv("TWILIO_ACCOUNT_SID", "AC" + "0" * 32)
        monkeypatch.setenv("TWILIO_AUTH_TOKEN", "token")
        monkeypatch.setenv("TWILIO_FROM", "+34600000000")
        monkeypatch.setenv("RELEVO_PUBLIC_URL", "https://api.example.com")
        provider.faults = ["kill", "lose"]
        example = make("twilio")
        reminders = example.module("reminders")

        async def come() -> None:
            async with example.engine(reminders) as relevo:
                for number in [1, 2, 1]:
                    await relevo.enqueue(
                        reminders.Remind(f"a-{number}", f"+3460000001{number}", "Tomorrow at ten")
                    )
                for status in ["sent", "delivered", "delivered"]:
                    answer = await deliver(
                        relevo,
                        "/hooks/twilio",
                        body=f"MessageSid=SM0&MessageStatus={status}",
                        headers={"content-type": "application/x-www-form-urlencoded"},
                    )
                    assert answer.status == 200

        asyncio.run(come())
        example.survive("reminders:app", provider, lambda: finished(example))
        assert sorted(provider.effects) == ["+34600000011", "+34600000012"]
        assert rows(example, "select * from statuses") == [("SM0", "delivered"), ("SM0", "sent")]


def test_no_example_makes_a_mistake_that_relevo_check_finds() -> None:
    folders = sorted(path.parent for path in EXAMPLES.glob("*/README.md"))
    assert len(folders) == 9
    command = [sys.executable, "-m", "relevo.cli", "check", *map(str, folders)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
