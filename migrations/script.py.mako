"""${message}.

Frozen once released: DDL written out here, for both databases, and nothing imported from the read models.
"""

from alembic import op

from lockledger.migrations.target import target_schema

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Both databases, everything qualified by `target_schema(op.get_context())`."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Never at the price of an event."""
    ${downgrades if downgrades else "pass"}
