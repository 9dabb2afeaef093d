"""The outside world: the event store on PostgreSQL and SQLite, its schema and encoding."""
