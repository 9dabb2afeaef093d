"""Scopes on PostgreSQL: who begins a hold keeps others from beginning one above, on or under its key, until it commits.

Transaction-scoped advisory locks of the two-number kind, a space apart from the fences of appends: shared on each key
above, exclusive on the own. So siblings, which share the keys above, never wait for each other; row locks on the keys
above would make them wait for a parent's uncommitted row. Hashes collide rarely, and then somebody only waits.

They are taken from the top down, siblings in their order, and not in the order of the hashes: a transaction that takes
its keys in that order one by one, and so cannot deadlock over their rows, does not over these either.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from sqlalchemy import Connection

from lockledger.adapters.statements import run
from lockledger.domain.keys import SEPARATOR, above

_SPACE: Final = 0x5C0 << 16

# One row after the other in the order given.
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
    own = set(keys)
    scopes = own.union(*map(above, own))
    wanted: dict[int, bool] = {}
    for scope in sorted(scopes, key=lambda scope: scope.split(SEPARATOR)):
        hashed = _hash(scope)
        wanted[hashed] = wanted.get(hashed, False) or scope in own
    values = {
        "space": _SPACE | namespace,
        "hashes": list(wanted),
        "exclusive": list(wanted.values()),
    }
    isolation, got = run(connection, _LOCK if waiting else _TRY_LOCK, values).one()
    if isolation != "read committed":
        raise ValueError(
            f"a ledger with scopes cannot take in a transaction at {isolation.upper()}, whose snapshot may miss a hold"
            " above or under the key; use READ COMMITTED"
        )
    return waiting or bool(got)


def _hash(key: str) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[:4], "big", signed=True)
