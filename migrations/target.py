"""Where a migration writes: the schema it was given, and whether the ledger keeps its own version there."""

from alembic.runtime.migration import MigrationContext

from lockledger.adapters.identifiers import POSTGRESQL, VERSION_TABLE, effective_schema

SCHEMA_OPTION = "lockledger_schema"


def target_schema(context: MigrationContext) -> str | None:
    """The schema that the running migration fills, `None` on SQLite.

    The first that is given, under the name `lockledger_schema`: an attribute of the Alembic `Config`,
    an argument `-x lockledger_schema=…`, an option of the Alembic section of the ini file. Otherwise `public`.
    """
    environment = context.environment_context
    schema = None
    if environment is not None:
        config = environment.config
        arguments = environment.get_x_argument(as_dictionary=True)
        schema = (
            config.attributes.get(SCHEMA_OPTION)
            or arguments.get(SCHEMA_OPTION)
            or config.get_main_option(SCHEMA_OPTION)
        )
    return effective_schema(context.dialect.name, schema)


def create_missing_schema(context: MigrationContext, schema: str | None) -> None:
    """Create the schema on PostgreSQL, only if it is missing: no privilege to create is needed otherwise."""
    if context.dialect.name == POSTGRESQL:
        # CREATE SCHEMA IF NOT EXISTS asks for the privilege before it looks.
        context.execute(
            f"""DO $lockledger$ BEGIN
    IF pg_catalog.to_regnamespace('"{schema}"') IS NULL THEN CREATE SCHEMA "{schema}"; END IF;
END $lockledger$"""
        )


def host_keeps_version(context: MigrationContext) -> bool:
    """True when the host's own Alembic runs the migration and counts versions in a table of the host.

    The ledger still looks for its version in its own table: the migration then has to write it there.
    """
    return bool(context.version_table != VERSION_TABLE)
