"""What the doctor finds in a PostgreSQL server's settings and in the state of its tables."""

from __future__ import annotations

from relevo.store import Finding
from relevo.stores.postgres.session import Session

OLDEST = 140_000
LONG_TRANSACTION = 60
"""Seconds after which an open transaction keeps the dead rows of the hot table from being freed."""


class Doctor(Session):
    """The verb `check`."""

    async def check(self) -> list[Finding]:
        rows = await self._people.fetch(
            self._sql("""
            select
                current_setting('server_version_num')::integer as version,
                current_setting('server_version') as version_text,
                current_setting('synchronous_commit') as synchronous_commit,
                current_setting('fsync') as fsync,
                current_setting('full_page_writes') as full_page_writes,
                current_setting('transaction_read_only') = 'on' or pg_is_in_recovery() as read_only,
                current_setting('autovacuum') as autovacuum,
                current_setting('max_connections')::integer
                    - current_setting('superuser_reserved_connections')::integer as places,
                (select sum(numbackends) from pg_stat_database)::integer as taken,
                (
                    select extract(epoch from max(clock_timestamp() - xact_start))::bigint
                    from pg_stat_activity
                    where state <> 'idle' and xact_start is not null and pid <> pg_backend_pid()
                        and backend_type = 'client backend'
                ) as oldest,
                (select count(*) from relevo.jobs) as live,
                pg_total_relation_size($1::text::regclass) as bytes,
                coalesce((
                    select n_dead_tup from pg_stat_all_tables where relid = $1::text::regclass
                ), 0) as dead
            """),
            self._sql("relevo.jobs"),
            repeat=True,
        )
        found = rows[0]
        self.places.server = found["places"]
        megabytes = found["bytes"] // 1_048_576
        return [
            _finding(
                found["version"] >= OLDEST,
                "error",
                "version",
                f"PostgreSQL {found['version_text']}",
                "relevo needs PostgreSQL 14 or newer",
            ),
            _finding(
                found["fsync"] == "on" and found["full_page_writes"] == "on",
                "error",
                "fsync",
                f"fsync is {found['fsync']}, full_page_writes {found['full_page_writes']}",
                "a power cut may destroy the database: set both to on",
            ),
            _finding(
                found["synchronous_commit"] not in ("off", "local"),
                "warning",
                "synchronous_commit",
                f"synchronous_commit is {found['synchronous_commit']}",
                "a crash or fail-over may lose acknowledged jobs: set it to on",
            ),
            _finding(
                not found["read_only"],
                "error",
                "read-only",
                "the server is read-only" if found["read_only"] else "the server takes writes",
                "this is a replica, or told so: name the primary, or several hosts with "
                "target_session_attrs=read-write",
            ),
            _finding(
                found["autovacuum"] == "on",
                "warning",
                "autovacuum",
                f"autovacuum is {found['autovacuum']}",
                "ended jobs and memory will bloat: set it to on",
            ),
            _finding(
                (found["oldest"] or 0) < LONG_TRANSACTION,
                "warning",
                "oldest transaction",
                f"the oldest open transaction is {found['oldest'] or 0} s old",
                "it keeps dead rows from being freed and claims get slower: find it in "
                "pg_stat_activity, and set idle_in_transaction_session_timeout",
            ),
            _finding(
                found["places"] - found["taken"] > max(10, found["places"] // 10),
                "warning",
                "connections",
                f"{found['taken']} of {found['places']} connections are taken",
                f"a process of relevo opens up to {self.places.most}: raise max_connections, lower "
                "RELEVO_CONNECTIONS, or use a pooler",
            ),
            _finding(
                found["dead"] < max(200_000, 2 * found["live"])
                and megabytes < 200 + 8 * found["live"] // 1_000,
                "warning",
                "bloat",
                f"the jobs table has {found['live']} live and {found['dead']} dead rows "
                f"in {megabytes} MB",
                "vacuum cannot keep up: look for long transactions, then "
                f"'vacuum full {self._sql('relevo.jobs')}' in a quiet hour",
            ),
        ]


def _finding(fine: bool, level: str, subject: str, fact: str, advice: str) -> Finding:
    if fine:
        return Finding(level="ok", subject=subject, message=fact)
    return Finding(
        level="error" if level == "error" else "warning",
        subject=subject,
        message=f"{fact}: {advice}",
    )
