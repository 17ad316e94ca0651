"""What systemd gives a process, and what it is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import supervisor
from relevo.errors import SettingsError
from relevo.ingress.sockets import inherited, listen


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(str(tmp_path / "notify"))
        own.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield own


def test_the_supervisor_is_told(heard: socket.socket) -> None:
    supervisor.notify("READY=1\nSTATUS=serving")
    assert heard.recv(100) == b"READY=1\nSTATUS=serving"


def test_an_abstract_address_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(f"\0relevo-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@relevo-test-{os.getpid()}")
        supervisor.notify("READY=1")
        assert own.recv(100) == b"READY=1"


def test_without_a_supervisor_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    supervisor.notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    supervisor.notify("READY=1")


def test_the_watchdog_beats_twice_in_its_time_and_no_more(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("relevo.supervisor.time.monotonic", lambda: now[0])
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    watchdog = supervisor.Watchdog()
    assert watchdog.every == 30
    for moment in (100.0, 101.0, 129.0, 130.0):
        now[0] = moment
        watchdog.beat()
    assert heard.recv(100) == heard.recv(100) == b"WATCHDOG=1"
    with pytest.raises(BlockingIOError):
        heard.recv(100)


@pytest.mark.parametrize("pid", ["1", "nobody"])
def test_a_watchdog_and_sockets_of_another_process_are_not_ours(
    pid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setenv("WATCHDOG_PID", pid)
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", pid)
    assert supervisor.Watchdog().every is None
    assert supervisor.descriptors() == []


def test_sockets_begin_with_descriptor_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    assert supervisor.descriptors() == [3, 4]
    monkeypatch.setenv("LISTEN_FDS", "two")
    assert supervisor.descriptors() == []


def test_an_inherited_socket_serves_and_survives_exec() -> None:
    with listen("127.0.0.1", 0) as own:
        number = os.dup(own.fileno())
        [given] = inherited([number])
        with given:
            assert given.getsockname() == own.getsockname()
            assert os.get_inheritable(number)


def test_a_descriptor_that_is_no_tcp_socket_is_refused(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    with pytest.raises(SettingsError, match=f"descriptor {file} is no socket"):
        inherited([file])
    os.close(file)
    with pytest.raises(SettingsError, match="descriptor 1999 is no socket"):
        inherited([1999])
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        number = socket.socket(socket.AF_INET, kind).detach()  # a stream that is bound to nothing
        with pytest.raises(SettingsError, match=f"descriptor {number} is no bound TCP socket"):
            inherited([number])
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "unix"))
        number = os.dup(one.fileno())
        with pytest.raises(SettingsError, match="name a host and port in ListenStream="):
            inherited([number])
