"""The outside: WhatsApp's Graph API, Gemini and QStash, opened together."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from relevo import Relevo
from relevo.apps.expenses.gateways.gemini import Gemini
from relevo.apps.expenses.gateways.graph import Graph
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.bridges.qstash import QStash

__all__ = ["Gateways", "Gemini", "Graph", "open_gateways"]


@dataclass(frozen=True, slots=True)
class Gateways:
    """Those that are configured."""

    graph: Graph
    gemini: Gemini | None
    qstash: QStash | None


@asynccontextmanager
async def open_gateways(relevo: Relevo) -> AsyncGenerator[Gateways]:
    settings = relevo.use(ExpensesSettings)
    async with AsyncExitStack() as opened:
        graph = Graph(settings.graph_url, settings.graph_version, settings.access_token)
        opened.push_async_callback(graph.close)
        gemini = qstash = None
        if settings.gemini_key:
            gemini = Gemini(settings.gemini_key, settings.gemini_model, settings.gemini_url)
            opened.push_async_callback(gemini.close)
        if settings.qstash_token:
            qstash = QStash(settings.qstash_token, settings.qstash_url)
            opened.push_async_callback(qstash.close)
        yield Gateways(graph, gemini, qstash)
