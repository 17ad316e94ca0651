"""Car rental: reserve, pay, and have the booking confirmed by one of the suppliers.

Its table of contents.
"""

from __future__ import annotations

from relevo import App, site, webhook
from relevo.apps.cars import (
    api,
    listeners,
    panel,
    payments,
    records,
    settings,
    webhooks,
    workers,
)
from relevo.apps.tables import tables

MIGRATIONS = "relevo.apps.cars.migrations"

app = App(
    "cars",
    migrations=MIGRATIONS,
    resources=[
        tables(MIGRATIONS),
        settings.open_settings,
        records.open_records,
        settings.open_gateways,
        payments.open_payments,
    ],
    webhooks=[
        webhook("/hooks/stripe", webhooks.stripe_hook, source=webhooks.source),
    ],
    sites=[site("/reservations", api.build), site("/cars", panel.build, title="Cars")],
    workers=[
        workers.book_supplier,
        workers.finish_payment,
        workers.mirror_outbox,
        workers.cancel_booking,
        workers.refund,
    ],
    listeners=[
        listeners.tell_client_of_payment,
        listeners.tell_client_of_booking,
        listeners.tell_support,
    ],
)
