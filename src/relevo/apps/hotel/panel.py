"""The panel: what a receptionist and an operator see."""

from __future__ import annotations

from relevo import Relevo
from relevo.web import site


def build(relevo: Relevo):  # placeholder until the pages below exist
    return site([])
