"""Statements of ours on a connection that may be a host's, whose execution options are not meant for them.

Large results by a server-side cursor would make `DECLARE CURSOR` of a savepoint, and a map of schemas would look for
the ledger where the host's tables are. Given with each statement, since a connection keeps what it is given.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.util import immutabledict

_OURS: Final = immutabledict[str, Any](
    {"stream_results": False, "yield_per": None, "schema_translate_map": None}
)
Parameters = Mapping[str, Any] | Sequence[Any]


def run(
    connection: Connection, sql: str, parameters: Any = None
) -> "CursorResult[*tuple[Any, ...]]":
    """Runs SQL in the driver's own words."""
    return connection.exec_driver_sql(sql, parameters, _OURS)


def ask(connection: Connection, statement: Executable) -> "CursorResult[*tuple[Any, ...]]":
    """Runs a statement made of SQLAlchemy's expressions."""
    return connection.execute(statement, execution_options=_OURS)
