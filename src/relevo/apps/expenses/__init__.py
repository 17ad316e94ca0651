"""WhatsApp expenses: a message becomes an expense, once, and is confirmed, once.

Its table of contents. Messages are queued by relevo itself or, where QSTASH_TOKEN is set, by
QStash; both end in the same worker.
"""

from __future__ import annotations

from relevo import App, site, webhook
from relevo.apps.expenses import panel, webhooks, workers
from relevo.apps.expenses.gateways import open_gateways
from relevo.apps.expenses.records import open_records
from relevo.apps.expenses.settings import PROCESS, WEBHOOK, open_settings
from relevo.apps.tables import tables

MIGRATIONS = "relevo.apps.expenses.migrations"

app = App(
    "expenses",
    webhooks=[
        webhook(
            WEBHOOK,
            webhooks.whatsapp,
            source=webhooks.meta,
            key=webhooks.key_of_meta,
            challenge=webhooks.challenge,
            limit=webhooks.PAYLOAD_MAX,
        ),
        webhook(
            PROCESS,
            webhooks.process,
            source=webhooks.qstash,
            key=webhooks.key_of_qstash,
            content_types=("application/json",),
        ),
    ],
    workers=[
        workers.publish_message,
        workers.spread_messages,
        workers.set_aside,
        workers.process_message,
        workers.send_reply,
        workers.record_statuses,
    ],
    migrations=MIGRATIONS,
    resources=[tables(MIGRATIONS), open_settings, open_records, open_gateways],
    sites=[
        site("/expenses", panel.build, title="Expenses"),
        site("/my/expenses", panel.build_mine),
    ],
)
