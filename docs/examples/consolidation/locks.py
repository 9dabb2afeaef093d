"""What the service plugs into the ledger: its own row to lock first, its say, its audit rows, and people's names."""

import re
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from consolidation.tables import AuditRow, User, Version
from lockledger import (
    AsyncLockLedger,
    Hold,
    NotLockable,
    Policy,
    RecordedEvent,
    TakeRequest,
    lock_key,
)


def version_key(version_id: int) -> str:
    """The lock of a version."""
    return lock_key("version", version_id)


def version_id_of(key: str) -> int | None:
    """The version that a key names, `None` when it names none."""
    found = re.fullmatch(r"version:([1-9][0-9]{0,8})", key)
    return None if found is None else int(found[1])


def user_holder(user_id: int) -> str:
    """The id by which a user holds locks and acts."""
    return lock_key("user", user_id)


class VersionPolicy(Policy[Connection]):
    """Runs in the ledger's transaction, on its connection."""

    def lock_subject(self, connection: Connection, key: str) -> None:
        """The version's row first, then its lock: whoever keeps this one order meets no deadlock."""
        connection.execute(select(Version.id).where(_is(key)).with_for_update())

    def check_take(self, connection: Connection, request: TakeRequest) -> None:
        """Only an open version is worked on. Its row is locked, so it stays as it is read here."""
        status = connection.execute(select(Version.status).where(_is(request.key))).scalar()
        if status != "open":
            raise NotLockable(
                f"this version is {status}", code=f"VERSION_{str(status).upper()}", key=request.key
            )

    def recorded(self, connection: Connection, events: Sequence[RecordedEvent]) -> None:
        """The service's audit rows are in the same transaction as what they tell."""
        connection.execute(
            insert(AuditRow),
            [
                {
                    "version_id": version_id_of(event.key),
                    "at": event.occurred_at,
                    "actor": event.actor,
                    "action": event.action,
                    "before": _holder(event.before()),
                    "after": _holder(event.after()),
                    "comment": event.why,
                }
                for event in (recorded.event for recorded in events)
            ],
        )


def names(connection: Connection, ids: Collection[str]) -> Mapping[str, str]:
    """People's names as they are now."""
    users = [int(each.removeprefix("user:")) for each in ids if each.startswith("user:")]
    found = connection.execute(select(User.id, User.name).where(User.id.in_(users)))
    return {user_holder(user_id): name for user_id, name in found}


def version_ledger(engine: AsyncEngine) -> AsyncLockLedger:
    """The service's ledger, in its own database."""
    return AsyncLockLedger(engine, policy=VersionPolicy(), names=names)


def _is(key: str) -> ColumnElement[bool]:
    return Version.id == version_id_of(key)


def _holder(hold: Hold | None) -> str | None:
    return None if hold is None else hold.holder
