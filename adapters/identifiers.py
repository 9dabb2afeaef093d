"""Names of database objects in driver-level SQL: validated, quoted, and qualified by their schema."""

import re

from lockledger.domain.errors import shown

POSTGRESQL, SQLITE = "postgresql", "sqlite"
DEFAULT_SCHEMA = "public"
VERSION_TABLE = "lockledger_schema_version"

# No quotes, dots, colons, percent or dollar signs: such a name is safe in every kind of statement,
# whatever reads it first.
_SCHEMA = re.compile(r"[^\W\d][\w-]*")
_LONGEST_IN_BYTES = 63  # PostgreSQL cuts longer identifiers silently


def effective_schema(dialect_name: str, schema: str | None) -> str | None:
    """The schema that holds the ledger's objects: on PostgreSQL `public` unless given, on SQLite always `None`.

    A schema on SQLite, a name that PostgreSQL reserves or cuts, or a database of another make is a `ValueError`.
    """
    if dialect_name == SQLITE:
        if schema is not None:
            raise ValueError(
                f"schema={schema!r}: SQLite has no schemas; leave schema out, and use another database file instead"
            )
        return None
    if dialect_name != POSTGRESQL:
        raise ValueError(
            f"lockledger runs on PostgreSQL and SQLite, not on {dialect_name}: give another database URL"
        )
    if schema is None:
        return DEFAULT_SCHEMA
    if not isinstance(schema, str):
        raise TypeError(
            f"schema is {shown(schema)}, a {type(schema).__name__}: give its name as str"
        )
    if not _SCHEMA.fullmatch(schema) or len(schema.encode()) > _LONGEST_IN_BYTES:
        raise ValueError(
            f"schema={shown(schema)}: give a name of letters, digits, _ and - that begins with a letter or _"
            f" and has at most {_LONGEST_IN_BYTES} bytes"
        )
    if schema.startswith("pg_") or schema == "information_schema":
        raise ValueError(f"schema={schema!r} belongs to PostgreSQL itself: give another name")
    return schema


def qualified(name: str, dialect_name: str, schema: str | None) -> str:
    """One of the ledger's objects by name, ready for SQL: `"public"."lockledger_events"`, or `"lockledger_events"`.

    Refuses what `effective_schema` refuses.
    """
    schema = effective_schema(dialect_name, schema)
    return f'"{name}"' if schema is None else f'"{schema}"."{name}"'
