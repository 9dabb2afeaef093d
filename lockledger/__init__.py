"""Business locks as immutable events, inside the database and transaction of the host."""
