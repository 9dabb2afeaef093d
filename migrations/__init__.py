"""The Alembic environment that brings a database to the schema of this release."""
