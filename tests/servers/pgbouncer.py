"""A private PgBouncer in front of a private PostgreSQL: Debian's own package, found or fetched."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.servers.ports import free_port
from tests.servers.postgres import ROLE, PostgresServer, _account

PACKAGES = ("pgbouncer", "libc-ares2", "libevent-2.1-7")


@functools.cache
def _installed() -> tuple[Path, Path | None]:
    """The program, and the folder of the libraries that came with it, if it had to be fetched."""
    for name in ("pgbouncer", "/usr/sbin/pgbouncer"):
        if found := shutil.which(name):
            return Path(found), None
    home = Path(tempfile.gettempdir()) / f"relevo-pgbouncer-{os.getuid()}"
    program = home / "usr/sbin/pgbouncer"
    if not program.exists():
        made = Path(tempfile.mkdtemp(prefix="relevo-pgbouncer-"))
        made.chmod(0o755)
        try:
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=made, check=True, stdout=2)
            for package in made.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
            if not home.exists():
                made.rename(home)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"no PgBouncer: install Debian's 'pgbouncer' ({error})") from error
    return program, next(home.glob("usr/lib/*-linux-gnu"))


class PgBouncer:
    """One pooler, stopped at the end of its block; it has `size` sessions at the server."""

    def __init__(self, server: PostgresServer, *, mode: str, size: int = 5) -> None:
        self._server, self._mode, self._size = server, mode, size
        self.port = free_port()

    @property
    def url(self) -> str:
        pooler = "?pooler=1" if self._mode == "transaction" else ""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}{pooler}"

    def __enter__(self) -> PgBouncer:
        program, libraries = _installed()
        self._home = Path(tempfile.mkdtemp(prefix="relevo-pgb-"))
        self._home.chmod(0o755)
        (self._home / "users").write_text(f'"{ROLE}" ""\n')
        (self._home / "ini").write_text(
            "[databases]\n"
            f"{ROLE} = host=127.0.0.1 port={self._server.port} dbname={ROLE} user={ROLE}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._home / 'users'}\n"
            f"pool_mode = {self._mode}\ndefault_pool_size = {self._size}\nmax_client_conn = 200\n"
            "ignore_startup_parameters = extra_float_digits,options,search_path,"
            "default_transaction_isolation,statement_timeout,lock_timeout,"
            "idle_in_transaction_session_timeout,tcp_keepalives_idle,tcp_keepalives_interval,"
            "tcp_keepalives_count,client_min_messages,jit,plan_cache_mode,enable_seqscan,"
            "enable_bitmapscan,enable_hashjoin,enable_mergejoin,enable_sort\n"
        )
        environment = dict(os.environ)
        if libraries is not None:
            environment["LD_LIBRARY_PATH"] = str(libraries)
        self._log = (self._home / "log").open("wb")
        self._process = subprocess.Popen(
            [program, self._home / "ini"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **_account(),  # type: ignore[arg-type] - user, group and extra_groups
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                log = (self._home / "log").read_text()
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer did not start:\n{log}") from None
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)
