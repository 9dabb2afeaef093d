"""Scopes on PostgreSQL: who begins a hold keeps others from beginning one above, on or under its key, until it commits.

Transaction-scoped advisory locks of the two-number kind, a space apart from the fences of appends: shared on each key
above, exclusive on the own. So siblings, which share the keys above, never wait for each other; row locks on the keys
above would make them wait for a parent's uncommitted row. Hashes collide rarely, and then somebody only waits.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection

from lockledger.domain.keys import above

_SPACE: Final = 0x5C0 << 16

# One row after the other in the order given: ascending, so that no two calls wait for each other.
_LOCK = """
SELECT current_setting('transaction_isolation'), count(CASE WHEN exclusive
    THEN pg_advisory_xact_lock(%(space)s, hash)::text ELSE pg_advisory_xact_lock_shared(%(space)s, hash)::text END)
FROM unnest(%(hashes)s::int[], %(exclusive)s::bool[]) AS wanted (hash, exclusive)
"""

_TRY_LOCK = """
SELECT current_setting('transaction_isolation'), bool_and(CASE WHEN exclusive
    THEN pg_try_advisory_xact_lock(%(space)s, hash) ELSE pg_try_advisory_xact_lock_shared(%(space)s, hash) END)
FROM unnest(%(hashes)s::int[], %(exclusive)s::bool[]) AS wanted (hash, exclusive)
"""


def lock_scopes(
    connection: Connection, namespace: int, keys: Iterable[str], *, waiting: bool
) -> bool:
    """Takes the locks; `False` when not `waiting` and one is not to be had.

    Raises `ValueError` in a transaction that reads an old snapshot: it could not see a hold that began since.
    """
    wanted: dict[int, bool] = {}
    for key in keys:
        for ancestor in above(key):
            wanted.setdefault(_hash(ancestor), False)
        wanted[_hash(key)] = True
    hashes = sorted(wanted)
    values = {
        "space": _SPACE | namespace,
        "hashes": hashes,
        "exclusive": [wanted[each] for each in hashes],
    }
    isolation, got = connection.exec_driver_sql(_LOCK if waiting else _TRY_LOCK, values).one()
    if isolation != "read committed":
        raise ValueError(
            f"a ledger with scopes cannot take in a transaction at {isolation.upper()}, whose snapshot may miss a hold"
            " above or under the key; use READ COMMITTED"
        )
    return waiting or bool(got)


def _hash(key: str) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[:4], "big", signed=True)
