"""Application: everything the rules ask about the files read."""

from __future__ import annotations

from collections.abc import Iterable

from relevo.check.calls import Calls
from relevo.check.names import Project
from relevo.check.roles import Roles
from relevo.check.source import Source


class Application:
    """Some files as one program: what names mean, who plays which role, what calls lead to."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.project = Project(sources)
        self.roles = Roles(self.project)
        self.calls = Calls(self.project)
