"""relevo flows: list, show, explain, cancel, retry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from relevo.cli.graph import drawn
from relevo.cli.tables import ago, at, counted, fields, short, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    Cursor,
    Limit,
    NoteOption,
    Reveal,
    Terminal,
    Verbs,
)
from relevo.desk import FlowRow, FlowView, JoinedNode, Reason, name_of, view
from relevo.job import State

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Flows: list, show, explain, cancel, retry.", name="flows")

Anything = Annotated[
    str, typer.Argument(metavar="FLOW", help="Its id, the id of one of its jobs, or its key.")
]
FEW = 3


@group.verb("ls")
async def ls(
    terminal: Terminal,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Only with a live node.")
    ] = False,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> None:
    """List flows, newest first."""
    async with terminal.desk() as desk:
        rows, more = await desk.flows(unfinished=unfinished, cursor=cursor, limit=limit)
    terminal.show({"flows": rows, "cursor": more}, lambda: flows_table(rows))
    if more and not terminal.json:
        terminal.warn(f"there may be more: --cursor {more}")


@group.verb("show")
async def show(terminal: Terminal, flow: Anything, reveal: Reveal = False) -> None:
    """Draw a flow: each node, and below it what it waits for."""
    async with terminal.desk() as desk:
        seen = await desk.flow(flow)
    if not reveal:
        seen = replace(seen, nodes=[desk.masked(node) for node in seen.nodes])
    shown = {
        "id": seen.id,
        "key": seen.key,
        "name": seen.name,
        "state": seen.state,
        "counts": seen.counts,
        "is_cut": seen.is_cut,
        "joined": seen.joined,
        "nodes": [{"layer": seen.layers[node.id], **view(node)} for node in seen.nodes],
    }
    terminal.show(shown, lambda: flow_text(seen))


@group.verb("explain")
async def explain(terminal: Terminal, flow: Anything) -> None:
    """Say of each node that has not ended well what it waits for, why, and what to do."""
    async with terminal.desk() as desk:
        seen = await desk.flow(flow)
        seen = replace(seen, nodes=[desk.masked(node) for node in seen.nodes])
        reasons = await desk.explain(seen)
    shown = {"id": seen.id, "key": seen.key, "state": seen.state, "reasons": reasons}
    terminal.show(shown, lambda: reasons_table(reasons) if reasons else "every node ended well")


@group.verb("cancel")
async def cancel(terminal: Terminal, flow: Anything, note: NoteOption = "") -> int:
    """End every node that has not ended."""
    async with terminal.desk() as desk:
        seen = await desk.flow(flow)
        changed = await desk.cancel_flow(seen, terminal.person, note)
    return _report(terminal, seen, changed, "cancelled", "nothing of it is left to cancel")


@group.verb("retry")
async def retry(
    terminal: Terminal,
    flow: Anything,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Only this one and what it needs.")
    ] = None,
    note: NoteOption = "",
) -> int:
    """Retry what ended badly, children before those that wait for them."""
    async with terminal.desk() as desk:
        seen = await desk.flow(flow)
        changed = await desk.retry_flow(seen, terminal.person, note, node=node)
    return _report(terminal, seen, changed, "retried", "nothing in it ended badly and is needed")


def _report(
    terminal: Terminal, flow: FlowView, changed: dict[str, bool], what: str, nothing: str
) -> int:
    names = {node.id: name_of(node) for node in flow.nodes}
    done = [names[id] for id, is_changed in changed.items() if is_changed]
    refused = [names[id] for id, is_changed in changed.items() if not is_changed]
    if not terminal.json and refused:
        terminal.warn(f"not {what}: {_some(refused)}; see `relevo flows explain {flow.id}`")
    shown = {"id": flow.id, "changed": done, "refused": refused}
    many = counted(len(done), "node")
    terminal.show(shown, lambda: f"{many} {what}: {_some(done)}" if changed else nothing)
    return PROBLEM if refused or not changed else OK


def _some(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


def flows_table(rows: list[FlowRow]) -> RenderableType:
    return table(
        ("id", "state", "nodes", "age", "name"),
        ((row.id, row.state, _told(row.counts), ago(row.inserted_at), row.name) for row in rows),
    )


def _told(counts: dict[State, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())


def flow_text(flow: FlowView) -> RenderableType:
    from rich.console import Group

    head = fields(
        (
            ("flow", flow.id),
            ("name", flow.name),
            ("state", flow.state),
            ("begun", at(min(node.inserted_at for node in flow.nodes))),
            ("nodes", f"{len(flow.nodes):,}: {_told(flow.counts)}"),
        )
    )
    lines: list[Any] = [head, "", *drawn(flow)]
    if flow.joined:
        lines += ["", joined_table(flow.joined)]
    if flow.is_cut:
        lines.append("… and more nodes than are shown here")
    return Group(*lines)


def joined_table(joined: list[JoinedNode]) -> RenderableType:
    """The nodes that other jobs stand for."""
    return table(
        ("joined", "needed by", "state", "job", "flow"),
        ((each.node, each.needed_by, each.state, each.id, each.flow) for each in joined),
    )


def reasons_table(reasons: list[Reason]) -> RenderableType:
    """A line for each reason; nodes that share one share the line."""
    alike: dict[tuple[Any, ...], list[Reason]] = {}
    for each in reasons:
        alike.setdefault((each.state, each.why, each.advice, each.waits_for), []).append(each)
    return table(
        ("node", "state", "since", "why", "what to do"),
        (
            (
                some[0].node if len(some) == 1 else f"{len(some):,} × {some[0].node} …",
                some[0].state,
                ago(min((each.since_at for each in some if each.since_at), default=None)),
                _why(some[0]),
                some[0].advice or None,
            )
            for some in alike.values()
        ),
    )


def _why(reason: Reason) -> str | None:
    waits = f": {_some(list(reason.waits_for), FEW)}" if reason.waits_for else ""
    return short(f"{reason.why}{waits}", 160)
