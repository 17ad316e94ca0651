"""A flow's graph on a terminal: a tree from the last node down to those that wait for nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from relevo.cli.tables import cell, short
from relevo.desk import FlowView, name_of
from relevo.job import Failure, Job, State

if TYPE_CHECKING:
    from rich.text import Text

FOLD = 4
"""So many equal siblings become one line."""
DEEP = 20
LINES = 500


class Branch(NamedTuple):
    """One line to be: equal nodes side by side, or one after the other."""

    nodes: list[Job]
    may_fail: bool
    is_chain: bool = False


def drawn(flow: FlowView) -> Iterator[Text]:
    """The lines of the drawing."""
    graph = Graph(flow)
    stack = [
        ("", "", branch) for branch in reversed(graph.fold((end, False) for end in flow.ends()))
    ]
    seen: set[str] = set()
    lines = 0
    while stack:
        if lines == LINES:
            yield cell(f"… {len(flow.nodes) - len(seen):,} nodes more: --json has them all")
            return
        lines += 1
        lead, turn, branch = stack.pop()
        is_known = branch.nodes[0].id in seen
        seen |= {node.id for node in branch.nodes}
        branch = branch if is_known else graph.run(branch)
        seen |= {node.id for node in branch.nodes}
        yield _line(lead + turn, branch, graph, is_known)
        below = [] if is_known else graph.below(branch.nodes[-1])
        inner = lead + {"": "", "├─ ": "│  ", "└─ ": "   "}[turn]
        if below and len(inner) > 3 * DEEP:
            yield cell(f"{inner}└─ … and what that waits for: --json has it all")
            continue
        turns = ["├─ "] * (len(below) - 1) + ["└─ "] * bool(below)
        stack += [(inner, *each) for each in reversed(list(zip(turns, below, strict=True)))]


class Graph:
    """A flow's nodes, and which of them look alike with all that is below them."""

    def __init__(self, flow: FlowView) -> None:
        self.nodes = {node.id: node for node in flow.nodes}
        self._looks: dict[Any, int] = {}
        self._look: dict[str, int] = {}
        for node in flow.nodes:  # children first
            below = Counter(
                (edge.policy, self._look[edge.child], self.parents(edge.child))
                for edge in node.after
                if edge.child in self._look
            )
            self._look[node.id] = self._number((_face(node), frozenset(below.items())))

    def _number(self, look: Any) -> int:
        return self._looks.setdefault(look, len(self._looks))

    def parents(self, id: str) -> frozenset[str]:
        """Those that share a node; empty when only one waits for it."""
        known = frozenset(self.nodes.keys() & set(self.nodes[id].before))
        return known if len(known) > 1 else frozenset()

    def fold(self, children: Iterable[tuple[Job, bool]]) -> list[Branch]:
        """Siblings as branches; equal ones, if many, as one."""
        alike: dict[Any, list[Job]] = {}
        order: list[Any] = []
        for node, may_fail in children:
            look = (may_fail, self._look[node.id], self.parents(node.id))
            alike.setdefault(look, []).append(node)
            order.append((look, node))
        branches: list[Branch] = []
        for look, node in order:
            if len(alike[look]) < FOLD:
                branches.append(Branch([node], look[0]))
            elif alike[look][0] is node:
                branches.append(Branch(alike[look], look[0]))
        return branches

    def below(self, node: Job) -> list[Branch]:
        """What a node waits for."""
        return self.fold(
            (self.nodes[edge.child], edge.policy == "continue")
            for edge in node.after
            if edge.child in self.nodes
        )

    def run(self, branch: Branch) -> Branch:
        """A node with the equal ones that stand below it one by one."""
        if len(branch.nodes) > 1:
            return branch
        nodes = list(branch.nodes)
        while True:
            last = nodes[-1]
            if len(last.after) != 1 or last.after[0].policy == "continue":
                break
            child = self.nodes.get(last.after[0].child)
            if child is None or _face(child) != _face(last) or self.parents(child.id):
                break
            nodes.append(child)
        if len(nodes) < FOLD:
            return branch
        return Branch(nodes, branch.may_fail, is_chain=True)


def _face(node: Job) -> tuple[Any, ...]:
    failure = _failure(node)
    return node.kind, node.queue, node.state, failure and failure.fingerprint


def _failure(node: Job) -> Failure | None:
    """Why it ended badly; what a run before a good one said is in its history."""
    return node.failure if node.ended_at and node.state is not State.DONE else None


def _line(lead: str, branch: Branch, graph: Graph, is_known: bool) -> Text:
    from rich.text import Text

    first, last = branch.nodes[0], branch.nodes[-1]
    line = Text(lead)
    many = len(branch.nodes) > 1
    if many:
        line.append(f"{len(branch.nodes):,} × ")
    line.append_text(cell(first.kind if many else name_of(first)))
    line.append("  ").append_text(cell(first.state))
    notes: list[str] = []
    if many:
        how = "one after the other" if branch.is_chain else "each"
        notes.append(f"{how}: {name_of(first)} … {name_of(last)}")
    elif first.kind != name_of(first):
        notes.append(first.kind)
    if branch.may_fail:
        notes.append("may fail")
    if graph.parents(first.id):
        notes.append("shared, drawn above" if is_known else "shared")
    # A child that failed stands below, with its own reason.
    failure = _failure(first)
    if failure is not None and failure.type != "ChildFailed":
        notes.append(short(f"{failure.type}: {failure.message}", 80) or "")
    if notes:
        line.append("  ").append_text(cell(", ".join(notes)))
    return line
