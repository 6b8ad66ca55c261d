"""Which queries are prepared on a connection.

PREPARE is a message of its own: PostgreSQL keeps the whole message as long as the statement, and shows it to every
role (``pg_prepared_statements``), so nothing of a request may be in it. What was prepared outlives a transaction that
is rolled back, and DEALLOCATE is not undone by one either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import Factory, define, frozen

Ask = Callable[[str], Awaitable[list[tuple[Any, ...]]]]

# Each costs PostgreSQL some ten kilobytes on each connection.
PER_CONNECTION = 200
# Others prepare as well: SQL of an application.
_PREFIX = "service_"
_THERE = "SELECT name FROM pg_prepared_statements"
# No such operator or function, a wrong type, a result of another type than before; a parameter's type that is gone,
# even where there is another of its name, is PostgreSQL's internal error (cache lookup failed).
_STALE = ("42883", "42804", "42846", "42725", "0A000", "XX000")
# A function has said DEALLOCATE ALL, perhaps the very one that runs.
_GONE = "26000"


@frozen
class _Statement:
    name: str
    execution: str


@define
class Statements:
    """Those of one connection, the least recently used leaving first.

    A statement's parameters have for ever the types they had when it was prepared, so it is used for one ``version``
    of what its text means only: with another schema cache, the same text may mean another operator.

    It is one ``role``'s as well: PostgreSQL asks for the right to a function when it plans, where it writes out the
    function's body or its value, and would give another role what it planned for this one.
    """

    most: int = PER_CONNECTION
    _known: OrderedDict[tuple[str, str], _Statement] = Factory(OrderedDict)
    _unwanted: list[str] = Factory(list)
    _number: int = 0
    _version: int = 0
    _unsure: bool = False
    _role: str | None = None

    def passes_to(self, role: str) -> bool:
        """Whether what functions have planned on the connection may be another role's; from now on it is not."""
        known, self._role = self._role == role, role
        return not known

    def execution(self, query: str, version: int = 0, role: str = "") -> str | None:
        """What runs ``query``, with ``%s`` for its parameters; None where it has to be prepared first."""
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
        """As ``execution``, after PREPARE where it is not there. ``definition`` is the query with PostgreSQL's own
        placeholders, ``count`` of them. Raises what ``ask`` raises."""
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
        # Of a message that fails nobody knows how many it let go of.
        self._unsure = bool(dropped)
        await ask(f"{dropped}PREPARE {name} AS {definition}")
        self._unsure = False
        self._unwanted.clear()
        places = f"({', '.join(['%s'] * count)})" if count else ""
        made = self._known[role, query] = _Statement(name, f"EXECUTE {name}{places}")
        return made.execution

    def refused(self, query: str, code: str | None, role: str = "") -> bool:
        """Whether the SQLSTATE may be for the prepared ``query`` alone, so that it is worth running as it is."""
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
        # The table API's connections hand out texts as bytes.
        there = [name if isinstance(name, str) else bytes(name).decode() for (name,) in rows]
        self._known = OrderedDict(found for found in self._known.items() if found[1].name in there)
        wanted = {statement.name for statement in self._known.values()}
        self._unwanted = [name for name in there if name.startswith(_PREFIX) and name not in wanted]
        self._unsure = False
