"""The words of the `eventsourcing` library for what went wrong, in this one place."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy.exc as sql
from eventsourcing import persistence

from lockledger.adapters.failures import translated
from lockledger.domain.errors import (
    ConcurrencyConflict,
    OutcomeUnknown,
    SchemaMismatch,
    TamperedLedger,
)

_DRIVERS: tuple[tuple[type[sql.DBAPIError], type[persistence.PersistenceError]], ...] = (
    (sql.IntegrityError, persistence.IntegrityError),
    (sql.OperationalError, persistence.OperationalError),
    (sql.ProgrammingError, persistence.ProgrammingError),
    (sql.DataError, persistence.DataError),
    (sql.InternalError, persistence.InternalError),
    (sql.NotSupportedError, persistence.NotSupportedError),
    (sql.InterfaceError, persistence.InterfaceError),
    (sql.DatabaseError, persistence.DatabaseError),
)


@contextmanager
def persistence_errors() -> Iterator[None]:
    """Turns ours and the database's errors into those that `eventsourcing` and its users know; ours is the cause.

    An `OperationalError` whose cause is `OutcomeUnknown` may have recorded the events: look before saving them again.
    """
    try:
        with translated():
            yield
    except (ConcurrencyConflict, OutcomeUnknown) as error:
        raise persistence.OperationalError(str(error)) from error
    except SchemaMismatch as error:
        raise persistence.ProgrammingError(str(error)) from error
    except TamperedLedger as error:
        raise persistence.InternalError(str(error)) from error
    except sql.TimeoutError as error:
        raise persistence.ConnectionUnavailableError(str(error)) from error
    except sql.DBAPIError as error:
        for theirs, kind in _DRIVERS:
            if isinstance(error, theirs):
                raise kind(str(error.orig)) from error
        raise
