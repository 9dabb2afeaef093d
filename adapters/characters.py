"""Which encodings of text a PostgreSQL database and a connection to it may have.

Keys are ordered, and prefixes are looked up, by the code points of their characters. Of the server's encodings only
UTF8 orders them so and has them all; SQL_ASCII keeps the bytes of a client's UTF8 as they are.
"""

from typing import Any

from sqlalchemy import Connection

from lockledger.adapters.identifiers import SQLITE

CLIENT_ENCODING = "client_encoding"


def encoding_fault(connection: Connection) -> str | None:
    """What is wrong with the database's encoding or the connection's, and what to do; asks the server nothing."""
    if connection.dialect.name == SQLITE:
        return None
    driver: Any = connection.connection.driver_connection
    server = _told(driver, "server_encoding")
    if server != "SQL_ASCII" and not is_utf8(server):
        return (
            f"the database's encoding is {server}, in which keys have another order or cannot be written:"
            " lockledger needs a database made with ENCODING 'UTF8'"
        )
    client = _told(driver, CLIENT_ENCODING)
    if not is_utf8(client):
        return (
            f"the connection's {CLIENT_ENCODING} is {client}, which does not have every character:"
            f" connect with {CLIENT_ENCODING}=utf8"
        )
    return None


def is_utf8(encoding: str) -> bool:
    """Whether it is one of PostgreSQL's names for UTF8; a pooler repeats the one that the client gave."""
    return encoding.upper().replace("-", "").replace("_", "") in ("UTF8", "UNICODE")


def refuse_other_encodings(connection: Connection) -> None:
    """Raises `ValueError` where text may not come back as it was given."""
    if fault := encoding_fault(connection):
        raise ValueError(fault)


def _told(driver: Any, name: str) -> str:
    """What the server said when the connection was opened, or changed since; some poolers may say nothing."""
    return driver.info.parameter_status(name) or "UTF8"
