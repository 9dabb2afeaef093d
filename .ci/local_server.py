"""Print the DSN of a PostgreSQL server on this machine that lets us make databases; nothing when there is none."""

import sys
from itertools import product

import psycopg

HOSTS = ("/var/run/postgresql", "127.0.0.1")
USERS = ("postgres", "root")
MAY_CREATE = "SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user"

for host, user in product(HOSTS, USERS):
    dsn = f"host={host} user={user} dbname=postgres"
    try:
        with psycopg.connect(dsn, connect_timeout=3) as connection:
            row = connection.execute(MAY_CREATE).fetchone()
    except psycopg.OperationalError:
        continue
    if row is not None and row[0]:
        sys.stdout.write(dsn)
        break
