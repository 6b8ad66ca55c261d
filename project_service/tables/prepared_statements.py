"""Which statements are prepared on which connection.

PREPARE and EXECUTE travel in the message of the first use, so that preparing costs no round trip. A prepared
statement outlives a transaction that fails after it, and DEALLOCATE is not undone by one: after a message that failed
the connection is asked, once, what it has.

Its parameters have for ever the types they had when it was prepared, so it is used for one version of the schema
cache only: with another, the same text may mean another operator.
"""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakKeyDictionary

from attrs import Factory, define

from project_service.database.session import Session
from project_service.tables.respond.outcome import as_bytes
from project_service.tables.sql.fragment import Sql

# Each costs PostgreSQL some ten kilobytes on each connection.
PER_CONNECTION = 200


@define
class _Known:
    names: OrderedDict[str, str] = Factory(OrderedDict)
    number: int = 0
    pending: tuple[str, str] | None = None
    unwanted: list[str] = Factory(list)
    version: int = 0
    unsure: bool = False

    def renew(self, version: int) -> None:
        """Let go of what was prepared for another schema cache."""
        if version != self.version:
            self.unwanted.extend(self.names.values())
            self.names.clear()
            self.version = version


class PreparedStatements:
    def __init__(self, per_connection: int = PER_CONNECTION) -> None:
        self._most = per_connection
        self._sessions: WeakKeyDictionary[Session, _Known] = WeakKeyDictionary()

    async def text(self, session: Session, statement: Sql, count: int, version: int) -> str:
        """The text that runs ``statement`` on ``session``: EXECUTE, after PREPARE where it is new there.

        ``version`` is that of the schema cache the statement was planned with.
        ``succeeded`` is to be called when the message has.
        """
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Known()
        if known.unsure:
            await self._settle(session, known)
        known.renew(version)
        name = known.names.get(statement.text)
        if name is not None:
            known.names.move_to_end(statement.text)
            return _execute(name, count)
        known.number += 1
        name = f"pgrst_{known.number}"
        known.pending = (statement.text, name)
        # Until it has succeeded.
        known.unsure = True
        if len(known.names) >= self._most:
            known.unwanted.append(known.names.popitem(last=False)[1])
        dropped = "".join(f"DEALLOCATE {unwanted}; " for unwanted in known.unwanted)
        return f"{dropped}PREPARE {name} AS {statement.for_prepare}; {_execute(name, count)}"

    def succeeded(self, session: Session) -> None:
        known = self._sessions[session]
        if known.pending is not None:
            text, name = known.pending
            known.names[text] = name
            known.pending = None
            known.unwanted.clear()
            known.unsure = False

    def doubt(self, session: Session) -> None:
        """SQL may have let go of what was prepared: ask before anything prepared is run again."""
        self._sessions[session].unsure = True

    def forget(self, session: Session, statement: Sql) -> None:
        """Do not run the prepared ``statement`` again."""
        known = self._sessions[session]
        name = known.names.pop(statement.text, None)
        if name is not None:
            known.unwanted.append(name)

    async def _settle(self, session: Session, known: _Known) -> None:
        """A message failed: how far did it get?"""
        rows = await session.query("SELECT name FROM pg_prepared_statements")
        there = {as_bytes(row[0]).decode() for row in rows}
        if known.pending is not None:
            known.names[known.pending[0]] = known.pending[1]
            known.pending = None
        known.names = OrderedDict(found for found in known.names.items() if found[1] in there)
        known.unwanted = [name for name in known.unwanted if name in there]
        known.unsure = False


def _execute(name: str, count: int) -> str:
    return f"EXECUTE {name}({', '.join(['%s'] * count)})" if count else f"EXECUTE {name}"
