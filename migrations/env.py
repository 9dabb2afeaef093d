"""Run by Alembic for `lockledger migrate`, on the connection and in the transaction that it is given.

Neither logging nor an ini file is touched: both belong to the host.
"""

from alembic import context

from lockledger.adapters.identifiers import VERSION_TABLE
from lockledger.migrations.target import create_missing_schema, target_schema

given = context.config.attributes
if "connection" not in given and "dialect_name" not in given:
    raise RuntimeError(
        "these migrations are run by `lockledger migrate` or `ledger.migrate()`, not by `alembic`"
    )

context.configure(
    connection=given.get("connection"),
    dialect_name=given.get("dialect_name"),
    transactional_ddl=True,
    version_table=VERSION_TABLE,
    version_table_schema=given["lockledger_schema"],
)
with context.begin_transaction():
    create_missing_schema(context.get_context(), target_schema(context.get_context()))
    context.run_migrations()
