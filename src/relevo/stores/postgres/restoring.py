"""Loads a dump of a PostgreSQL store into an empty database, with PostgreSQL's own pg_restore."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from relevo.errors import DefinitionError, MisuseError, StoreUnavailable
from relevo.stores.postgres.address import parse
from relevo.stores.postgres.lines import Door

_TABLE = re.compile(r"^\d+;.* TABLE (?P<schema>\S+) jobs ", re.MULTILINE)
_TABLES = """
select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
"""


async def restore(dump: Path, url: str) -> None:
    """Load a dump, all or nothing; the database must have no tables yet."""
    await asyncio.to_thread(_refuse_files, dump)
    tool = _tool()
    schema = parse(url).schema
    listed = await _run([tool, "--list", str(dump)], {})
    if schema not in {found["schema"] for found in _TABLE.finditer(listed)}:
        raise DefinitionError(f"{dump} is a dump, but has no store of relevo in schema '{schema}'")
    await _refuse_full(url)
    plain, password = _without_password(url)
    words = ["--exit-on-error", "--single-transaction", "--no-owner", "--dbname", plain, str(dump)]
    await _run([tool, *words], {"PGPASSWORD": password} if password else {})


def _refuse_files(path: Path) -> None:
    """Say what to do with copies that pg_restore does not read."""
    if (path / "PG_VERSION").exists() or (path / "backup_label").exists():
        raise DefinitionError(
            f"{path} is a base backup, which the server restores itself: stop it and every process "
            "of relevo, put the folder in the place of its data folder (for a moment in time with "
            "restore_command, recovery_target_time and an empty recovery.signal), start it, wait "
            "until it takes writes, then `relevo migrate` and `relevo database mark-restored`"
        )
    if path.is_file():
        with path.open("rb") as opened:
            head = opened.read(512)
        if not head.startswith(b"PGDMP") and head[257:262] != b"ustar":
            raise DefinitionError(
                f"{path} is no archive of pg_dump: take -Fc, -Fd or -Ft. A script of SQL is run by "
                "psql in an empty database; then `relevo migrate` and `relevo database "
                "mark-restored`"
            )
    elif not (path / "toc.dat").exists():
        raise DefinitionError(f"{path} is neither an archive of pg_dump nor a base backup")


def _tool() -> str:
    installed = Path("/usr/lib/postgresql").glob("*/bin/pg_restore")
    newest = sorted(installed, key=lambda path: float(path.parts[-3]))
    if found := shutil.which("pg_restore") or (str(newest[-1]) if newest else None):
        return found
    raise DefinitionError(
        "pg_restore is not installed here: run it where it is, into an empty database, then "
        "`relevo migrate` and `relevo database mark-restored`"
    )


async def _refuse_full(url: str) -> None:
    connection = await Door(parse(url)).open()
    try:
        tables = await connection.fetchval(_TABLES)
    finally:
        await connection.close()
    if tables:
        raise MisuseError(
            f"the database has {tables} tables, and a dump goes into an empty one: make it with "
            "createdb, name it with --to, and have RELEVO_STORE_URL name it afterwards; the old "
            "one stays as it is"
        )


def _without_password(url: str) -> tuple[str, str]:
    """The address for a program whose arguments everybody can read."""
    split = urlsplit(parse(url).dsn)
    login, at, place = split.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return urlunsplit(split._replace(netloc=f"{user}{at}{place}")), unquote(password)


async def _run(words: list[str], more: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *words,
        env=os.environ | more,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        said = err.decode(errors="replace").strip().splitlines()[:3]
        raise StoreUnavailable(f"pg_restore changed nothing: {' '.join(said)}")
    return out.decode(errors="replace")
