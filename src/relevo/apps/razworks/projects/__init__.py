"""projects, its table of contents: what people publish."""

from __future__ import annotations

from relevo import listener
from relevo.apps.razworks.projects import listeners

LISTENERS = [
    listener(listeners.index_project, queue="razworks:projects:index-project"),
]
