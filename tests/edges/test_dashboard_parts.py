"""What pages are made of: sentences about health, rates, drawings of flows, and stories."""

from __future__ import annotations

import time
from typing import Any

from relevo.breaker import Circuit
from relevo.dashboard.drawing import BOXES, HEIGHT, WIDTH, drawn
from relevo.dashboard.health import troubles
from relevo.dashboard.live import rates_of
from relevo.dashboard.threads import in_order
from relevo.desk import BreakerView, FlowView, RecurringView, WaitView
from relevo.desk.flows import _layers, _state  # pyright: ignore[reportPrivateUsage] - as a view has them
from relevo.job import After, Attempt, Job, Policy, State
from relevo.restored import WentBack
from relevo.store import Effect, QueueMode, Tally, WorkerInfo, WorkerState

NOW = 1_800_000_000_000
QUEUE = "cars:suppliers:book"


# health


def said(**what: Any) -> list[str]:
    return [trouble.text.format(**trouble.values) for trouble in troubles(**what, now=NOW)]


def test_a_store_that_went_back_comes_first() -> None:
    back = WentBack(at=NOW - 60_000, seen_at=NOW - 120_000, host="web-1")
    [text] = said(back=back)
    assert text.startswith("The store has less than was seen in it 2")
    assert troubles(back=back, now=NOW)[0].is_bad


def tally(mode: QueueMode = QueueMode.OPEN, late: int | None = None, **counts: int) -> Tally:
    states = {State(name): count for name, count in counts.items()}
    return Tally(queue=QUEUE, mode=mode, counts=states, late=late)


def worker(**fields: Any) -> WorkerInfo:
    known = {"id": "w1", "host": "h", "pid": 1, "queues": [QUEUE], "concurrency": 10}
    return WorkerInfo(**{**known, **fields})


def recurring(**fields: Any) -> RecurringView:
    known: dict[str, Any] = {
        "name": "hotel:1",
        "function": "hotel.pull",
        "job": "0" * 32,
        "queue": "hotel:pollers:pull",
        "state": State.SCHEDULED,
        "is_paused": False,
        "next_at": NOW + 1_000,
        "last_at": NOW,
        "failures": 0,
        "error": "",
        "cursor": None,
    }
    return RecurringView(**{**known, **fields})


def test_a_queue_that_is_served_in_time_is_no_trouble() -> None:
    assert said(tallies=[tally(ready=5, late=900, done=10)], workers=[worker()]) == []


def test_a_queue_that_nobody_serves_is_bad() -> None:
    quiet = worker(state=WorkerState.SILENT)
    assert said(tallies=[tally(ready=1)], workers=[quiet]) == [
        f"{QUEUE} has one job to do, and no worker serves it"
    ]
    assert troubles([tally(ready=2)], now=NOW)[0].is_bad


def test_what_is_late_paused_or_draining_is_said() -> None:
    assert said(tallies=[tally(ready=1, late=300_000)], workers=[worker()]) == [
        f"{QUEUE} is 5 min late"
    ]
    assert said(tallies=[tally(QueueMode.PAUSED, ready=1)], workers=[worker()]) == [
        f"{QUEUE} is paused, with one job in it"
    ]
    assert said(tallies=[tally(QueueMode.DRAINING)], workers=[worker()]) == [
        f"{QUEUE} is draining: it takes no new jobs"
    ]


def test_a_breaker_that_keeps_nobody_waiting_is_no_alarm() -> None:
    idle = BreakerView(name="bank", circuit=Circuit(state="open"), parked=0)
    [trouble] = troubles(breakers=[idle], now=NOW)
    assert not trouble.is_bad
    assert said(breakers=[idle]) == ["The breaker bank is open; no job waits behind it"]


def test_the_worst_comes_first() -> None:
    found = troubles(
        [tally(QueueMode.PAUSED, dead=1, held=2)],
        [worker(note="event loop blocked for 7 s")],
        [BreakerView(name="bank", circuit=Circuit(state="open"), parked=3)],
        now=NOW,
    )
    assert [trouble.level for trouble in found] == ["bad", "bad", "bad", "warn", "warn"]


def test_a_poller_that_fails_or_is_silent_is_said_unless_it_is_paused() -> None:
    assert said(recurring=[recurring(failures=2, error="502")]) == [
        "hotel:1 has failed 2 times in a row: 502"
    ]
    late = recurring(is_silent=True, next_at=NOW - 600_000)
    assert said(recurring=[late]) == ["hotel:1 should have had its turn 10 min ago"]
    running = recurring(is_silent=True, next_at=None, state=State.RUNNING)
    assert said(recurring=[running]) == ["hotel:1 has been silent since its last turn"]
    assert said(recurring=[recurring(is_paused=True, failures=9, is_silent=True)]) == []


def test_a_worker_that_left_nothing_behind_is_no_trouble() -> None:
    assert said(workers=[worker(state=WorkerState.GONE, running=0)]) == []
    assert len(said(workers=[worker(state=WorkerState.SILENT, running=2)])) == 1


# rates


def test_rates_are_growth_a_second() -> None:
    assert rates_of([(0, 0), (2, 10), (4, 10), (5, 13)]) == [0.0, 5.0, 0.0, 3.0]


def test_what_was_pruned_is_no_rate() -> None:
    assert rates_of([(0, 100), (1, 40), (2, 42)]) == [0.0, 0.0, 2.0]


def test_what_a_store_counts_late_is_spread_over_the_wait() -> None:
    many = 1_000_000
    points = [(0, many), (3, many), (6, many), (9, many + 900)]
    assert rates_of(points) == [0.0, 100.0, 100.0, 100.0]


# drawings


def flow(edges: dict[int, list[int]], policy: Policy = "fail", **fields: Any) -> FlowView:
    """A flow of numbered nodes, each with those it waits for."""
    before: dict[int, list[int]] = {number: [] for number in edges}
    for number, children in edges.items():
        for child in children:
            before[child].append(number)
    nodes = [
        Job(
            **{
                "id": f"{number:032x}",
                "queue": QUEUE,
                "kind": f"Do{number}",
                "state": State.READY,
                "payload": b"{}",
                "priority": 1,
                "attempt": 0,
                "attempts": 3,
                "inserted_at": NOW,
                "run_at": NOW,
                "flow": "f",
                "node": f"n{number}",
                "after": tuple(After(f"{child:032x}", policy) for child in edges[number]),
                "before": tuple(f"{parent:032x}" for parent in before[number]),
                **fields,
            }
        )
        for number in edges
    ]
    layers = _layers(nodes)
    nodes.sort(key=lambda node: (layers[node.id], node.id))
    return FlowView(id="f", key=None, state=_state(nodes), nodes=nodes, layers=layers)


def test_each_box_is_to_the_right_of_what_it_waits_for_and_none_overlap() -> None:
    drawing = drawn(flow({0: [], 1: [0], 2: [0], 3: [1, 2], 4: [3, 0]}), [])
    places = {box.name: (box.x, box.y) for box in drawing.boxes}
    assert places["n0"][0] < places["n1"][0] == places["n2"][0] < places["n3"][0]
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - WIDTH
        assert 0 <= box.y <= drawing.height - HEIGHT
        for other in drawing.boxes:
            apart = abs(box.x - other.x) >= WIDTH or abs(box.y - other.y) >= HEIGHT
            assert box is other or apart
    assert len(drawing.lines) == 6
    assert drawing.left_out == 0


def test_the_same_flow_gives_the_same_drawing() -> None:
    edges = {0: [], 1: [0], 2: [0], 3: [1, 2]}
    assert drawn(flow(edges), []) == drawn(flow(edges), [])


def test_equal_siblings_are_one_box() -> None:
    drawing = drawn(flow({**{n: [] for n in range(500)}, 500: list(range(500))}, kind="Do"), [])
    assert [box.name for box in drawing.boxes] == ["500 × Do", "n500"]
    assert len(drawing.lines) == 1


def test_a_huge_flow_is_drawn_in_part_and_quickly() -> None:
    chain = {0: [], **{n: [n - 1] for n in range(1, 5_000)}}
    large = flow(chain)
    began = time.process_time()
    drawing = drawn(large, [])
    assert time.process_time() - began < 1.0
    assert len(drawing.boxes) == BOXES
    assert drawing.left_out == 5_000 - BOXES


def test_what_went_wrong_is_drawn_before_what_went_well() -> None:
    chain = {0: [], **{n: [n - 1] for n in range(1, 400)}}
    view = flow(chain, state=State.DONE)
    view.nodes[-1].state = State.DEAD
    assert f"n{399}" in {box.name for box in drawn(view, []).boxes}


# stories


def test_in_one_millisecond_a_job_acts_before_what_it_led_to() -> None:
    first, second = (
        Job(
            id=id,
            queue=QUEUE,
            kind=id,
            state=State.DONE,
            payload=b"{}",
            priority=1,
            attempt=1,
            attempts=3,
            inserted_at=NOW,
            run_at=NOW,
            cause=cause,
            history=(Attempt(number=1, outcome="done", began_at=NOW, ended_at=NOW),),
        )
        for id, cause in (("book", None), ("mail", "book"))
    )
    effects = [
        Effect(job=id, queue=QUEUE, name=id, key=id, run="r1", created_at=NOW, updated_at=NOW)
        for id in ("mail", "book")
    ]
    told = in_order([], [second, first], effects, [], {"book": 0, "mail": 1})
    steps = ["enqueued", "effect", "run"]
    assert [(each.job and each.job.id, each.what) for each in told] == [
        *(("book", step) for step in steps),
        *(("mail", step) for step in steps),
    ]


def test_jobs_that_wait_unspent_are_told_of() -> None:
    def wait(parked: int) -> WaitView:
        return WaitView(
            name="unaccepted:shop:pay",
            queue="shop:pay:charge",
            job="01a1f21a36c47aa2a7aa2e8b0db4401f",
            since=0,
            why="no such key",
            parked=parked,
        )

    some, one, late = (troubles(waiting=[wait(parked)], now=20 * 60_000)[0] for parked in (3, 1, 0))
    assert (some.level, one.level, late.level) == ("bad", "bad", "warn")
    assert some.text.format(**some.values).startswith("3 jobs of shop:pay:charge wait for a key")
    assert one.text.format(**one.values).endswith("accepts: no such key")
    assert "waits for 20 min" in late.text.format(**late.values)
