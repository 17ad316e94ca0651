"""Libraries that are for Node alone, as judges of calls that are the same at every run.

Their verdicts are kept in node_verdicts.json, a bit for each call, and what GitHub's signs beside
the test that sends it. To ask them again:

    npm install --prefix DIRECTORY @octokit/webhooks-methods @shopify/shopify-api @linear/sdk \
        @notionhq/client
    python -m tests.unit.node_oracles DIRECTORY
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from relevo import sources
from tests.unit.oracles import FORM, OTHER, SECRET, Call, Oracle, event, hexed, is_plain, mac, made

KEPT = Path(__file__).with_name("node_verdicts.json")
NOW = 1_767_225_600
COUNT = 2_000


class NodeOracle(Oracle):
    package: ClassVar[str]
    verdict: ClassVar[str]  # an expression of `call`

    def judge(self, call: Call) -> bool:
        raise AssertionError("the verdicts of a library of Node are recorded: see verdicts()")

    def key(self, call: Call) -> str:
        return OTHER if call.random.random() < 0.1 else SECRET


class GitHub(NodeOracle):
    name, headers, package = "github", ("X-Hub-Signature-256",), "@octokit/webhooks-methods"
    source = sources.github(SECRET)
    verdict = "library.verify(secret, call.body, call.headers['X-Hub-Signature-256'])"

    def make(self, call: Call) -> None:
        super().make(call)
        if call.random.random() < 0.3:  # the form that is GitHub's default, signed as it is
            call.body = b"payload=" + base64.urlsafe_b64encode(call.body)
            call.headers["Content-Type"] = FORM

    def sign(self, call: Call) -> None:
        call.headers["X-Hub-Signature-256"] = f"sha256={hexed(self.key(call), call.body)}"


class Shopify(NodeOracle):
    name, headers, package = "shopify", ("X-Shopify-Hmac-Sha256",), "@shopify/shopify-api"
    source = sources.shopify(SECRET)
    verdict = """library.shopifyApi({
        apiKey: "k", apiSecretKey: secret, hostName: "app.example.com", isEmbeddedApp: true,
        apiVersion: Object.values(library.ApiVersion).at(-1), logger: {level: -1},
    }).webhooks.validate({
        rawBody: call.body,
        rawRequest: {method: "POST", url: "/hook", headers: call.headers},
        rawResponse: {},
    }).then(found => found.valid)"""

    def sign(self, call: Call) -> None:
        seal = base64.b64encode(mac(self.key(call), call.body)).decode()
        call.headers |= {
            "X-Shopify-Hmac-Sha256": seal,
            "X-Shopify-Topic": "orders/create",
            "X-Shopify-Shop-Domain": "a.myshopify.com",
            "X-Shopify-Webhook-Id": "w1",
            "X-Shopify-API-Version": "2026-07",
        }


class Linear(NodeOracle):
    name, headers, package = "linear", ("Linear-Signature",), "@linear/sdk"
    has_time, in_milliseconds, window = True, True, 60
    source = sources.linear(SECRET)
    verdict = """new webhooks.LinearWebhookClient(secret).verify(
        Buffer.from(call.raw, "base64"), call.headers["Linear-Signature"])"""

    def make(self, call: Call) -> None:
        time = int(call.at) if is_plain(call.at) else call.at
        call.body = json.dumps({**event(call.random), "webhookTimestamp": time}).encode()

    def sign(self, call: Call) -> None:
        call.headers["Linear-Signature"] = hexed(self.key(call), call.body)


class Notion(NodeOracle):
    name, headers, package = "notion", ("X-Notion-Signature",), "@notionhq/client"
    source = sources.notion(SECRET)
    stricter = frozenset({"spelling"})
    verdict = """library.verifyWebhookSignature({body: call.body, verificationToken: secret,
        signature: call.headers["X-Notion-Signature"]})"""

    def sign(self, call: Call) -> None:
        call.headers["X-Notion-Signature"] = f"sha256={hexed(self.key(call), call.body)}"


ORACLES: tuple[Callable[[], NodeOracle], ...] = (GitHub, Shopify, Linear, Notion)


def calls(oracle: Oracle) -> Iterator[Call]:
    chance = random.Random(1)
    for _ in range(COUNT):
        call = made(oracle, chance, NOW)
        # A header that is asked of no library says nothing of it.
        call.headers.update({name: call.headers.get(name, "") for name in oracle.headers})
        yield call


def digest(oracle: Oracle) -> str:
    """What tells that the calls are those that were judged."""
    seen = hashlib.sha256()
    for call in calls(oracle):
        seen.update(repr((call.body, sorted(call.headers.items()), call.twice)).encode())
    return seen.hexdigest()


def verdicts(oracle: Oracle) -> list[bool]:
    """What the library said of each call."""
    kept = json.loads(KEPT.read_text())[oracle.name]
    assert kept["calls"] == digest(oracle), f"the calls are others: {__doc__}"
    return [bit == "1" for bit in f"{int(kept['verdicts'], 16):0{COUNT}b}"]


_PROGRAM = """
import {{ readFileSync }} from "node:fs";
{imports}
const secret = {secret};
Date.now = () => {now};
let bits = "";
for (const call of JSON.parse(readFileSync(0))) {{
  let verdict = false;
  try {{ verdict = await {verdict}; }} catch {{}}
  bits += verdict === true ? "1" : "0";
}}
console.log(bits);
"""


def ask(oracle: NodeOracle, folder: Path) -> dict[str, Any]:
    imports = [f'import * as library from "{oracle.package}";']
    if oracle.name == "shopify":
        imports.append('import "@shopify/shopify-api/adapters/node";')
    if oracle.name == "linear":
        imports.append('import * as webhooks from "@linear/sdk/webhooks";')
    program = folder / "ask.mjs"
    program.write_text(
        _PROGRAM.format(
            imports="\n".join(imports),
            secret=json.dumps(SECRET),
            now=NOW * 1000,
            verdict=oracle.verdict,
        )
    )
    asked = [
        {
            "body": call.body.decode("utf-8", "replace"),
            "raw": base64.b64encode(call.body).decode(),
            "headers": {name: call.header(name) for name in call.headers},
        }
        for call in calls(oracle)
    ]
    said = subprocess.run(
        ["node", program], input=json.dumps(asked).encode(), capture_output=True, check=True
    )
    bits = said.stdout.decode().split()[-1]
    assert len(bits) == COUNT, said.stdout[-500:]
    listed = json.loads((folder / "node_modules" / oracle.package / "package.json").read_text())
    return {
        "library": f"{oracle.package} {listed['version']}",
        "calls": digest(oracle),
        "verdicts": f"{int(bits, 2):x}",
    }


def sign(secret: str, bodies: list[str], folder: Path) -> list[str]:
    """What GitHub's library signs of some bodies."""
    program = folder / "sign.mjs"
    program.write_text(
        """
        import { readFileSync } from "node:fs";
        import { sign } from "@octokit/webhooks-methods";
        const [secret, bodies] = JSON.parse(readFileSync(0));
        console.log(JSON.stringify(await Promise.all(bodies.map(each => sign(secret, each)))));
        """
    )
    asked = json.dumps([secret, bodies]).encode()
    said = subprocess.run(["node", program], input=asked, capture_output=True, check=True)
    return json.loads(said.stdout)


if __name__ == "__main__":
    from tests.examples import test_webhooks

    sent = [call.body.decode() for call in test_webhooks.github()]
    seals = sign(test_webhooks.SECRET, sent, Path(sys.argv[1]))
    test_webhooks.SIGNED.write_text(json.dumps(seals, indent=0) + "\n")
    answers = {make().name: ask(make(), Path(sys.argv[1])) for make in ORACLES}
    KEPT.write_text(json.dumps(answers, indent=1) + "\n")
