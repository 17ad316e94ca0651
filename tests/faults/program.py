"""The app for `relevo work --app tests.faults.program:app`."""

from __future__ import annotations

from tests.faults import apps

app = apps.hired()
