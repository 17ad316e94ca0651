"""razworks, a workspace: people register, publish projects, and have recordings understood.

Its table of contents; each module has the same shape: events, listeners, queues, workers.
"""

from __future__ import annotations

from relevo import App, site
from relevo.apps.razworks import api, auth, cortex, gamification, panel, projects, records
from relevo.apps.razworks.gateways import open_gateways
from relevo.apps.razworks.settings import open_settings
from relevo.apps.tables import tables

MIGRATIONS = "relevo.apps.razworks.migrations"

app = App(
    "razworks",
    workers=[*auth.WORKERS, *cortex.WORKERS],
    listeners=[*auth.LISTENERS, *gamification.LISTENERS, *projects.LISTENERS],
    migrations=MIGRATIONS,
    resources=[tables(MIGRATIONS), open_settings, records.open_records, open_gateways],
    sites=[
        site("/razworks/api", api.build),
        site("/razworks", panel.build, title="Razworks"),
    ],
)
