"""A ledger as the persistence module of the `eventsourcing` library: `PERSISTENCE_MODULE=lockledger.eventsourcing`.

Importing this module imports that library, which patches `dataclasses` for the whole process; importing `lockledger`
does not.
"""

from lockledger.adapters.factory import SQLAlchemyFactory
from lockledger.adapters.mapper import LockEventMapper
from lockledger.adapters.recorder import (
    SQLAlchemyAggregateRecorder,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyProcessRecorder,
    SQLAlchemyTrackingRecorder,
)
from lockledger.adapters.transactions import OwnTransactions
from lockledger.domain.keys import lock_id

__all__ = [
    "LockEventMapper",
    "OwnTransactions",
    "SQLAlchemyAggregateRecorder",
    "SQLAlchemyApplicationRecorder",
    "SQLAlchemyFactory",
    "SQLAlchemyProcessRecorder",
    "SQLAlchemyTrackingRecorder",
    "lock_id",
]
