"""Queue names, and the table of moves a job may make."""

from __future__ import annotations

import msgspec
import pytest

from relevo.errors import DefinitionError
from relevo.job import (
    ENDED,
    LIVE,
    MOVES,
    QUEUE_NAME_MAX,
    After,
    Ending,
    Lease,
    NewJob,
    State,
    queue_name,
)


@pytest.mark.parametrize(
    "name",
    [
        "hotel:messages:save",
        "razworks:auth:welcome-email",
        "a:b:c",
        "a1:2b:3c",
        "my_app:my-module:my_action-2",
        "a:b:" + "c" * (QUEUE_NAME_MAX - 4),
    ],
)
def test_a_queue_is_named_app_module_action(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a",
        "a:b",
        "A:b:c",
        "a:B:c",
        "a:b:C",
        "a:b:c:d",
        "a:b:c\n",
        "\na:b:c",
        "a:b\n:c",
        "a:b:c ",
        " a:b:c",
        "a:b:c\0",
        "a:b:🚀",
        "á:b:c",
        "a:b:ｃ",
        "٣a:b:c",
        "a:b:" + "c" * (QUEUE_NAME_MAX - 3),
        "a:b:" + "c" * 10_000_000,
        'a:b:"; drop table jobs;--',
        "a:b:' or 1=1--",
        "{a}:b:c",
        "a:{b}:c",
        "*",
        "a:b:*",
        "a:b:%",
        "a:b:..",
        "a/b/c",
        "1a:b:c",
        "-a:b:c",
        "a:-b:c",
        "a:b:_c",
        "::",
        "a::c",
        ":b:c",
        "a:b:",
        "a:b:\ud800",
    ],
    ids=lambda name: ascii(name[:24]),
)
def test_b30_a_bad_queue_name_is_refused_naming_the_rule(name: str) -> None:
    with pytest.raises(DefinitionError, match="write 'app:module:action' in lower case") as caught:
        queue_name(name)
    assert len(str(caught.value)) < 400


def test_every_state_is_either_live_or_ended() -> None:
    assert set(State) == LIVE | ENDED
    assert not LIVE & ENDED


def test_the_table_of_moves_is_closed() -> None:
    assert set(MOVES) == set(State)
    assert set().union(*MOVES.values()) <= set(State)
    assert not [state for state, moves in MOVES.items() if state in moves]


def test_every_state_can_be_reached_from_how_a_job_begins() -> None:
    reached = {State.READY, State.SCHEDULED, State.WAITING}
    while more := set().union(*(MOVES[state] for state in reached)) - reached:
        reached |= more
    assert reached == set(State)


def test_done_is_for_good() -> None:
    assert MOVES[State.DONE] == frozenset()


def test_every_live_job_can_be_cancelled_and_leads_to_an_end() -> None:
    for state in LIVE:
        assert State.CANCELLED in MOVES[state]


def test_only_what_is_due_or_was_due_later_starts_to_run() -> None:
    assert {state for state in State if State.RUNNING in MOVES[state]} == {
        State.READY,
        State.SCHEDULED,
    }


def test_only_a_run_or_a_person_who_decides_on_a_held_job_makes_it_done() -> None:
    assert {state for state in State if State.DONE in MOVES[state]} == {State.RUNNING, State.HELD}


def test_a_job_dies_only_of_its_run_or_of_a_child() -> None:
    assert {state for state in State if State.DEAD in MOVES[state]} == {
        State.RUNNING,
        State.WAITING,
    }


def test_parked_and_held_come_from_a_run_alone() -> None:
    for aside in (State.PARKED, State.HELD):
        assert [state for state in State if aside in MOVES[state]] == [State.RUNNING]


def test_a_person_can_bring_back_whatever_ended_badly_or_stands_aside() -> None:
    for state in (State.DEAD, State.CANCELLED, State.HELD, State.PARKED):
        assert {State.READY, State.SCHEDULED} <= MOVES[state]
    for state in (State.DEAD, State.CANCELLED):
        assert State.WAITING in MOVES[state]  # a flow's parent with a live child


def test_every_ending_a_run_may_have_is_a_legal_move() -> None:
    endings = {
        State.DONE,
        State.SCHEDULED,
        State.DEAD,
        State.CANCELLED,
        State.PARKED,
        State.HELD,
    }
    assert endings <= MOVES[State.RUNNING]


def test_states_are_stored_by_name() -> None:
    assert [state.value for state in State] == [state.name.lower() for state in State]


def test_a_new_job_survives_the_wire() -> None:
    job = NewJob(
        id="0" * 32, queue="a:b:c", kind="Save", payload=b"{}", after=(After("1" * 32, "continue"),)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=NewJob) == job


def test_leases_are_told_apart_by_identity() -> None:
    def lease() -> Lease:
        return Lease(
            id="0" * 32, queue="a:b:c", kind="Save", payload=b"{}", attempt=1, attempts=3, token=1
        )

    one = lease()
    assert one != lease()
    assert Ending(lease=one, state=State.DONE).lease is one
