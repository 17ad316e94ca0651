"""Settings: everything wrong is named at once, and nothing secret is ever shown (C20)."""

from __future__ import annotations

import dataclasses
import re
import traceback
from datetime import timedelta
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relevo.errors import SettingsError
from relevo.settings import VARIABLES, Budget, Settings, describe, masked

CANARY = "canary-7f3a-canary"


def problems(**environ: str) -> str:
    """What is said about an environment that is wrong; nothing of it may hold the canary."""
    with pytest.raises(SettingsError) as caught:
        Settings.read({f"RELEVO_{name}": value for name, value in environ.items()})
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown
    return str(caught.value)


def test_without_any_variable_the_defaults_hold() -> None:
    assert Settings.read({}) == Settings(
        store_url="sqlite:///relevo.db",
        database_url=None,
        apps=(),
        host="127.0.0.1",
        public_url=None,
        port=8700,
        admin_password=None,
        allowed_hosts=(),
        trusted_proxies=(ip_network("127.0.0.1"), ip_network("::1")),
        concurrency=100,
        slots=(),
        connections=10,
        lease=timedelta(seconds=15),
        grace=timedelta(seconds=10),
        keep_dead=timedelta(days=90),
        log_level="info",
        log_format="auto",
        tracing="off",
        budget=None,
        spool=None,
        seal_keys=None,
    )


@pytest.mark.parametrize(
    ("written", "meant"), [("off", "off"), (" OFF ", "off"), (" /var/spool.db ", "/var/spool.db")]
)
def test_a_spool_is_a_path_or_off(written: str, meant: str) -> None:
    assert Settings.read({"RELEVO_SPOOL": written}).spool == meant


def test_twelve_characters_are_enough_for_a_password() -> None:
    assert Settings.read({"RELEVO_ADMIN_PASSWORD": "twelve.chars"}).admin_password


def test_every_variable_is_read() -> None:
    read = Settings.read(
        {
            "RELEVO_STORE_URL": "redis+cluster://:pw@one:7000,two:7000?prefix=x\n",
            "RELEVO_DATABASE_URL": "postgresql://u:p@db/app",
            "RELEVO_APPS": "shop.jobs:app, hotel ,cars,",
            "RELEVO_HOST": "::1",
            "RELEVO_PUBLIC_URL": "https://api.example.com/",
            "RELEVO_PORT": "0",
            "RELEVO_ADMIN_PASSWORD": "correct horse battery",
            "RELEVO_ALLOWED_HOSTS": "Relevo.example.com, .internal",
            "RELEVO_TRUSTED_PROXIES": "10.0.3.4, fd00::/8",
            "RELEVO_CONCURRENCY": "10000",
            "RELEVO_SLOTS": "shop:mail:send=20, shop:orders:pay=40",
            "RELEVO_CONNECTIONS": "20",
            "RELEVO_LEASE": "1m30s",
            "RELEVO_GRACE": "0s",
            "RELEVO_KEEP_DEAD": "7d",
            "RELEVO_LOG_LEVEL": "WARNING",
            "RELEVO_LOG_FORMAT": "json",
            "RELEVO_TRACING": "On",
            "RELEVO_BUDGET": "10k/day",
            "RELEVO_TEST_REDIS_URL": "anything",
            "PATH": "/bin",
        }
    )
    assert read == Settings(
        store_url="redis+cluster://:pw@one:7000,two:7000?prefix=x",
        database_url="postgresql://u:p@db/app",
        apps=("shop.jobs:app", "hotel", "cars"),
        host="::1",
        public_url="https://api.example.com",
        port=0,
        admin_password="correct horse battery",
        allowed_hosts=("relevo.example.com", ".internal"),
        trusted_proxies=(ip_network("10.0.3.4"), ip_network("fd00::/8")),
        concurrency=10_000,
        slots=(("shop:mail:send", 20), ("shop:orders:pay", 40)),
        connections=20,
        lease=timedelta(seconds=90),
        grace=timedelta(),
        keep_dead=timedelta(days=7),
        log_level="warning",
        log_format="json",
        tracing="on",
        budget=Budget(10_000, timedelta(days=1)),
        spool=None,
        seal_keys=None,
    )


def test_a_setting_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings.read({}).port = 1


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_PORT", "8765")
    assert Settings.read().port == 8765


def test_an_empty_variable_is_as_good_as_absent() -> None:
    assert Settings.read({variable.name: "" for variable in VARIABLES}) == Settings.read({})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "STORE_URL",
            "mysql://host/db",
            "is not an address that can be used: write sqlite:///path",
        ),
        ("STORE_URL", "relevo.db", "is not an address"),
        ("STORE_URL", f"redis:/{CANARY}@host", "is not an address"),
        ("STORE_URL", f"redis://:{CANARY}\n@host", "is not an address"),
        ("DATABASE_URL", f"redis://:{CANARY}@host", "write sqlite:///path or postgresql://…"),
        ("APPS", "shop jobs", "as module:attribute or by name"),
        ("APPS", "shop:app:more", "as module:attribute"),
        ("APPS", "../shop", "as module:attribute"),
        ("APPS", "hotel,hotel", "once each"),
        ("APPS", "os;rm", "as module:attribute"),
        ("HOST", "a b", "is not a host"),
        ("HOST", "http://x", "is not a host"),
        ("PORT", "http", "is a whole number from 0 to 65,535"),
        ("PORT", "65536", "is a whole number from 0 to 65,535"),
        ("PORT", "-1", "is a whole number"),
        ("PORT", "8700.0", "is a whole number"),
        ("PORT", "8_700", "is a whole number"),
        ("PORT", "٨٧٠٠", "is a whole number"),
        ("PORT", "9" * 5_000, "is a whole number"),
        ("CONCURRENCY", "0", "is a whole number from 1 to 10,000"),
        ("CONCURRENCY", "10001", "is a whole number from 1 to 10,000"),
        ("CONCURRENCY", "1e3", "is a whole number"),
        ("LEASE", "15", "is a duration from 100ms to 1h"),
        ("LEASE", "0s", "is a duration from 100ms to 1h"),
        ("LEASE", "2h", "is a duration from 100ms to 1h"),
        ("LEASE", "999999999999d", "is a duration"),
        ("GRACE", "-1s", "is a duration"),
        ("GRACE", "NaN", "is a duration"),
        ("KEEP_DEAD", "1s", "is a duration from 1h to 3650d"),
        ("LOG_LEVEL", "loud", "is one of debug, info, warning, error"),
        ("LOG_FORMAT", "xml", "is one of auto, json, text"),
        ("BUDGET", "10", "'10k/day'"),
        ("BUDGET", "0/day", "'10k/day'"),
        ("BUDGET", "10k/fortnight", "'10k/day'"),
        ("ADMIN_PASSWORD", "changeme", "is too easily guessed"),
        ("ADMIN_PASSWORD", "Change-Me-12345", "is too easily guessed"),
        ("ADMIN_PASSWORD", "password123456", "is too easily guessed"),
        ("ADMIN_PASSWORD", "elevenchars", "12 characters or more"),
        ("ADMIN_PASSWORD", "aaaaaaaaaaaaaaaa", "is too easily guessed"),
        ("ADMIN_PASSWORD", f"{CANARY}\n", "white space"),
        ("ADMIN_PASSWORD", f" {CANARY}", "white space"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_write(name: str, value: str, says: str) -> None:
    said = problems(**{name: value})
    assert said.startswith(f"RELEVO_{name} ")
    assert says in said


@pytest.mark.parametrize("url", ["redis", "redis:", "redis://", "://", "sqlite:relevo.db"])
def test_half_an_address_is_none(url: str) -> None:
    assert "is not an address" in problems(STORE_URL=url)


@pytest.mark.parametrize("text", ["1/minute", "10k/day", "2M/month", "500/hour"])
def test_a_budget_is_so_many_commands_in_so_long(text: str) -> None:
    read = Settings.read({"RELEVO_BUDGET": text}).budget
    assert read is not None
    assert read.commands >= 1
    assert read.per >= timedelta(minutes=1)


def test_everything_wrong_is_named_at_once() -> None:
    said = problems(PORT="x", LEASE="x", STOR_URL="x", ADMIN_PASSWORD="short", LOG_LEVEL="info")
    for name in ("RELEVO_PORT", "RELEVO_LEASE", "RELEVO_STOR_URL", "RELEVO_ADMIN_PASSWORD"):
        assert name in said
    assert "RELEVO_LOG_LEVEL" not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("STOR_URL", "RELEVO_STORE_URL"),
        ("STORE", "RELEVO_STORE_URL"),
        ("DB_URL", "RELEVO_DATABASE_URL"),
        ("ADMIN_PASS", "RELEVO_ADMIN_PASSWORD"),
        ("CONCURENCY", "RELEVO_CONCURRENCY"),
        ("LOGLEVEL", "RELEVO_LOG_LEVEL"),
        ("port", "RELEVO_PORT"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known(name: str, nearest: str) -> None:
    said = problems(**{name: CANARY})
    assert f"RELEVO_{name}" in said
    assert f"did you mean {nearest}?" in said


def test_variables_of_tests_and_of_others_are_left_alone() -> None:
    environ = {"RELEVO_TEST_SEED": "1", "RELEVO": "x", "MY_RELEVO_PORT": "x", "STRIPE_KEY": "x"}
    assert Settings.read(environ) == Settings.read({})


def test_a_name_that_is_no_name_is_shown_safely() -> None:
    assert "\n" not in problems(**{"X\n\x1b[31m": "1"})
    assert len(problems(**{"X" * 10_000: "1"})) < 200


def test_c20_no_secret_is_shown() -> None:
    read = Settings.read(
        {
            "RELEVO_STORE_URL": f"redis://:{CANARY}@host/0?sentinel_password={CANARY}",
            "RELEVO_DATABASE_URL": f"postgresql://u:{CANARY}@db/app",
            "RELEVO_ADMIN_PASSWORD": CANARY,
        }
    )
    assert CANARY not in repr(read) + str(read) + str(read.shown())
    assert "store_url=redis://:***@host/0?sentinel_password=***" in repr(read)
    assert "admin_password=***" in repr(read)
    assert read.admin_password == CANARY


def test_the_table_and_the_settings_are_the_same_list() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert [variable.field for variable in VARIABLES] == names
    assert [line.variable for line in describe()] == [f"RELEVO_{n.upper()}" for n in names]


def test_the_table_reads_well() -> None:
    for line in describe():
        assert re.match(r"[a-z0-9]", line.meaning), line
        assert not line.meaning.endswith("."), line
        assert len(line.meaning) < 100, line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", ""),
        ("sqlite:///relevo.db", "sqlite:///relevo.db"),
        ("sqlite:////home/a@b/relevo.db", "sqlite:////home/a@b/relevo.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://default:pw@[::1]:6379", "redis://default:***@[::1]:6379"),
        ("postgresql://u:p:w@a:1,b:2/db", "postgresql://u:***@a:1,b:2/db"),
        ("postgresql://u@host/db", "postgresql://u@host/db"),
        ("https://0123456789abcdef0@host/", "https://***@host/"),
        ("postgresql://h/db?user=a@b", "postgresql://h/db?user=a@b"),
        ("postgresql://h:5432/db?password=p@w", "postgresql://h:5432/db?***"),
        ("postgresql://u:p@h:5433/db?user=a@b", "postgresql://u:***@h:5433/db?***"),
        ("postgresql://u@h:5432/db?password=p@w", "postgresql://u@h:5432/db?***"),
        ("postgresql://u:p@h/db?x=1&password=p?w", "postgresql://u:***@h/db?x=1&password=***"),
        ("redis://:p@h:6379/0?a=b@c:1", "redis://:***@h:6379/0?***"),
        ("postgresql://h/db?password=pw&x=1", "postgresql://h/db?password=***&x=1"),
        ("postgresql:///db?sslpassword=pw#f", "postgresql:///db?sslpassword=***#f"),
        ("redis://h?sentinel_password=pw&prefix=x", "redis://h?sentinel_password=***&prefix=x"),
        ("https://h/hook?token=pw&id=3", "https://h/hook?token=***&id=3"),
        ("redis://:p/w@host/0", "redis://:***@host/0"),
        ("redis://:p?w@host/0", "redis://:***@host/0"),
        ("redis://:p#w@host/0", "redis://:***@host/0"),
        ("redis://u:p@w/p@host/0", "redis://u:***@host/0"),
        ("redis://:a@h1,redis://:b@h2", "redis://:***@h2"),
        ("u:pw@host", "u:***@host"),
        ("host=h user=u password=pw dbname=d", "host=h user=u password=*** dbname=d"),
        ("host=h password = 'p w' dbname=d", "host=h password = *** dbname=d"),
        ("redis://[::1", "redis://[::1"),
        ("redis://:pw@[::1", "redis://:***@[::1"),
        ("://", "://"),
        ("@", "@"),
        (":@", ":***@"),
        ("redis://:\ud800pw@host", "redis://:***@host"),
    ],
)
def test_c20_a_url_is_shown_without_its_passwords(url: str, shown: str) -> None:
    assert masked(url) == shown


@settings(deadline=None, database=None)
@given(st.text(max_size=100))
def test_a_mask_never_fails(text: str) -> None:
    for url in (text, f"redis://{text}", f"redis://:{text}@host/0"):
        masked(url)


@settings(deadline=None, database=None)
@given(st.text(st.sampled_from("ab:/?#@%[]&;= "), max_size=12))
def test_c20_no_password_survives_however_badly_it_is_written(password: str) -> None:
    secret = f"QQ{password}QQ"
    assert "QQ" not in masked(f"redis://user:{secret}@host:6379/0")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ["a", "a=", "@", ":", "=", "'", "?a=", " ", "://"])
def test_a_mask_is_quick(piece: str) -> None:
    masked("redis://" + piece * 100_000)
