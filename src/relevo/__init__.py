"""Signed webhook, durable job, effect outside, once.

The public names, listed; nothing else lives here.
"""

from typing import TYPE_CHECKING

from relevo import sources
from relevo.app import App, listener
from relevo.backoff import Backoff, constant, exponential
from relevo.client_errors import (
    ErrorRow,
    Means,
    Proof,
    judge_client_error,
    judge_response,
    retry_after_of,
)
from relevo.context import Context
from relevo.engine import Relevo
from relevo.errors import (
    BodyError,
    CircuitOpen,
    DefinitionError,
    GroupClosed,
    LeaseLost,
    MisuseError,
    NotAllowed,
    NotFoundError,
    PayloadError,
    ProviderCredentials,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    QueueClosed,
    RelevoError,
    SchemaMismatch,
    SealError,
    SettingsError,
    SignatureError,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from relevo.events import Published
from relevo.flow import Flow, Results
from relevo.group import Group
from relevo.handles import FlowHandle, JobHandle
from relevo.intake import Intake, Reject
from relevo.job import Job, State, Verdict
from relevo.message import Breaker, Command, Event, per_key
from relevo.orders import Receipt, Started
from relevo.outcome import Cancelled, Dead, Done, Retry, Snooze
from relevo.plain_context import PlainContext, PlainFlow, PlainGroup, PlainJob
from relevo.poller import BadItem, Poll
from relevo.route import site, webhook
from relevo.sealing import SealKeys
from relevo.signatures import Key
from relevo.webhook import Answer, Delivery

__all__ = [
    "Answer",
    "App",
    "Backoff",
    "BadItem",
    "BodyError",
    "Breaker",
    "Cancelled",
    "CircuitOpen",
    "Command",
    "Context",
    "Dead",
    "DefinitionError",
    "Delivery",
    "Done",
    "ErrorRow",
    "Event",
    "Flow",
    "FlowHandle",
    "Group",
    "GroupClosed",
    "Intake",
    "Job",
    "JobHandle",
    "Key",
    "LeaseLost",
    "Means",
    "MisuseError",
    "NotAllowed",
    "NotFoundError",
    "PayloadError",
    "PlainContext",
    "PlainFlow",
    "PlainGroup",
    "PlainJob",
    "Poll",
    "Proof",
    "ProviderCredentials",
    "ProviderError",
    "ProviderRefused",
    "ProviderUnavailable",
    "ProviderUncertain",
    "Published",
    "QueueClosed",
    "Receipt",
    "Reject",
    "Relevo",
    "RelevoError",
    "Results",
    "Retry",
    "SchemaMismatch",
    "SealError",
    "SealKeys",
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
    "judge_client_error",
    "judge_response",
    "listener",
    "per_key",
    "retry_after_of",
    "site",
    "webhook",
]

_ELSEWHERE = {
    name: f"`from relevo import sources`, then sources.{name}(…)" for name in sources.__all__
} | {
    name: f"`from {place} import {name}`"
    for place, names in {
        "relevo.testing": "FaultyProvider FaultyStore ManualClock assert_enqueued deliver drain "
        "enqueued sweep until working",
        "relevo.store": "By Filter Tally",
        "relevo.clock": "Clock Duration SystemClock",
    }.items()
    for name in names.split()
}
"""Names that people look for here and that live elsewhere, with what to write instead."""


if not TYPE_CHECKING:  # a type checker shall still find a name that is misspelt

    def __getattr__(name: str) -> object:
        if name in _ELSEWHERE:
            raise ImportError(f"relevo has no {name!r}: write {_ELSEWHERE[name]}", name="relevo")
        raise AttributeError(f"module 'relevo' has no attribute {name!r}")
