"""`lockledger migrate`."""

import typer

from lockledger.cli.command import command
from lockledger.cli.given import Given, place


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "migrate")(migrate)


def migrate(given: Given) -> None:
    """Bring the database to this release's schema, from nothing or from any released version.

    Safe to repeat. A missing SQLite file, or a missing schema on PostgreSQL, is made.
    """
    from lockledger.adapters.schema import SCHEMA_VERSION
    from lockledger.cli.output import print_json, safe

    with given.opened() as ledger:
        ledger.migrate()
    where = given.without_secrets(place(given.url()))
    if given.json:
        print_json({"database": where, "schema_version": SCHEMA_VERSION})
    else:
        print(safe(f"{where} has schema version {SCHEMA_VERSION}"))
