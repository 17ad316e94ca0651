"""The address of a client behind proxies: only what a trusted proxy has seen counts."""

from __future__ import annotations

import pytest

from relevo.addresses import Proxies, networks

CLIENT, LIAR, PEER = "198.51.100.4", "203.0.113.66", "10.0.3.4"
PROXIES = Proxies(networks("127.0.0.1,::1,10.0.0.0/8,fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "named", "client"),
    [
        (PEER, [CLIENT], CLIENT),
        (PEER, [f"{CLIENT}, 10.9.9.9"], CLIENT),
        (PEER, [CLIENT, "10.9.9.9"], CLIENT),  # two headers are one list
        ("::ffff:10.0.3.4", [CLIENT], CLIENT),
        ("fd00::7", ["2001:db8::5"], "2001:db8::5"),
        (PEER, [f"{CLIENT}:4711"], CLIENT),
        (PEER, ["[2001:db8::5]:4711"], "2001:db8::5"),
        (PEER, [], PEER),
        (PEER, ["10.0.0.9"], "10.0.0.9"),  # a client in the proxies' own network
    ],
)
def test_what_a_trusted_proxy_has_seen_is_the_client(
    peer: str, named: list[str], client: str
) -> None:
    assert PROXIES.client(peer, named) == client


@pytest.mark.parametrize(
    ("peer", "named", "client"),
    [
        (LIAR, [CLIENT], LIAR),  # from no proxy
        (LIAR, ["127.0.0.1"], LIAR),
        ("", [CLIENT], ""),
        ("unix:", ["127.0.0.1"], "unix:"),
        (PEER, [f"{CLIENT}, {LIAR}"], LIAR),  # written by the client, before the proxy added
        (PEER, [f"127.0.0.1, {LIAR}"], LIAR),
        (PEER, [f"127.0.0.1, 10.0.0.1, {LIAR}, 10.9.9.9"], LIAR),
        (PEER, ["127.0.0.1", LIAR], LIAR),
        (PEER, [f"{CLIENT}, nonsense"], PEER),
        (PEER, [f"{CLIENT}, "], PEER),
        (PEER, [f"{CLIENT}, nonsense, 10.9.9.9"], "10.9.9.9"),
        (PEER, ["unknown"], PEER),
        (PEER, ["9" * 100_000], PEER),
        (PEER, ["127.0.0.1\n198.51.100.4"], PEER),
    ],
)
def test_what_a_client_wrote_itself_counts_for_nothing(
    peer: str, named: list[str], client: str
) -> None:
    assert PROXIES.client(peer, named) == client


def test_the_memory_for_addresses_is_bounded() -> None:
    """C38"""
    proxies = Proxies(networks("10.0.0.0/8"))
    for number in range(20_000):
        assert f"192.0.{number >> 8}.{number & 255}" not in proxies
    assert len(proxies._found) <= 4_096  # pyright: ignore[reportPrivateUsage]
