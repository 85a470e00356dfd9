"""`python -m volplane` is the command."""

from volplane.cli import main

main()
