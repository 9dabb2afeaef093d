"""`lockledger doctor`: whether the database is fit for the ledger, and what should be done about it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from lockledger.cli import output
from lockledger.cli.command import command
from lockledger.cli.failures import DONE, TAMPERED
from lockledger.cli.given import Given, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockledger.adapters.findings import Finding


def add_to(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "doctor")(doctor)


def doctor(given: Given) -> int:
    """Look whether the database is fit for the ledger; changes nothing.

    Exit code 0 also with warnings, 3 when the ledger contradicts itself, 4 without connection or schema.
    """
    findings: list[Finding] = []
    try:
        for finding in _findings(given):
            findings.append(finding)
            if not given.json:
                print(output.safe(f"{finding.verdict:<8} {finding.check:<12} {finding.text}"))
    finally:
        if given.json and findings:
            verdicts = {each.verdict for each in findings}
            output.print_json(
                {
                    "database": given.without_secrets(place(given.url())),
                    "ok": verdicts == {"ok"},
                    "findings": [asdict(each) for each in findings],
                }
            )
    return TAMPERED if any(each.verdict == "fault" for each in findings) else DONE


def _findings(given: Given) -> "Iterator[Finding]":
    from lockledger.adapters.diagnosis import diagnose_database, diagnose_ledger
    from lockledger.adapters.engines import Source
    from lockledger.adapters.findings import Finding
    from lockledger.adapters.schema import SCHEMA_VERSION
    from lockledger.domain.errors import SchemaMismatch
    from lockledger.workings import Workings

    url = given.url()
    source = Source(url, busy_timeout=30)
    workings = Workings(
        source.dialect,
        name=given.ledger_name,
        schema=given.schema,
        clock=None,
        policy=None,
        names=None,
    )
    try:
        with source.connect() as connection:
            yield from diagnose_database(connection)
            try:
                workings.check(connection)
            except SchemaMismatch as mismatch:
                yield Finding("schema", "fault", str(mismatch))
                raise
            yield Finding("schema", "ok", f"version {SCHEMA_VERSION}")
            yield from diagnose_ledger(connection, workings.store)
    finally:
        source.close()
