"""What the children of a flow's node are called there, whichever jobs stand for them.

A child with a key may join a job of another flow, or of none, whose own name says nothing here. So
a node brings the names of its children along, in the order of its edges, where one has a key.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from relevo.flow import Node, node_id
from relevo.job import Job, NewJob
from relevo.job_meta import Meta, decode_meta
from relevo.store import Note, Store

ADDED = "node"  # the kind of the notes that name nodes added later, which joined another job
ADDED_FOR = 30 * 86_400_000


def joined_once(node: Node, jobs: dict[str, NewJob]) -> list[list[Node]]:
    """The children of a node; those that one job will stand for, since they share a key, as one."""
    alike: dict[tuple[str, str], list[Node]] = {}
    for child in node.after:
        job = jobs[child.name]
        shares = job.key is not None and job.unique != "latest"
        alike.setdefault((job.queue, f"key {job.key}") if shares else (child.name, ""), []).append(
            child
        )
    return list(alike.values())


def with_children(job: NewJob, children: Sequence[Sequence[Node]]) -> NewJob:
    """The job with the names of its children."""
    meta = Meta() if job.meta is None else decode_meta(job.meta)
    meta.children = [[child.name for child in alike] for alike in children]
    return msgspec.structs.replace(job, meta=msgspec.json.encode(meta))


def added(flow: str, job: str, name: str) -> Note:
    """A note of what a node is called that was added to a flow, and that this job stands for."""
    return Note(kind=ADDED, name=f"{flow}/{job}", value=name.encode(), ttl=ADDED_FOR)


def brings_names(job: Job) -> bool:
    """Whether the names of its children came with a job."""
    return job.meta is not None and b'"children"' in job.meta


async def child_names(store: Store, parent: Job, children: Sequence[Job | None]) -> list[list[str]]:
    """What each child of a node is called, in the order of its edges: mostly by one name."""
    flow = parent.flow or ""
    brought: list[list[str]] = []
    if parent.meta is not None and brings_names(parent):
        brought = decode_meta(parent.meta).children or []
    by_id = {node_id(flow, names[0]): names for names in brought}
    found = [by_id.pop(edge.child, None) for edge in parent.after]
    joined = iter(by_id.values())  # those that were added later stand behind them
    unknown: dict[int, str] = {}
    for place, (edge, child) in enumerate(zip(parent.after, children, strict=True)):
        if found[place] is None:
            own = child.node if child is not None and child.flow == flow else None
            found[place] = next(joined, None) or ([own] if own else None)
            if found[place] is None:
                unknown[place] = edge.child
    notes = (
        await store.recall(ADDED, [f"{flow}/{id}" for id in unknown.values()]) if unknown else []
    )
    for (place, id), note in zip(unknown.items(), notes, strict=True):
        found[place] = [id if note is None else note.value.decode()]
    return [names or [] for names in found]
