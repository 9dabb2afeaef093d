"""Whether a hold that an old snapshot shows is over by now, on PostgreSQL."""

from collections.abc import Sequence
from functools import lru_cache
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lockledger.adapters import schema as names
from lockledger.adapters.failures import LOCK_NOT_AVAILABLE, sqlstate
from lockledger.adapters.identifiers import qualified
from lockledger.adapters.statements import run


class Confirmed(Exception):
    """No error: it ends a savepoint so that nothing stays locked."""


def looks_at_a_snapshot(connection: Connection) -> bool:
    """Whether the open transaction may write on the strength of what is long over."""
    return bool(run(connection, _LOOKS_AT_A_SNAPSHOT).scalar())


def confirm(connection: Connection, schema: str | None, lock_ids: Sequence[UUID]) -> None:
    """Always raises, inside a savepoint: `Confirmed`, or the database's verdict that the snapshot is out of date."""
    try:
        run(connection, _confirm(schema), {"lock_ids": list(lock_ids)})
    except DBAPIError as error:
        # Who has a row in hand has not committed: what was read is still so.
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
    raise Confirmed


# A transaction that can only read cannot lock a row either, and does nothing on the strength of what it sees.
_LOOKS_AT_A_SNAPSHOT = """
SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
    AND NOT current_setting('transaction_read_only')::boolean
"""

# A row whose token was changed and committed since the snapshot PostgreSQL refuses to lock. It follows an extension's
# update to the next one, and then waits for who has that in hand whatever SKIP LOCKED says: for a millisecond here.
_CONFIRM = """
WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', '1', true))
SELECT 1 FROM patience CROSS JOIN {heads} AS h WHERE h.lock_id = ANY (%(lock_ids)s::uuid[])
FOR KEY SHARE OF h SKIP LOCKED
"""


@lru_cache(maxsize=256)
def _confirm(schema: str | None) -> str:
    return _CONFIRM.format(heads=qualified(names.CURRENT_HOLDERS, "postgresql", schema))
