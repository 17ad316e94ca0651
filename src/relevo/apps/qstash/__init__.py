"""A QStash of our own: the v2 API on relevo's jobs, so that official SDKs work by another URL.

Its table of contents. A message is a row and, for each attempt, a job; one that failed for good is
in QStash's dead letters and in relevo's.
"""

from __future__ import annotations

from relevo import App, site
from relevo.apps.qstash import api, workers
from relevo.apps.qstash.queues import Tidy
from relevo.apps.qstash.settings import open_settings
from relevo.apps.tables import tables

MIGRATIONS = "relevo.apps.qstash.migrations"

app = App(
    "qstash",
    workers=[workers.deliver, workers.tick, workers.tidy],
    migrations=MIGRATIONS,
    resources=[tables(MIGRATIONS), open_settings, workers.open_post],
    sites=[site("/v2", api.build)],
)


@app.schedule("17 * * * *")
def tidy() -> Tidy:
    return Tidy()
