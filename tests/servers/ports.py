"""Ports for servers that are told theirs before they start."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"
BUS = 10_000  # a Redis cluster's node listens for its peers on its port + 10000
# Below those that the system gives to whoever calls out: it would take one between here and there.
LOWEST, HIGHEST = 10_000, 32_000 - BUS


def free_port() -> int:
    """A port that nobody has at the moment, and neither the one above it for a cluster's bus."""
    while True:
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as probe, socket.socket() as bus:
            try:
                probe.bind((HOST, port))
                bus.bind((HOST, port + BUS))
            except OSError:
                continue
            return port
