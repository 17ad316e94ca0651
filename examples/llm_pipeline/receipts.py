"""A pipeline: the pages of a document are read by a model, then summed up by it; each call once."""

import asyncio
import os
from typing import Any

import openai

from relevo import App, Command, Context, Flow, Relevo, exponential

app = App("receipts")
BACKOFF = exponential("2s", cap="5m")


class ReadPage(Command, queue="receipts:pages:read", attempts=8, backoff=BACKOFF, timeout="2m"):
    document: str
    page: int
    text: str


class SumUp(Command, queue="receipts:documents:sum-up", attempts=8, backoff=BACKOFF, timeout="2m"):
    document: str


def ask(key: str, question: str) -> Any:
    client = openai.OpenAI(max_retries=0, timeout=60)  # relevo tries again
    return client.chat.completions.create(
        model="gpt-4.1-mini",
        messages=[{"role": "user", "content": question}],
        extra_headers={"Idempotency-Key": key},
    )


def said(answer: Any) -> str:
    return answer.choices[0].message.content


# A model that was asked twice costs twice and does no harm: the call may be repeated.
@app.worker
async def read(order: ReadPage, ctx: Context) -> str:
    question = f"What was bought, for how much?\n\n{order.text}"
    return await ctx.once("read", lambda key: ask(key, question), keep=said, repeatable=True)


@app.worker
async def sum_up(order: SumUp, ctx: Context) -> str:
    pages = await ctx.results()
    question = "Sum up:\n\n" + "\n".join(str(pages[name]) for name in sorted(pages))
    return await ctx.once("sum-up", lambda key: ask(key, question), keep=said, repeatable=True)


def pipeline(document: str, pages: list[str]) -> Flow:
    flow = Flow("document")
    read = [
        flow.add(ReadPage(document, number, text), name=f"page-{number:03}")
        for number, text in enumerate(pages, 1)
    ]
    flow.add(SumUp(document), name="sum", after=read)
    return flow


async def main() -> None:
    async with Relevo(os.environ.get("RELEVO_STORE_URL"), apps=[app]) as relevo:
        await relevo.start(pipeline("d-1", ["Coffee 2.50", "Bread 1.20"]), key="d-1")


if __name__ == "__main__":
    asyncio.run(main())
