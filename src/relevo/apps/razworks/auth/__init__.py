"""auth, its table of contents: who registers, and the letter that welcomes them."""

from __future__ import annotations

from relevo import listener
from relevo.apps.razworks.auth import listeners, workers

WORKERS = [workers.welcome]
LISTENERS = [
    listener(listeners.order_welcome, queue="razworks:auth:order-welcome"),
]
