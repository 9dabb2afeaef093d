"""The ledger's tables for a host's own tools: as declared, as a script, and how to leave them alone."""

from sqlalchemy import MetaData
from sqlalchemy.schema import SchemaItem, Table

from lockledger.adapters.schema import unnamed_schema


def metadata(dialect_name: str, schema: str | None = None) -> MetaData:
    """The tables as this release declares them, for the `target_metadata` of a host's own Alembic.

    `dialect_name` is `postgresql` or `sqlite`. Without a `schema` the tables name none, as Alembic wants it of those
    that lie in the connection's default schema. The same object each time.

    Only to compare with: the triggers, the views and the version belong to the schema too, and the migrations make
    them. Raises `ValueError` for another database, a schema on SQLite, or a name that PostgreSQL cuts or reserves.
    """
    return unnamed_schema(dialect_name, schema).metadata


def include_object(
    item: SchemaItem, name: str | None, _kind: str, _reflected: bool, _compare_to: SchemaItem | None
) -> bool:
    """For the `include_object` of a host's own Alembic, whose autogenerate would propose to drop the ledger's tables.

    `False` for everything of the ledger's, in whatever schema: its tables, their columns, indexes and constraints.
    """
    table = item if isinstance(item, Table) else getattr(item, "table", None)
    return not (table.name if isinstance(table, Table) else name or "").startswith("lockledger_")


def migration_sql(dialect_name: str, schema: str | None = None) -> str:
    """The migrations from nothing as one SQL script, for a reviewer or a database administrator to run.

    `dialect_name` is `postgresql` or `sqlite`. The script is one transaction and takes no lock against a second run,
    which fails. On SQLite, `PRAGMA journal_mode=WAL` goes before it. Raises `ValueError` as `metadata` does, and
    `RuntimeError` inside a run of Alembic.
    """
    from lockledger.adapters.migration import migration_sql as script

    return script(dialect_name, schema)
