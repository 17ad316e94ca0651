"""Pages that are written from the source: `python -m tests.edges.reference` writes them anew."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import relevo
from relevo import sources
from relevo.api import CALLS
from relevo.cli import _program  # pyright: ignore[reportPrivateUsage] - its own tree of verbs
from relevo.settings import describe
from relevo.signatures import Basic, SharedSecret
from relevo.sources import Source
from tests.providers import EVERY, event_of

ROOT = Path(__file__).parents[2]


def pages() -> dict[Path, str]:
    """Every page, by its path."""
    return {
        ROOT / "docs/reference/settings.md": _settings(),
        ROOT / "docs/reference/cli.md": _cli(),
        ROOT / "docs/reference/api.md": _api(),
        ROOT / "docs/reference/http.md": _http(),
        ROOT / "docs/reference/providers.md": _providers(),
        ROOT / "deploy/env.example": _env(),
    }


def _settings() -> str:
    lines = [
        "# Settings",
        "",
        "Read from the environment once, at the start; a name that is none, or a value that cannot",
        "be, stops it with every problem named at once.",
        "",
        "| variable | default | is |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `{row.variable}` | {f'`{row.default}`' if row.default else '–'} | {row.meaning} |"
        for row in describe()
    ]
    return "\n".join(lines) + "\n"


def _env() -> str:
    lines = ["# Settings of relevo; the apps' own are on their pages under docs/systems.", ""]
    for row in describe():
        lines += [f"# {row.meaning}", f"#{row.variable}={row.default}", ""]
    lines += [
        "# What the compose files want besides; letters and digits: they stand in addresses",
        "",
    ]
    lines += [f"#{name}={default}" for name, default in _composed().items()]
    return "\n".join([*lines, ""])


def _composed() -> dict[str, str]:
    """The variables of the compose files that are no settings, and their defaults."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "deploy").glob("compose*.yaml")):
        for name, default in re.findall(r"\$\{(\w+)(?::-(\w*))?", path.read_text()):
            if not name.startswith("RELEVO_"):
                found[name] = found.get(name) or default
    return found


def _cli() -> str:
    lines = [
        "# Command line",
        "",
        "Every verb takes `--store`, `--database` and `--json`, before or after its name. Exit",
        "codes: 0 it worked, 1 a problem was found or nothing matched, 2 the call is wrong, 3 the",
        "store does not answer, 130 interrupted.",
        "",
        "| command | does |",
        "| --- | --- |",
    ]
    return "\n".join([*lines, *_verbs(_program(), "relevo")]) + "\n"


def _verbs(command: Any, path: str) -> list[str]:
    lines: list[str] = []
    for name, each in sorted(command.commands.items()):
        if getattr(each, "commands", None):
            lines += _verbs(each, f"{path} {name}")
            continue
        arguments = [
            each_.human_readable_name if hasattr(each_, "human_readable_name") else each_.name
            for each_ in each.params
            if each_.param_type_name == "argument"
        ]
        first = (each.help or "").strip().split("\n\n")[0].replace("\n", " ").strip()
        call = " ".join([path, name, *map(str, arguments)]).replace("|", r"\|")
        lines.append(f"| `{call}` | {first} |")
    return lines


def _api() -> str:
    lines = [
        "# Python API",
        "",
        "What `from relevo import …` gives. The friends of a test are in `relevo.testing`.",
        "",
        "| name | is |",
        "| --- | --- |",
    ]
    lines += [_named(relevo, name) for name in relevo.__all__]
    lines += [
        "",
        "## Sources",
        "",
        "`from relevo import sources`, then `source=sources.stripe(secret)`: who sends a webhook.",
        "What they are built from is in `relevo.signatures`.",
        "",
        "| name | is |",
        "| --- | --- |",
    ]
    lines += [_named(sources, name, "sources.") for name in sources.__all__]
    return "\n".join(lines) + "\n"


def _providers() -> str:
    lines = [
        "# Providers",
        "",
        "What each source knows of its provider: how its calls are signed, how long it waits,",
        "which statuses it takes for success, after which pauses it sends again what failed, what",
        "a wrong signature is answered, and what makes it stop. Some do not publish their pauses;",
        "theirs are those that are said or were seen. A row has more, as",
        "[write your own source](../guides/write-your-own-source.md) shows.",
        "",
        "| source | signed | waits | success | sends again after | wrong signature | stops |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_provider(name, source) for name, source in EVERY.items()]
    lines += [
        "",
        "*A hint* means that the signature does not cover the whole event: fetch the object",
        "before an effect. *A secret* means that nothing is signed and a secret comes along.",
        "A provider without pauses sends once: ask its API for what was missed.",
        "",
        "## What a restore has lost",
        "",
        "How a provider is asked for what it was answered already, of the time between a copy and",
        "its restore; of those that are not here their own documentation tells.",
        "`relevo database after-restore` names the endpoints and the time.",
        "",
        "| source | sends again |",
        "| --- | --- |",
    ]
    lines += [f"| `{name}` | {source.again} |" for name, source in EVERY.items() if source.again]
    lines += [
        "",
        "## Types and ids",
        "",
        "What `delivery.event_type` and `delivery.event_id` are of a call of each; `types=` takes",
        "the types as they stand here, with `*` for any part.",
        "",
        "| source | a type | an id |",
        "| --- | --- | --- |",
    ]
    for name in EVERY:
        if (call := event_of(name)) is not None:
            lines.append(f"| `{name}` | `{call.event_type}` | `{call.event_id}` |")
    return "\n".join(lines) + "\n"


def _provider(name: str, source: Source) -> str:
    scheme = source.scheme
    if isinstance(scheme, SharedSecret | Basic):
        signed = "a secret"
    elif not source.body_is_signed:
        signed = "a hint"
    else:
        signed = "URL and body" if scheme.needs_url else "body"
    success = source.success
    told = (
        f"{success.start}–{success.stop - 1}"
        if isinstance(success, range)
        else ", ".join(map(str, success))
    )
    pauses = ", ".join(
        f"{_time(pause)} × {count}" if (count := len(list(alike))) > 1 else _time(pause)
        for pause, alike in groupby(source.retries)
    )
    if len(source.retries) > 1:
        pauses += f" (in all {_time(sum(source.retries, timedelta(0)))})"
    cells = (f"`{name}`", signed, _time(source.waits), told, pauses or "–")
    return "| " + " | ".join((*cells, str(source.refused), source.ends or "–")) + " |"


def _time(pause: timedelta) -> str:
    seconds = pause.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _named(place: object, name: str, prefix: str = "") -> str:
    found: Any = getattr(place, name)
    is_ours = inspect.isclass(found) or inspect.isfunction(found)
    doc = inspect.getdoc(found) if is_ours else None
    first = (doc or "").split("\n\n")[0].replace("\n", " ")
    return f"| `{prefix}{name}` | {first.replace('|', chr(92) + '|')} |"


def _http() -> str:
    lines = [
        "# HTTP API",
        "",
        "Everything a person may do at the desk, as JSON under `/api`; `/api/docs` is this page",
        "with every field, `/api/openapi.json` the OpenAPI 3.1 document it is made from.",
        "",
        "Send `Authorization: Bearer rlv_…`, a token of `relevo tokens add`. Lists answer",
        '`{"items": […], "cursor": …}`; that cursor is the next question\'s `cursor=`, `limit=`',
        "goes up to 200. GET takes a query, the others a JSON body in which only the fields of",
        "that call may stand. A moment is ISO text. What went wrong comes as",
        '`{"error": …, "message": …}`: 400 and 422 say what is written wrongly, 401 who is not',
        "known, 403 whose role does not reach that far, 404 what is not there or not for you, 409",
        "what the job is in no state for, 503 that the store does not answer.",
        "",
        "| call | role | does |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{call.verb} {call.plain_path}` | {call.role} | {call.says} |" for call in CALLS]
    lines += [
        "",
        "Besides: `GET /health` (`ok`, `degraded` or `not ok`; why, for people and tokens) and",
        "`GET /ready` (this process takes deliveries and consumes) for everyone, `GET /metrics`",
        "for this machine, people and tokens.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
