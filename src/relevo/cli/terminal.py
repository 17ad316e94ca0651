"""Terminal: where a verb reads its options, opens the store and prints what it found.

    group = Verbs("Jobs: list, show, retry, edit, cancel.", name="jobs")

    @group.verb("show")
    async def show(terminal: Terminal, id: Id) -> None: ...

A verb is an async function; what it returns is the exit code, None for 0.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import pwd
import re
import sys
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast
from urllib.parse import unquote, urlsplit

import typer

from relevo.desk import Desk, Person, Replays, Role, Sweep, view
from relevo.errors import DefinitionError, SettingsError
from relevo.outcome import scrub
from relevo.presence import directory_of
from relevo.relay import Relayed
from relevo.sensitive import HIDDEN
from relevo.stores import open_store
from relevo.stores.sealed import sealed
from relevo.telemetry import Telemetry, json_line, log, logs_json, start_logging

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from relevo.app import App
    from relevo.clock import Duration
    from relevo.engine import Relevo
    from relevo.sealing import Seal
    from relevo.settings import Settings
    from relevo.store import SqlStore, Store

OK, PROBLEM, USAGE, UNAVAILABLE = 0, 1, 2, 3
SQL = ("sqlite", "postgres")
WIDE = 1_000
"""Columns of a table that no terminal shows: scripts want whole ids."""

NARROWEST, USUAL = 60, 80
"""Columns of a terminal: with fewer, or none told, tables would vanish; so its lines break."""

_NO_LOGIN = 2**32 - 1  # of a process that no login began

Verb = Callable[..., Coroutine[Any, Any, int | None]]
V = TypeVar("V", bound=Verb)

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="The store; otherwise RELEVO_STORE_URL."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="The database beside a store that is none; otherwise RELEVO_DATABASE_URL.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value, nothing else.")]
PlainOption = Annotated[bool, typer.Option("--no-color", help="No colours, also on a terminal.")]
LogFormatOption = Annotated[
    Literal["auto", "json", "text"] | None,
    typer.Option(
        "--log-format",
        help="text for people, json for machines; otherwise RELEVO_LOG_FORMAT.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NoteOption = Annotated[str, typer.Option("--note", help="Why; it is written in the audit.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show payloads and results unmasked.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many at most, up to 200.")]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Where the last page ended.")]
AppOption = Annotated[
    list[str] | None,
    typer.Option("--app", metavar="MODULE:NAME", help="An app; otherwise RELEVO_APPS. Repeatable."),
]


def _person_here() -> str:
    """The person's name, also where the command runs as a user of the system (`sudo -u relevo`).

    The kernel keeps the user that logged in; SUDO_USER tells it where there is no such record.
    """
    user = _user_of(os.getuid())
    try:
        logged_in = int(Path("/proc/self/loginuid").read_text())
        person = "" if logged_in == _NO_LOGIN else _user_of(logged_in)
    except (OSError, ValueError):
        person = ""
    person = person or os.environ.get("SUDO_USER", "")
    return user if person in ("", user) else f"{person} as {user}"


def _user_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class Terminal:
    """One call of the program."""

    def __init__(self, *, store: str | None, database: str | None, json: bool, plain: bool) -> None:
        self.json = json
        self._url = store
        self._database = database
        self._plain = plain
        self._settings: Settings | None = None
        self._console: Console | None = None

    # what it works with

    @property
    def settings(self) -> Settings:
        """The environment, read once; SettingsError names everything that is wrong with it."""
        if self._settings is None:
            from relevo.settings import Settings

            self._settings = Settings.read()
        return self._settings

    @property
    def url(self) -> str:
        return self._url or self.settings.store_url

    @property
    def database(self) -> str | None:
        return self._database or self.settings.database_url

    @property
    def person(self) -> Person:
        """The person at the terminal. Opening a store gives the right to every act on it."""
        return Person(_person_here(), Role.ADMIN)

    def store(self) -> Store:
        """The store, not yet open."""
        return _store(self.url, self.settings.seal_keys)

    def bare(self) -> Store:
        """The store as it keeps things, whatever is sealed in it still sealed; not yet open."""
        return _store(self.url, None)

    def bare_ledger(self) -> SqlStore | None:
        """The database beside a store as it keeps things; None where the store is one itself."""
        if self.database is None or self.bare().name in SQL:
            return None
        return cast("SqlStore", _store(self.database, None))

    def whole(self) -> Store:
        """The same with the database beside it, where effects and letters are kept."""
        store = self.store()
        ledger = self.ledger(store)
        return store if ledger is None else Relayed(store, ledger, Telemetry()).as_store()

    def ledger(self, store: Store) -> SqlStore | None:
        """The database beside a store, not yet open; None where the store is one itself."""
        if self.database is None or store.name in SQL:
            return None
        return cast("SqlStore", _store(self.database, self.settings.seal_keys))

    @asynccontextmanager
    async def desk(self) -> AsyncGenerator[Desk]:
        """The desk of the open store."""
        store = self.whole()
        try:
            await store.open()
            yield Desk(store, keep_dead=self.settings.keep_dead)
        finally:
            await store.close()

    def engine(
        self,
        apps: Sequence[App] = (),
        *,
        keep_dead: Duration | None = None,
        spool: str | None = None,
    ) -> Relevo:
        """An engine on the store and the database beside it, not yet open."""
        from relevo.engine import KEEP_DEAD, Relevo

        hide_password(self.database or "")
        return Relevo(
            self.store(),
            apps=apps,
            database=self.database,
            keep_dead=KEEP_DEAD if keep_dead is None else keep_dead,
            spool=spool,
            seal=self.settings.seal_keys,
            connections=self.settings.connections,
        )

    @staticmethod
    def remember(engine: Relevo) -> None:
        """Let a process that serves know what those before it have seen in the store."""
        folder = directory_of(engine.store.url)
        engine.restored.remember_in(folder.with_name(f"{folder.name}.newest"))

    def start_logging(self, form: str | None) -> bool:
        """Begin to log, for a verb that serves; whether a person is to read it.

        What is wrong with the settings is told in the form that was asked for, too.
        """
        from relevo.settings import PREFIX

        start_logging("info", form or os.environ.get(f"{PREFIX}LOG_FORMAT") or "auto")
        return start_logging(self.settings.log_level, form or self.settings.log_format)

    def apps(self, names: list[str] | None = None) -> list[App]:
        """The apps that were named, or those of RELEVO_APPS."""
        from relevo.cli.loading import load

        return load(names or self.settings.apps)

    def server(self, to: str | None) -> str:
        """The address of a running relevo: what came after --to, or else our own."""
        host, port = self.settings.host, self.settings.port
        text = to or f"http://{f'[{host}]' if ':' in host else host}:{port}"
        try:
            address = urlsplit(text)
            is_good = address.scheme in ("http", "https") and bool(address.hostname)
            is_good = is_good and address.port != 0 and re.fullmatch(r"[!-~]+", text) is not None
        except ValueError:
            is_good = False
        if not is_good:
            raise DefinitionError("--to is not an address: write one like http://relevo.example")
        return text.rstrip("/")

    # what it prints

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            width = None if sys.stdout.isatty() else WIDE
            # No pictures: `hotel:hotel:answer` is a queue, and `:hotel:` in it no hotel.
            self._console = Console(
                no_color=self._plain or None,
                width=width,
                highlight=False,
                markup=False,
                emoji=False,
            )
            if self._console.width < NARROWEST:
                self._console.width = USUAL
        return self._console

    def show(self, value: Any, text: Callable[[], RenderableType | str] | None = None) -> None:
        """Print a value: as JSON if asked for, else as the text or table that `text` makes."""
        if self.json:
            # A terminal obeys some characters that JSON lets pass as they are.
            line = json.dumps(view(value), ensure_ascii=False, indent=2)
            sys.stdout.write(_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n")
        elif text is not None:
            made = text()
            shown = clean(made) if isinstance(made, str) else made
            # What is printed as it is may be copied, or read by a shell: a line stays a line.
            self.console.print(shown, soft_wrap=isinstance(made, AsIs))

    def warn(self, text: str) -> None:
        """A line for the person, beside the output."""
        say(text)

    def ask(self, question: str, yes: bool) -> None:
        """Go on only if the person says so; without a terminal `--yes` must have been given."""
        if yes:
            return
        if self.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise DefinitionError(f"{question} There is no terminal to ask on: add --yes")
        typer.confirm(clean(question), abort=True, err=True)

    @contextmanager
    def progress(self, what: str, total: int) -> Generator[Callable[[Sweep | Replays], None]]:
        """A bar on a terminal's standard error; nothing elsewhere."""
        if self.json or not sys.stderr.isatty():
            yield lambda sweep: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
        stderr = Console(stderr=True, no_color=self._plain or None)
        with Progress(*columns, console=stderr, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda sweep: bar.update(task, completed=sweep.changed + sweep.refused)


def _store(url: str, seal: Seal | None) -> Store:
    hide_password(url)
    try:
        return sealed(open_store(url), seal)
    except ValueError as error:
        raise SettingsError(f"the store's address cannot be read: {error}") from error
    except ImportError as error:
        extra = "postgres" if url.startswith("postgres") else "redis"
        raise SettingsError(f"{error}: pip install 'relevo[{extra}]'") from error


_CONTROL = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_hidden: set[str] = set()


def hide_password(url: str) -> None:
    """Never print the password of this address, however an error quotes it."""
    try:
        password = urlsplit(url).password
    except ValueError:
        password = None
    # An address too broken to be taken apart: whatever stands between scheme and the last @.
    broken = re.match(r"[^:]*://[^:]*:(.*)@", url, re.DOTALL)
    for secret in (password, unquote(password or ""), broken and broken[1]):
        if secret and len(secret) > 2:  # one letter would be taken out of every word
            _hidden.add(secret)


def discreet(text: str) -> str:
    """What an error says, without the password of the store's address."""
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return scrub(text)


class AsIs(str):
    """Text to print with its secrets, because they are masked already or the person asked."""

    __slots__ = ()


def clean(text: str) -> str:
    """Text that is safe on a terminal: no control characters, and no secrets unless AsIs."""
    if isinstance(text, AsIs):
        return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
    return scrub(text)


def say(text: str, level: int = logging.INFO) -> None:
    """One line on standard error; in JSON where the log is."""
    line = " ".join((text if isinstance(text, AsIs) else discreet(text)).split())
    line = json_line(line, level) if logs_json() else f"relevo: {line}\n"
    # A closed standard error is no reason to fail differently.
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def ids_from(given: Iterable[str]) -> list[str]:
    """Ids as typed; `-` reads them from standard input, one a line."""
    ids: list[str] = []
    for text in given:
        ids += read_stdin().split() if text == "-" else [text]
    return ids


def read_stdin(most: int = 4_000_000) -> str:
    """What is piped in, which must be text."""
    data = sys.stdin.buffer.read(most + 1)
    if len(data) > most:
        raise DefinitionError(f"standard input has more than {most:,} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DefinitionError("standard input is not text in UTF-8") from error
    return text


def _parameters(*, is_root: bool = False) -> list[inspect.Parameter]:
    def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, annotation=annotation, default=default)

    shared = [
        parameter("ctx_", typer.Context, inspect.Parameter.empty),
        parameter("store_", StoreOption),
        parameter("database_", DatabaseOption),
        parameter("json_", JsonOption, False),
        parameter("plain_", PlainOption, False),
    ]
    return [*shared, parameter("version_", VersionOption, False)] if is_root else shared


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from relevo.version import version

        sys.stdout.write(f"relevo {version()}\n")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_version, help="Print it and exit."),
]


def _collect(
    ctx_: typer.Context, store_: str | None, database_: str | None, json_: bool, plain_: bool
) -> dict[str, Any]:
    """Shared options may stand anywhere; the one nearest to the verb wins."""
    given = cast("dict[str, Any]", ctx_.ensure_object(dict))
    given["store"] = store_ or given.get("store")
    given["database"] = database_ or given.get("database")
    given["json"] = json_ or given.get("json", False)
    given["plain"] = plain_ or given.get("plain", False)
    return given


class Verbs:
    """A group of verbs, each of which takes the shared options too."""

    def __init__(self, help: str, *, name: str | None = None) -> None:
        self.name = name
        self.typer = typer.Typer(
            name=name,
            help=help,
            no_args_is_help=True,
            add_completion=name is None,
            rich_markup_mode=None,  # rich costs a tenth of a second, help need not
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

        def shared(version_: bool = False, **given: Any) -> None:
            _collect(**given)

        every = _parameters(is_root=name is None)
        shared.__signature__ = inspect.Signature(every)  # pyright: ignore[reportFunctionMemberAccess] - typer reads it
        shared.__annotations__ = {}
        self.typer.callback(help=help)(shared)

    def verb(self, name: str) -> Callable[[V], V]:
        """Make an async function a verb of this group."""

        def add(function: V) -> V:
            signature = inspect.signature(function, eval_str=True)
            own = list(signature.parameters.values())[1:]
            own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

            def run(ctx_: typer.Context, **given: Any) -> int:
                names = ("store_", "database_", "json_", "plain_")
                shared = _collect(ctx_, **{name: given.pop(name) for name in names})
                return run_async(function(Terminal(**shared), **given)) or OK

            every = [*own, *_parameters()]
            run.__signature__ = inspect.Signature(every)  # pyright: ignore[reportFunctionMemberAccess] - typer reads it
            run.__annotations__ = {}
            run.__doc__ = function.__doc__
            self.typer.command(name)(run)
            return function

        return add

    def add(self, group: Verbs) -> None:
        self.typer.add_typer(group.typer, name=group.name)


def run_async(work: Awaitable[int | None]) -> int | None:
    """Run a verb; on uvloop where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = None

    async def whole() -> int | None:
        return await work

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        task = runner.get_loop().create_task(whole())
        while True:
            try:
                runner.run(_ended(task))
                return task.result()
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done() or is_from_keyboard(error):
                    raise
                # A task that some job has left behind raised it: it must not end the other jobs.
                log.error("a task raised %s; the process goes on", type(error).__name__)


async def _ended(task: asyncio.Task[Any]) -> None:
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:  # Ctrl-C
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            raise  # a verb that ends well when it is interrupted gives its own answer


def is_from_keyboard(error: BaseException) -> bool:
    """Whether a person has interrupted the process, and no function of an app has raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "_on_sigint"
