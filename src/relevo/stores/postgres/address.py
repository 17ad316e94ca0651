"""Where the database is: a URL with one or more hosts, and a few options of our own."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from relevo.errors import SettingsError

DEFAULT_PORT = 5432
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}", re.ASCII)
_RELEVO = re.compile(r"\brelevo\.")
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")

Session = Literal["any", "read-write"]


class Address(Struct, frozen=True, kw_only=True):
    """A PostgreSQL store's URL, taken apart."""

    dsn: str
    public: str  # without password, for people
    hosts: tuple[tuple[str, int] | None, ...]  # None: whatever the driver finds in `dsn`
    session: Session  # what a host must be good for
    schema: str
    pooler: bool  # a transaction pooler is in between: keep nothing in the session

    def sql(self, text: str) -> str:
        """A statement written for the schema `relevo`, for this one."""
        return _RELEVO.sub(f'"{self.schema}".', text)


def parse(url: str) -> Address:
    """The address; SettingsError where it is none."""
    split = urlsplit(url)
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    schema = options.pop("schema", "relevo")
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise SettingsError(
            f"{schema!r:.60} cannot be relevo's schema: use lower-case letters, digits and '_', "
            "48 characters at most, not beginning with a digit nor with 'pg_'"
        )
    pooler = options.pop("pooler", "0")
    if pooler not in {"0", "1"}:
        raise SettingsError("the option 'pooler' is 1 behind a transaction pooler, else 0")
    # Everyone's habit from libpq; ours is bound by the deadline of every call anyway.
    options.pop("connect_timeout", None)

    auth, _, spec = split.netloc.rpartition("@")
    hosts = _hosts(spec or options.get("host", ""), options.get("port", ""))
    session = options.pop("target_session_attrs", "read-write" if len(hosts) > 1 else "any")
    if session not in ("any", "read-write"):
        raise SettingsError("a store writes: target_session_attrs is 'read-write' or 'any'")
    user = auth.partition(":")[0]
    shown = {name: value for name, value in options.items() if "password" not in name}
    return Address(
        dsn=urlunsplit((split.scheme, split.netloc, split.path, urlencode(options), "")),
        public=urlunsplit(
            (
                split.scheme,
                f"{user}@{spec}" if user else spec,
                split.path,
                urlencode(shown | {"schema": schema} if schema != "relevo" else shown),
                "",
            )
        ),
        hosts=hosts,
        session=session,
        schema=schema,
        pooler=pooler == "1",
    )


def _hosts(spec: str, ports: str) -> tuple[tuple[str, int] | None, ...]:
    if not spec:
        return (None,)
    if spec.startswith("/"):
        return ((spec, int(ports or DEFAULT_PORT)),)
    found: list[tuple[str, int] | None] = []
    for number, part in enumerate(spec.split(",")):
        match = _HOST.fullmatch(unquote(part))
        if match is None:
            raise SettingsError(f"{part!r:.60} is not host:port in the store's URL")
        port = match["port"] or (ports.split(",") + [""] * (number + 1))[number] or DEFAULT_PORT
        found.append((match["six"] or match["name"], int(port)))
    return tuple(found)
