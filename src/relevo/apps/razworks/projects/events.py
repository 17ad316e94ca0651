"""Facts about projects."""

from __future__ import annotations

from relevo import Event


class ProjectPublished(Event, name="project.published"):
    project_id: str
    user_id: str
