"""`python -m lockledger` is the command line."""

from lockledger.cli import main

main()
