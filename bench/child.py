"""The other end of `measure.Child`: run one function and send what it answers."""

from __future__ import annotations

import asyncio
import importlib
import sys
import traceback
from multiprocessing.connection import Connection

from bench.measure import Pipe, run


def main(handle: int) -> None:
    connection = Connection(handle)
    module, name, args = connection.recv()
    try:
        answer = getattr(importlib.import_module(module), name)(Pipe(connection), *args)
        if asyncio.iscoroutine(answer):
            answer = run(answer)
        connection.send((answer, None))
    except BaseException:  # noqa: BLE001 - told to the parent
        connection.send((None, traceback.format_exc()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
