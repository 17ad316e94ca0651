"""relevo's stream workers in a process that kills itself at a moment of its choice.

    python -m tests.apps.dying call 3 email list spreadsheet

dies with -9 when the third call outside has been made and before anything says so; `mark` dies when
the third flag is set and its entry not yet acknowledged; `never` lives.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from relevo.apps.subscriptions import integrations, records, streams
from relevo.cli import main


def dying(verb: Callable[..., Awaitable[Any]], left: list[int]) -> Callable[..., Awaitable[Any]]:
    async def call(*args: Any) -> Any:
        answer = await verb(*args)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return call


if __name__ == "__main__":
    moment, number, *names = sys.argv[1:]
    left = [int(number)]
    streams.SHEET_WRITES = 10_000  # a story has more rows than a minute of Google's
    if moment == "call":
        for kind in (
            integrations.EmailWorker, integrations.ListWorker, integrations.SpreadsheetWorker,
        ):  # fmt: skip
            kind.process_job = dying(kind.process_job, left)
    if moment == "mark":
        records.Records.mark = dying(records.Records.mark, left)
    sys.argv[1:] = ["subscriptions", "work", *names]
    main()
