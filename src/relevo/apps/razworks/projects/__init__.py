"""projects, its table of contents: what people publish."""

from __future__ import annotations

from relevo.apps.razworks.projects import listeners

LISTENERS = [listeners.index_project]
