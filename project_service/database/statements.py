"""Keeps track of the queries that are prepared on a connection.

PREPARE is sent as a message of its own: PostgreSQL keeps the text of the whole message for as long as the statement
exists, and shows it to all roles (``pg_prepared_statements``), so it must not contain anything from a request.
Neither PREPARE nor DEALLOCATE is undone by a rollback.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import define, field, frozen

Ask = Callable[[str], Awaitable[list[tuple[Any, ...]]]]

# Each statement costs PostgreSQL about 10 kB on each connection.
PER_CONNECTION = 200
# Sets our statements apart from those that an application's own SQL prepares.
_PREFIX = "service_"
_THERE = "SELECT name FROM pg_prepared_statements"
# SQLSTATEs that a prepared statement can raise after the schema has changed: no such operator or function, a wrong
# type, a result of another type than before, a dropped column in the rows of a function. If the type of a parameter
# was dropped, even if there is a new one of its name, it is an internal error (cache lookup failed).
_STALE = ("42883", "42804", "42846", "42725", "42703", "0A000", "XX000")
# The statement does not exist: an application's function has run DEALLOCATE ALL.
_GONE = "26000"


@frozen
class _Statement:
    name: str
    execution: str


@define
class Statements:
    """The prepared statements of one connection. Beyond ``most`` the least recently used ones are dropped.

    The types of a statement's parameters are fixed when it is prepared. With another schema cache the same text may
    mean another operator, so a statement is only used for the ``version`` of the schema cache that it was prepared
    for.

    It is also used for one ``role`` only. When PostgreSQL inlines a function's body, or its value, into a plan, it
    checks the right to that function while planning, and would use the plan for other roles without checking again.
    """

    most: int = PER_CONNECTION
    _known: OrderedDict[tuple[str, str], _Statement] = field(factory=OrderedDict, init=False)
    _unwanted: list[str] = field(factory=list, init=False)
    _number: int = field(default=0, init=False)
    _version: int = field(default=0, init=False)
    _unsure: bool = field(default=False, init=False)
    # The role for which PostgreSQL has cached plans of queries inside functions, where that matters.
    plans_of: str | None = field(default=None, init=False)

    def execution(self, query: str, version: int = 0, role: str = "") -> str | None:
        """The EXECUTE of ``query``, with ``%s`` for its parameters; None if it has to be prepared first."""
        if self._unsure:
            return None
        if version != self._version:
            self._unwanted.extend(statement.name for statement in self._known.values())
            self._known.clear()
            self._version = version
        found = self._known.get((role, query))
        if found is None:
            return None
        self._known.move_to_end((role, query))
        return found.execution

    async def prepare(
        self, ask: Ask, query: str, definition: str, count: int, version: int = 0, role: str = ""
    ) -> str:
        """As ``execution``, but the query is prepared if necessary. ``definition`` is the query with PostgreSQL's own
        placeholders, and ``count`` their number. ``ask`` sends a message; what it raises is raised."""
        if self._unsure:
            self._settle(await ask(_THERE))
        known = self.execution(query, version, role)
        if known is not None:
            return known
        if len(self._known) >= self.most:
            self._unwanted.append(self._known.popitem(last=False)[1].name)
        self._number += 1
        name = f"{_PREFIX}{self._number}"
        dropped = "".join(f"DEALLOCATE {unwanted}; " for unwanted in self._unwanted)
        # If the message fails, it is unknown how many of these have been deallocated.
        self._unsure = bool(dropped)
        await ask(f"{dropped}PREPARE {name} AS {definition}")
        self._unsure = False
        self._unwanted.clear()
        places = f"({', '.join(['%s'] * count)})" if count else ""
        made = self._known[role, query] = _Statement(name, f"EXECUTE {name}{places}")
        return made.execution

    def refused(self, query: str, code: str | None, role: str = "") -> bool:
        """To be told of an error of a prepared query. Whether it may be due to its being prepared, so that the query
        is worth running unprepared."""
        if code == _GONE:
            self._unsure = True
            return True
        if code not in _STALE:
            return False
        stale = self._known.pop((role, query), None)
        if stale is not None:
            self._unwanted.append(stale.name)
        return True

    def _settle(self, rows: list[tuple[Any, ...]]) -> None:
        # The connections of the table API return texts as bytes.
        there = [name if isinstance(name, str) else bytes(name).decode() for (name,) in rows]
        self._known = OrderedDict(found for found in self._known.items() if found[1].name in there)
        wanted = {statement.name for statement in self._known.values()}
        self._unwanted = [name for name in there if name.startswith(_PREFIX) and name not in wanted]
        self._unsure = False
