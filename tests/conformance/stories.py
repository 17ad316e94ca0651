"""Random stories told to a store and to a model of it, step by step.

The seed is in a failure's notes: RELEVO_TEST_SEED=… tells the same stories again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.fresh import fresh

Steps = dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]]
"""Every verb of a story, how often it is told of, and with what."""


def steps_of(steps: Steps) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One step. Hypothesis' own choice of rules leaves out half of them in each story."""
    verbs = [verb for verb, (often, _) in steps.items() for _ in range(often)]
    return st.sampled_from(verbs).flatmap(
        lambda verb: st.tuples(st.just(verb), st.fixed_dictionaries(steps[verb][1]))
    )


class StoreStory(RuleBasedStateMachine):
    """A fresh store and a clock; the loop it lives in runs in another thread."""

    open_store: Callable[[ManualClock], Any]
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.stack = ExitStack()
        self.store: Store = self.stack.enter_context(
            self.portal.wrap_async_context_manager(self.open_store(self.clock))
        )

    def teardown(self) -> None:
        self.stack.close()

    def call(self, verb: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **how: Any) -> Any:
        async def run() -> Any:
            return await verb(*args, **how)

        return self.portal.call(run)


def tell(
    story: type[StoreStory], store_name: str, folder: Path, *, examples: int, steps: int
) -> None:
    """Tell so many stories of so many steps to a store."""
    number = int(os.environ.get("RELEVO_TEST_SEED", "1"))
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    with start_blocking_portal() as portal:
        told = type(
            story.__name__,
            (story,),
            {
                "portal": portal,
                "open_store": staticmethod(lambda clock: fresh(store_name, clock, folder)),
            },
        )
        try:
            seed(number)(get_state_machine_test(told, settings=profile))()
        except BaseException as problem:
            problem.add_note(f"RELEVO_TEST_SEED={number} tells the same stories")
            raise
