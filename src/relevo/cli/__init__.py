"""The program `relevo`: a file per group of verbs, put together here.

Exit codes: 0 it worked, 1 a problem was found or nothing matched, 2 the call is wrong, 3 the store
does not answer, 130 interrupted. A mistake is one line on standard error.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
NO_TABLE = ("no such table", "UndefinedTable")  # as the drivers say it


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:], is_program=True))


def run(args: Sequence[str], *, is_program: bool = False) -> int:
    """What the program does with some arguments; answers the exit code."""
    try:
        if is_program:
            from relevo.telemetry import log_uncaught

            log_uncaught()
        return _run(args)
    except KeyboardInterrupt:  # it may come while we are still importing
        return 130


def _run(args: Sequence[str]) -> int:
    try:
        import typer

        from relevo.cli.terminal import PROBLEM, UNAVAILABLE, USAGE, say
    except ImportError as error:
        sys.stderr.write(f"relevo: {error}: pip install 'relevo[cli]'\n")
        return 2
    from relevo.errors import DefinitionError, PayloadError, RelevoError, SettingsError, StoreError

    _ready_streams()
    # A verb prints what it did; only `work` also logs, and sets that up itself.
    logging.getLogger("relevo").addHandler(logging.NullHandler())
    try:
        answer: Any = _program().main(list(args), prog_name="relevo", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _usage(error)
        return USAGE
    except typer.Abort:
        say("stopped; nothing was changed")
        return PROBLEM
    except BrokenPipeError:  # whoever read us has gone
        _drop_output()
        return PROBLEM
    except StoreError as error:
        say(str(error), logging.ERROR)
        return UNAVAILABLE
    except (SettingsError, DefinitionError, PayloadError) as error:
        say(str(error), logging.ERROR)
        return USAGE
    except RelevoError as error:
        say(str(error), logging.ERROR)
        return PROBLEM
    except ModuleNotFoundError as error:
        say(
            f"{error}: pip install 'relevo[all]', or the part of it that brings this", logging.ERROR
        )
        return USAGE
    except Exception as error:  # noqa: BLE001 - a person gets a line, whatever it is
        if isinstance(error, OSError) and error.errno in FULL:
            _drop_output()
            say(f"cannot write the output: {error.strerror}", logging.ERROR)
            return PROBLEM
        if any(words in str(error) for words in NO_TABLE):
            say(
                "the app has no tables here: run `relevo migrate` with the same --store and --app",
                logging.ERROR,
            )
            return UNAVAILABLE
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        say(f"this should not happen: {type(error).__name__}: {error} ({where})", logging.ERROR)
        return PROBLEM
    return answer if isinstance(answer, int) else 0


def _program() -> Any:
    from typer.main import get_command

    from relevo.cli import (
        bench,
        breakers,
        cars,
        check,
        database,
        dead,
        deliveries,
        demo,
        doctor,
        effects,
        events,
        expenses,
        flows,
        forget,
        groups,
        hotel,
        jobs,
        lanes,
        look,
        map,
        new,
        outbox,
        people,
        qstash,
        queues,
        recurring,
        sealing,
        serve,
        subscriptions,
        top,
        work,
        workers,
    )
    from relevo.cli.terminal import Verbs

    root = Verbs("Signed webhook, durable job, effect outside, once.")
    for module in (serve, work, qstash, database, doctor, sealing, map, look, forget, top, bench):
        module.add_to(root)
    for group in (
        jobs,
        queues,
        dead,
        deliveries,
        events,
        effects,
        flows,
        groups,
        lanes,
        breakers,
        workers,
    ):
        root.add(group.group)
    for group in (recurring.pollers, recurring.schedules, people.people, people.tokens):
        root.add(group)
    for group in (outbox, look, database):
        root.add(group.group)
    for group in (cars, expenses, hotel, subscriptions, new):
        root.add(group.group)
    for module in (check, demo):
        module.register(root.typer)
    return get_command(root.typer)


def _ready_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - as long as we live
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    # Python's own flush at the end must not complain of what cannot be written.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Any) -> None:
    from relevo.cli.terminal import say

    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and ctx is not None:
        sys.stderr.write(ctx.get_help() + "\n")
        return
    hint = f" (see `{ctx.command_path} --help`)" if ctx is not None else ""
    say(error.format_message().rstrip(".") + hint, logging.ERROR)
