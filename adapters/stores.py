"""The event store for a database."""

from lockledger.adapters.postgres import PostgresEventStore
from lockledger.adapters.sqlite import SQLiteEventStore
from lockledger.adapters.store import EventStore
from lockledger.domain.keys import check_ledger_name

_STORES: dict[str, type[EventStore]] = {
    store.dialect: store for store in (PostgresEventStore, SQLiteEventStore)
}


def store_on(dialect: str, ledger: str, schema: str | None) -> EventStore:
    """The store of the ledger with this name. Raises `ValueError` for a name or a schema outside the limits."""
    return _STORES[dialect](check_ledger_name(ledger), schema)
