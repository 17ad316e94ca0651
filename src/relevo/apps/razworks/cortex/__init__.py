"""cortex, its table of contents: a recording is heard, read and classified, then summarised."""

from __future__ import annotations

from relevo.apps.razworks.cortex import workers

WORKERS = [workers.transcribe, workers.extract, workers.classify, workers.summarise]
