"""The program of a later version: its number, then the words of `relevo`."""

from __future__ import annotations

import sys

from relevo.cli import main
from tests.faults.later import become

if __name__ == "__main__":
    become(int(sys.argv.pop(1)))
    main()
