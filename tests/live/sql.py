"""A database beside the service: SQL on a connection of its own, and the service's own sessions without a pool."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2

from project_service.database.connecting import Connector
from project_service.database.connection import Connection
from project_service.dsn import read_dsn


def run_sql(dsn: str, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """Executes ``text``, one statement or several, with ``values`` for its placeholders. Returns the rows of the last
    statement; none if it has no result."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []


def run_each(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    """Executes the statements one by one on one connection, each in a transaction of its own, so that a role or a
    setting holds for those that follow. Returns the rows of the last one."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


def connector(dsn: str, limit: float = 10.0) -> Connector:
    """Opens connections as the service's pools do. ``limit``: of a statement's time, in seconds; 0 means none."""
    from twisted.internet import reactor

    return Connector(reactor, read_dsn(dsn), limit)


async def connection_to(dsn: str, limit: float = 10.0) -> Connection:
    """One of the service's connections. The test closes it."""
    return await connector(dsn, limit)()
