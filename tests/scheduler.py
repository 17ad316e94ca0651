"""Tests by groups, on workers that may crash.

xdist's own scheduler for `--dist loadgroup` hands the test that took a worker with it to the next
one, until none is left and the run hangs. Here it has failed, and the others go on.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling


class Steady(LoadGroupScheduling):
    """Loadgroup, except that nobody runs again what has crashed."""

    def remove_node(self, node: Any) -> str | None:
        units = self.assigned_work.pop(node)
        crashed = None
        for unit in units.values():
            for test, is_done in unit.items():
                if crashed is None and not is_done:
                    crashed, unit[test] = test, True
        self.workqueue.update(
            {name: unit for name, unit in units.items() if not all(unit.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Steady | None:
    return Steady(config, log) if config.getvalue("dist") == "loadgroup" else None
