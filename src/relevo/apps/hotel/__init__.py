"""The hotel channel manager: Beds24's webhooks, one bot a hotel, guests answered once.

Its table of contents. See docs/systems/hotel.md.
"""

from __future__ import annotations

from relevo import Answer, App, exponential, site, webhook
from relevo.apps.hotel import bot, listeners, panel, webhooks, workers
from relevo.apps.hotel.hotel import open_hotel
from relevo.apps.hotel.settings import hotels
from relevo.apps.tables import tables
from relevo.poller import poller

MIGRATIONS = "relevo.apps.hotel.migrations"

app = App(
    "hotel",
    webhooks=[
        webhook(
            webhooks.PATH,
            webhooks.beds24,
            verify=webhooks.verify,
            key=webhooks.key,
            methods=("GET", "POST"),
            content_types=webhooks.CONTENT_TYPES,
            answer=Answer.json({"ok": True}),  # while the store is away
        )
    ],
    workers=[
        workers.save_booking,
        workers.save_message,
        workers.reply_to_guest,
        workers.fetch_booking,
    ],
    listeners=[listeners.answer],
    pollers=[
        poller(
            "hotel:{hotel_id}",
            bot.poll,
            app="hotel",
            over=hotels,
            every="15s",
            jitter="500ms",
            backoff=exponential("15s", factor=1.5, cap="120s"),
            timeout="2m",
        )
    ],
    migrations=MIGRATIONS,
    resources=[tables(MIGRATIONS), open_hotel],
    sites=[site("/hotel", panel.build, title="Hotel")],
)
