"""Scopes on PostgreSQL: who begins a hold keeps others from beginning one above, on or under its key, until it commits.

Transaction-scoped advisory locks of the two-number kind, a space apart from the fences of appends: shared on each key
above, exclusive on the own. So siblings, which share the keys above, never wait for each other; row locks on the keys
above would make them wait for a parent's uncommitted row. Hashes collide rarely, and then somebody only waits.

They are taken from the top down, siblings in their order, and not in the order of the hashes: a transaction that takes
its keys in that order one by one, and so cannot deadlock over their rows, does not over these either.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy import Connection

from lockledger.adapters.failures import readable
from lockledger.adapters.identifiers import qualified
from lockledger.adapters.schema import CURRENT_HOLDERS
from lockledger.adapters.statements import run
from lockledger.adapters.store import Around
from lockledger.domain.holds import Hold, HoldFacts
from lockledger.domain.keys import SEPARATOR, above, range_under
from lockledger.projections import current_holders

_SPACE: Final = 0x5C0 << 16

# One row after the other in the order given.
_LOCK = """
SELECT current_setting('transaction_isolation'), pg_catalog.count(CASE WHEN exclusive
    THEN pg_catalog.pg_advisory_xact_lock(%(space)s, hash)::text ELSE pg_catalog.pg_advisory_xact_lock_shared(%(space)s, hash)::text END)
FROM unnest(%(hashes)s::int[], %(exclusive)s::bool[]) AS wanted (hash, exclusive)
"""

_TRY_LOCK = """
SELECT current_setting('transaction_isolation'), pg_catalog.bool_and(CASE WHEN exclusive
    THEN pg_catalog.pg_try_advisory_xact_lock(%(space)s, hash) ELSE pg_catalog.pg_try_advisory_xact_lock_shared(%(space)s, hash) END)
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


# In a statement after the one that `now` was read in: whoever extends a hold has its row in hand before it runs out, and
# so before this looks at it. A row that nobody has or had in hand has no xmax.
_AROUND = """
SELECT clock_timestamp(),
    ARRAY(SELECT h.lock_id FROM {heads} AS h WHERE {around} AND h.expires_at <= %(now)s AND h.xmax <> 0 ORDER BY h.lock_id),
    {facts}
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT {columns} FROM {heads} AS h
    WHERE {around} AND (h.expires_at IS NULL OR (h.expires_at > %(now)s AND h.expires_at > h.changed_at))
    ORDER BY h.key LIMIT 1) AS found ON true
"""

_IS_AROUND = """h.ledger = %(ledger)s AND h.holder IS NOT NULL AND h.holder <> %(holder)s
        AND (h.key = ANY (%(above)s::text[]) OR (h.key >= %(first)s AND h.key < %(beyond)s))"""

# FOR SHARE, which an extension waits for too.
_LOCK_MOVING = """
SELECT lock_id FROM {heads} WHERE lock_id = ANY (%(streams)s::uuid[]) ORDER BY lock_id FOR SHARE{skip}
"""


def around(
    connection: Connection, schema: str | None, ledger: str, key: str, holder: str, now: datetime
) -> Around:
    """What stands above and under a key, to a holder; see `Around`."""
    first, beyond = range_under(key)
    values = {
        "ledger": ledger,
        "holder": holder,
        "now": now,
        "above": above(key),
        "first": first,
        "beyond": beyond,
    }
    with readable():
        clock, moving, *found = run(connection, _statements(schema)["around"], values).one()
        facts = dict(zip(_HOLD, found, strict=True))
        hold = None if facts["key"] is None else Hold(**facts)
    return Around(clock.astimezone(UTC), hold, moving)


def lock_moving(
    connection: Connection, schema: str | None, streams: Sequence[UUID], *, waiting: bool
) -> bool:
    """Locks the rows of these locks against every change; `False` when not `waiting` and one is not to be had."""
    sql = _statements(schema)["wait" if waiting else "skip"]
    return len(run(connection, sql, {"streams": list(streams)}).all()) == len(streams)


_HOLD: Final = tuple(name for name in current_holders.COLUMNS if name in HoldFacts.model_fields)


@lru_cache(maxsize=256)
def _statements(schema: str | None) -> dict[str, str]:
    heads = qualified(CURRENT_HOLDERS, "postgresql", schema)
    return {
        "around": _AROUND.format(
            heads=heads,
            around=_IS_AROUND,
            columns=", ".join(f"h.{name}" for name in _HOLD),
            facts=", ".join(f"found.{name}" for name in _HOLD),
        ),
        "wait": _LOCK_MOVING.format(heads=heads, skip=""),
        "skip": _LOCK_MOVING.format(heads=heads, skip=" SKIP LOCKED"),
    }


def _hash(key: str) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[:4], "big", signed=True)
