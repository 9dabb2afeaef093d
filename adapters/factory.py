"""The `eventsourcing` library's infrastructure on a ledger, made from environment variables."""

from typing import Any, TypeVar

from eventsourcing.persistence import (
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
    NotSupportedError,
    Transcoder,
)
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool

from lockledger.adapters.mapper import LockEventMapper
from lockledger.adapters.recorder import (
    SQLAlchemyAggregateRecorder,
    SQLAlchemyApplicationRecorder,
    SQLAlchemyProcessRecorder,
    SQLAlchemyTrackingRecorder,
)
from lockledger.adapters.transactions import OwnTransactions

T = TypeVar("T")


class SQLAlchemyFactory(InfrastructureFactory[SQLAlchemyTrackingRecorder]):
    """Makes recorders over one ledger.

    `LOCKLEDGER_URL` is the database's URL, `LOCKLEDGER_NAME` the ledger's name (`default`), `LOCKLEDGER_SCHEMA` its
    schema on PostgreSQL (`public`). Each may be prefixed with the application's name in upper case. Migrations make
    the tables, not the factory, unless `CREATE_TABLE` is set to a true value; it then brings the schema up to date.
    """

    LOCKLEDGER_URL = "LOCKLEDGER_URL"
    LOCKLEDGER_NAME = "LOCKLEDGER_NAME"
    LOCKLEDGER_SCHEMA = "LOCKLEDGER_SCHEMA"
    CREATE_TABLE = "CREATE_TABLE"

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        url = self.env.get(self.LOCKLEDGER_URL)
        if not url:
            keys = ", ".join(self.env.create_keys(self.LOCKLEDGER_URL))
            raise OSError(f"no database: set {keys} to a URL such as sqlite:///lockledger.db")
        try:
            self._transactions = OwnTransactions(
                url,
                name=self.env.get(self.LOCKLEDGER_NAME) or "default",
                schema=self.env.get(self.LOCKLEDGER_SCHEMA) or None,
            )
        except ValueError as error:
            raise OSError(f"the ledger that the environment names: {error}") from error
        if strtobool(self.env.get(self.CREATE_TABLE) or "no"):
            self._transactions.migrate()

    def close(self) -> None:
        """Closes the connections of all recorders made here."""
        self._transactions.close()

    def mapper(
        self,
        transcoder: Transcoder | None = None,
        mapper_class: type[Mapper[Any]] | None = None,
    ) -> Mapper[Any]:
        """The mapper that knows lock events, unless `MAPPER_TOPIC` or `mapper_class` names another."""
        if mapper_class is None and not self.env.get(self.MAPPER_TOPIC):
            mapper_class = LockEventMapper
        return super().mapper(transcoder, mapper_class)

    def aggregate_recorder(self, purpose: str = "events") -> SQLAlchemyAggregateRecorder:
        """A recorder of events. There are no snapshots: `NotSupportedError` for another purpose than events."""
        if purpose != "events":
            raise NotSupportedError(
                f"the ledger keeps no {purpose}: a lock's newest event is its snapshot; unset IS_SNAPSHOTTING_ENABLED"
            )
        return SQLAlchemyAggregateRecorder(self._transactions)

    def application_recorder(self) -> SQLAlchemyApplicationRecorder:
        """A recorder of events that can be followed, or the class that `APPLICATION_RECORDER_TOPIC` names."""
        kind = self._class(self.APPLICATION_RECORDER_TOPIC, SQLAlchemyApplicationRecorder)
        return kind(self._transactions)

    def tracking_recorder(
        self, tracking_recorder_class: type[SQLAlchemyTrackingRecorder] | None = None
    ) -> SQLAlchemyTrackingRecorder:
        """A view's recorder, of the given class or that of `TRACKING_RECORDER_TOPIC`; the environment's name is its
        consumer's.
        """
        kind = tracking_recorder_class or self._class(
            self.TRACKING_RECORDER_TOPIC, SQLAlchemyTrackingRecorder
        )
        return kind(self._transactions, consumer=self.env.name)

    def process_recorder(self) -> SQLAlchemyProcessRecorder:
        """A recorder of events with their tracking, or the class that `PROCESS_RECORDER_TOPIC` names."""
        kind = self._class(self.PROCESS_RECORDER_TOPIC, SQLAlchemyProcessRecorder)
        return kind(self._transactions, consumer=self.env.name)

    def _class(self, variable: str, base: type[T]) -> type[T]:
        topic = self.env.get(variable)
        if not topic:
            return base
        kind = resolve_topic(topic)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise InfrastructureFactoryError(f"{variable}={topic} is no {base.__name__}")
        return kind
