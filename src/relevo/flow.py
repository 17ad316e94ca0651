"""Flow: which job waits for which.

flow = Flow("cortex")
a = flow.add(Transcribe(url))
b = flow.add(ExtractText(url), on_failure="continue")
flow.add(Summarise(url), after=[a, b])
await relevo.start(flow, key="cortex:42")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relevo.errors import DefinitionError, NotFoundError
from relevo.ids import derived_id, lasting, moment_of
from relevo.job import Policy
from relevo.message import Command

NODES_MAX = 10_000


@dataclass(eq=False, slots=True)
class Node:
    """One command of a flow, and the nodes it waits for."""

    name: str
    command: Command
    on_failure: Policy
    after: list[Node] = field(default_factory=list["Node"])


class Flow:
    """Commands that wait for commands; nothing is stored until the engine starts it."""

    def __init__(self, name: str) -> None:
        if not 0 < len(name) <= 100:
            raise DefinitionError("a flow's name has 1 to 100 characters")
        self.name = name
        self.nodes: dict[str, Node] = {}

    def add(
        self,
        what: Command | Flow,
        *,
        after: Iterable[Node] = (),
        on_failure: Policy = "fail",
        name: str | None = None,
    ) -> Node:
        """Add a command, or all of another flow, to run when the nodes of `after` have ended.

        `on_failure` says what its own bad end means for those that wait for it: "fail" ends them
        too, "continue" lets them run and find it in `ctx.results().failed`.
        """
        if on_failure not in ("fail", "continue"):
            raise DefinitionError(f"on_failure is 'fail' or 'continue', not {on_failure!r:.40}")
        waits = list(after)
        if isinstance(what, Flow):
            return self._add_flow(what, waits, on_failure, name)
        if not isinstance(what, Command):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
            raise DefinitionError(f"a flow is made of Commands, and {what!r:.60} is none")
        node = Node(name or self._fresh_name(what), what, on_failure)
        self._keep(node)
        for child in waits:
            self.link(node, child)
        return node

    def link(self, parent: Node, child: Node) -> None:
        """Make `parent` wait for `child`."""
        if self.nodes.get(child.name) is not child or self.nodes.get(parent.name) is not parent:
            stranger = child if self.nodes.get(child.name) is not child else parent
            raise DefinitionError(f"'{stranger.name}' is not a node of the flow '{self.name}'")
        if parent is child:
            raise DefinitionError(f"'{parent.name}' cannot wait for itself")
        if child in parent.after:
            raise DefinitionError(f"'{parent.name}' waits for '{child.name}' already")
        parent.after.append(child)

    def ordered(self) -> list[Node]:
        """Every node after those it waits for; DefinitionError if some wait in a circle."""
        if not self.nodes:
            raise DefinitionError(f"the flow '{self.name}' is empty")
        waiting = {node: len(node.after) for node in self.nodes.values()}
        above: dict[Node, list[Node]] = {}
        for node in self.nodes.values():
            for child in node.after:
                above.setdefault(child, []).append(node)
        ready = [node for node, count in waiting.items() if count == 0]
        for node in ready:  # grows while it is walked
            for parent in above.get(node, ()):
                waiting[parent] -= 1
                if waiting[parent] == 0:
                    ready.append(parent)
        if len(ready) < len(waiting):
            circle = sorted(node.name for node, count in waiting.items() if count)
            raise DefinitionError(
                f"nodes of the flow '{self.name}' wait for each other in a circle: "
                + ", ".join(circle[:10])
            )
        return ready

    def ends(self) -> list[Node]:
        """The nodes that nobody waits for."""
        awaited = {child for node in self.nodes.values() for child in node.after}
        return [node for node in self.nodes.values() if node not in awaited]

    def last(self) -> Node:
        """The one node that nobody waits for; DefinitionError if there are several."""
        ends = self.ends()
        if len(ends) != 1:
            raise DefinitionError(
                f"the flow '{self.name}' must end in one node here, but nobody waits for "
                + ", ".join(sorted(node.name for node in ends)[:10])
            )
        return ends[0]

    def _add_flow(
        self, inner: Flow, waits: list[Node], on_failure: Policy, name: str | None
    ) -> Node:
        prefix = name or inner.name
        end = inner.last()
        copies: dict[Node, Node] = {}
        for node in inner.ordered():
            policy = on_failure if node is end else node.on_failure
            copy = Node(f"{prefix}/{node.name}", node.command, policy)
            self._keep(copy)
            copies[node] = copy
            for child in [copies[child] for child in node.after] or waits:
                self.link(copy, child)
        return copies[end]

    def _fresh_name(self, command: Command) -> str:
        plain = fresh = command.__relevo__.kind
        number = sum(name.startswith(plain) for name in self.nodes)
        while fresh in self.nodes:
            number += 1
            fresh = f"{plain}-{number}"
        return fresh

    def _keep(self, node: Node) -> None:
        if node.name in self.nodes:
            raise DefinitionError(f"the flow '{self.name}' has a node '{node.name}' already")
        if len(self.nodes) >= NODES_MAX:
            raise DefinitionError(f"a flow has at most {NODES_MAX:,} nodes")
        self.nodes[node.name] = node


class Results(dict[str, Any]):
    """What the children of a node gave, by node name; a child that gave nothing is there with None.

    A child that did not end well is not in it: to ask for its result raises NotFoundError, and
    `failed` has its name with the reason. `get(name)` gives None for such a child.
    """

    def __init__(self, given: dict[str, Any], failed: dict[str, str]) -> None:
        super().__init__(given)
        self.failed = failed

    def __missing__(self, name: str) -> Any:
        why = self.failed.get(name)
        if why is None:
            known = ", ".join(sorted((*self, *self.failed))[:10]) or "none"
            raise NotFoundError(f"no child is called {name!r:.80}; this node waited for: {known}")
        raise NotFoundError(
            f"'{name}' has no result: {why}. Ask `if '{name}' in results` first, or use "
            f"results.get('{name}')"
        )


def node_id(flow: str, name: str) -> str:
    """The job id of a node: the same whenever the same flow is started again after a crash."""
    return derived_id(moment_of(flow), f"{lasting(flow)}/{name}")
