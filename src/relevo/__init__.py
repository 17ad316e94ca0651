"""Signed webhook, durable job, effect outside, once.

The public names, listed; nothing else lives here.
"""

from relevo.app import App, listener
from relevo.backoff import Backoff, constant, exponential
from relevo.context import Context
from relevo.engine import Receipt, Relevo, Started
from relevo.errors import (
    CircuitOpen,
    DefinitionError,
    LeaseLost,
    MisuseError,
    NotAllowed,
    NotFoundError,
    PayloadError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    QueueClosed,
    RelevoError,
    SchemaMismatch,
    SettingsError,
    SignatureError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from relevo.flow import Flow
from relevo.job import Job, State, Verdict
from relevo.message import Breaker, Command, Event, per_key
from relevo.outcome import Cancelled, Dead, Done, Retry, Snooze
from relevo.poller import Poll

__all__ = [
    "App",
    "Backoff",
    "Breaker",
    "Cancelled",
    "CircuitOpen",
    "Command",
    "Context",
    "Dead",
    "DefinitionError",
    "Done",
    "Event",
    "Flow",
    "Job",
    "LeaseLost",
    "MisuseError",
    "NotAllowed",
    "NotFoundError",
    "PayloadError",
    "Poll",
    "ProviderError",
    "ProviderRefused",
    "ProviderUnavailable",
    "ProviderUncertain",
    "QueueClosed",
    "Receipt",
    "Relevo",
    "RelevoError",
    "Retry",
    "SchemaMismatch",
    "SettingsError",
    "SignatureError",
    "Snooze",
    "Started",
    "State",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "Verdict",
    "constant",
    "exponential",
    "listener",
    "per_key",
]
