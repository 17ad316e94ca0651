"""A flow as a drawing: boxes in columns, each to the right of those it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from relevo.desk import FlowView, Reason, name_of
from relevo.job import LIVE, Job, State

FOLD = 4
"""So many equal siblings become one box."""
BOXES = 160
WIDTH, HEIGHT = 216, 62
GAP_X, GAP_Y, MARGIN = 64, 16, 10
SWEEPS = 4

_BAD = frozenset({State.DEAD, State.CANCELLED, State.HELD})


class Box(msgspec.Struct, kw_only=True):
    """One node, or several that look alike."""

    nodes: list[Job]
    layer: int
    why: str = ""
    x: int = 0
    y: int = 0

    @property
    def job(self) -> Job:
        return self.nodes[0]

    @property
    def name(self) -> str:
        if len(self.nodes) == 1:
            return name_of(self.job)
        return f"{len(self.nodes):,} × {self.job.kind}"

    @property
    def middle(self) -> float:
        return self.y + HEIGHT / 2


class Line(NamedTuple):
    """What one box waits for."""

    path: str
    may_fail: bool
    is_over: bool  # the one it waits for has ended


class Drawing(NamedTuple):
    """Boxes, lines, and how many nodes found no place."""

    boxes: list[Box]
    lines: list[Line]
    width: int
    height: int
    left_out: int


def drawn(flow: FlowView, reasons: Sequence[Reason]) -> Drawing:
    """Lay a flow out. The same flow always gives the same drawing."""
    whys = {reason.id: reason.why for reason in reasons}
    boxes = _boxes(flow)
    shown = sorted(boxes, key=_interest)[:BOXES]
    shown.sort(key=lambda box: box.layer)
    # Layers without a box would be empty columns.
    columns = {layer: place for place, layer in enumerate(sorted({box.layer for box in shown}))}
    of_node: dict[str, Box] = {}
    for box in shown:
        box.layer = columns[box.layer]
        box.why = whys.get(box.job.id, "")
        of_node |= {node.id: box for node in box.nodes}
    edges = _edges(shown, of_node)
    layers: list[list[Box]] = [[] for _ in columns]
    for box in shown:
        layers[box.layer].append(box)
    _order(layers, edges)
    tallest = max((len(layer) for layer in layers), default=0)
    for number, layer in enumerate(layers):
        top = MARGIN + (tallest - len(layer)) * (HEIGHT + GAP_Y) // 2
        for place, box in enumerate(layer):
            box.x = MARGIN + number * (WIDTH + GAP_X)
            box.y = top + place * (HEIGHT + GAP_Y)
    return Drawing(
        boxes=shown,
        lines=[_line(child, parent, may_fail) for child, parent, may_fail in edges],
        width=2 * MARGIN + len(layers) * (WIDTH + GAP_X) - GAP_X,
        height=2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y,
        left_out=sum(len(box.nodes) for box in boxes) - len(of_node),
    )


def _boxes(flow: FlowView) -> list[Box]:
    alike: dict[object, list[Job]] = {}
    for node in flow.nodes:
        failure = node.failure.fingerprint if node.failure is not None and node.ended_at else ""
        after = frozenset((edge.child, edge.policy) for edge in node.after)
        face = (node.kind, node.queue, node.state, failure, after, frozenset(node.before))
        alike.setdefault(face, []).append(node)
    boxes: list[Box] = []
    for nodes in alike.values():
        groups = [nodes] if len(nodes) >= FOLD else [[node] for node in nodes]
        boxes += [Box(nodes=group, layer=flow.layers[group[0].id]) for group in groups]
    return boxes


def _interest(box: Box) -> tuple[int, int]:
    """What a person looks for comes first, should there be too much to draw."""
    rank = 0 if box.job.state in _BAD else 1 if box.job.state in LIVE else 2
    return rank, box.layer


def _edges(boxes: list[Box], of_node: dict[str, Box]) -> list[tuple[Box, Box, bool]]:
    found: dict[tuple[int, int], tuple[Box, Box, bool]] = {}
    for parent in boxes:
        for edge in parent.job.after:
            child = of_node.get(edge.child)
            if child is not None and child is not parent:
                place = (id(child), id(parent))
                found.setdefault(place, (child, parent, edge.policy == "continue"))
    return list(found.values())


def _order(layers: list[list[Box]], edges: list[tuple[Box, Box, bool]]) -> None:
    """Put each box near the middle of its neighbours, so that few lines cross."""
    near: dict[int, list[Box]] = {}
    for child, parent, _ in edges:
        near.setdefault(id(child), []).append(parent)
        near.setdefault(id(parent), []).append(child)
    places = {id(box): float(place) for layer in layers for place, box in enumerate(layer)}
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            middles = {
                id(box): sum(places[id(other)] for other in others) / len(others)
                for box in layer
                if (others := near.get(id(box)))
            }
            layer.sort(key=lambda box: middles.get(id(box), places[id(box)]))
            places |= {id(box): place - (len(layer) - 1) / 2 for place, box in enumerate(layer)}


def _line(child: Box, parent: Box, may_fail: bool) -> Line:
    start, end = child.x + WIDTH, parent.x
    bend = max((end - start) // 2, GAP_X // 2)
    path = (
        f"M{start} {child.middle:g} C{start + bend} {child.middle:g} "
        f"{end - bend} {parent.middle:g} {end} {parent.middle:g}"
    )
    return Line(path, may_fail, child.job.state not in LIVE)
