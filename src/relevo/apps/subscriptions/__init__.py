"""Stripe subscriptions: each one is welcomed by letter, added to a list and written to a sheet.

Its table of contents. The three integrations run from relevo's own queues, or, where REDIS_HOST is
set, from the three Redis streams that other programs know.
"""

from __future__ import annotations

from relevo import App, site, webhook
from relevo.apps.subscriptions import panel, records, webhooks, workers
from relevo.apps.subscriptions.gateways import open_gateways
from relevo.apps.subscriptions.integrations import open_integrations
from relevo.apps.subscriptions.settings import open_settings
from relevo.apps.subscriptions.streams import open_streams
from relevo.apps.tables import tables

MIGRATIONS = "relevo.apps.subscriptions.migrations"

app = App(
    "subscriptions",
    webhooks=[
        webhook(
            webhooks.PATH,
            webhooks.subscribed,
            source=webhooks.source,
            key=webhooks.key,
        )
    ],
    workers=[workers.publish, workers.email, workers.list_, workers.spreadsheet],
    migrations=MIGRATIONS,
    resources=[
        tables(MIGRATIONS),
        open_settings,
        records.open_records,
        open_gateways,
        open_streams,
        open_integrations,
    ],
    sites=[site("/subscriptions", panel.build, title="Subscriptions")],
)
