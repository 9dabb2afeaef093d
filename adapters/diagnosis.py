"""What `lockledger doctor` finds out about a database: cheap questions, nothing changed, nothing locked."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

from sqlalchemy import Connection

from lockledger.adapters import postgres_diagnosis, sqlite_diagnosis
from lockledger.adapters import schema as names
from lockledger.adapters.findings import Finding, value
from lockledger.adapters.identifiers import SQLITE, qualified
from lockledger.adapters.statements import run
from lockledger.adapters.store import EventStore
from lockledger.domain.errors import TamperedLedger, shown

_SAMPLE = 100
_CLOCKS_AGREE = timedelta(seconds=1)


def diagnose_database(connection: Connection) -> Iterator[Finding]:
    """What can be asked of any database, with or without the tables."""
    if connection.dialect.name == SQLITE:
        yield from sqlite_diagnosis.of_database(connection)
    else:
        yield from postgres_diagnosis.of_server(connection)


def diagnose_ledger(connection: Connection, store: EventStore) -> Iterator[Finding]:
    """What can be asked once the schema is right. Needs a connection in AUTOCOMMIT."""
    if store.dialect == SQLITE:
        yield sqlite_diagnosis.of_triggers(connection)
    else:
        yield from postgres_diagnosis.of_schema(connection, store)
        yield from postgres_diagnosis.of_open_transactions(connection, store)
    yield from _contents(connection, store)


def _contents(connection: Connection, store: EventStore) -> Iterator[Finding]:
    place = (store.dialect, store.schema)
    mark = "?" if store.dialect == SQLITE else "%s"
    heads, events, trail = (
        qualified(name, *place) for name in (names.CURRENT_HOLDERS, names.EVENTS, names.AUDIT_TRAIL)
    )
    ledger = (store.ledger,)
    locks = value(
        connection,
        f"SELECT count(*) FROM {heads} WHERE ledger = {mark} AND key IS NOT NULL",
        ledger,
    )
    recorded = value(connection, f"SELECT count(*) FROM {events} WHERE ledger = {mark}", ledger)
    yield Finding(
        "contents", "ok", f"{locks} locks and {recorded} events in the ledger {shown(store.ledger)}"
    )
    newest = run(
        connection,
        f"SELECT key FROM {trail} WHERE ledger = {mark} ORDER BY position DESC LIMIT {_SAMPLE}",
        ledger,
    ).scalars()
    yield from _agreement(connection, store, dict.fromkeys(newest))


def _agreement(connection: Connection, store: EventStore, keys: Iterable[str]) -> Iterator[Finding]:
    checked, ahead = 0, timedelta(0)
    for key in keys:
        try:
            newest = store.newest(connection, key)
        except TamperedLedger as fault:
            yield Finding("agreement", "fault", str(fault))
            continue
        checked += 1
        if newest.lock.changed_at is not None:
            ahead = max(ahead, newest.lock.changed_at - newest.clock)
    yield Finding(
        "agreement",
        "ok",
        f"events and current holders agree on the {checked} locks that changed last",
    )
    if ahead > _CLOCKS_AGREE:
        yield Finding(
            "time",
            "warning",
            f"the newest events are {ahead} ahead of the clock: until then time stands still for their locks",
        )
