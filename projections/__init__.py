"""The read models: their tables, what each event writes to them, and their queries."""
