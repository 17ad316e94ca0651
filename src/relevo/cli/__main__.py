"""`python -m relevo.cli`, where no console script is installed."""

from relevo.cli import main

main()
