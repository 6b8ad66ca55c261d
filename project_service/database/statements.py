"""Keeps track of the statements that are prepared on a connection.

A statement is prepared by its text alone, which PostgreSQL shows to all roles (``pg_prepared_statements``), so it
must not contain anything from a request. Neither preparing nor DEALLOCATE is undone by a rollback.
"""

from __future__ import annotations

from attrs import define, field

# Each statement costs PostgreSQL about 10 kB on each connection.
PER_CONNECTION = 200
# Sets our statements apart from those that an application's own SQL prepares.
_PREFIX = b"service_"
# SQLSTATEs that a prepared statement can raise after the schema has changed: no such operator or function, a wrong
# type, a result of another type than before, a dropped column in the rows of a function. If the type of a parameter
# was dropped, even if there is a new one of its name, it is an internal error (cache lookup failed).
_STALE = ("42883", "42804", "42846", "42725", "42703", "0A000", "XX000")
# The statement does not exist: an application's function has run DEALLOCATE ALL.
_GONE = "26000"


@define(eq=False)
class Prepared:
    """A prepared statement: its ``name`` in PostgreSQL, and its columns' types once a result has shown them."""

    role: str
    text: str
    name: bytes
    types: tuple[int, ...] | None = None


@define
class Statements:
    """The prepared statements of one connection. Beyond ``most`` those prepared first are dropped.

    The types of a statement's parameters are fixed when it is prepared. With another schema cache the same text may
    mean another operator, so a statement is only used for the version of the schema cache that it was prepared for.

    It is also used for one role only. When PostgreSQL inlines a function's body, or its value, into a plan, it checks
    the right to that function while planning, and would use the plan for other roles without checking again.
    """

    most: int = PER_CONNECTION
    # By role and text, in the order in which they were prepared.
    known: dict[tuple[str, str], Prepared] = field(factory=dict, init=False)
    # The names of those that PostgreSQL still has to be told to drop.
    unwanted: list[bytes] = field(factory=list, init=False)
    _number: int = field(default=0, init=False)
    version: int = field(default=0, init=False)
    # The role for which PostgreSQL has cached plans of queries inside functions, where that matters.
    plans_of: str | None = field(default=None, init=False)

    def use_version(self, version: int) -> None:
        """Forget what was prepared for another version of the schema cache."""
        self.unwanted.extend(prepared.name for prepared in self.known.values())
        self.known.clear()
        self.version = version

    def add(self, role: str, text: str) -> Prepared:
        """A statement that the caller is about to prepare under this name."""
        if len(self.known) >= self.most:
            self.forget(next(iter(self.known.values())))
        self._number += 1
        prepared = Prepared(role, text, _PREFIX + str(self._number).encode())
        self.known[role, text] = prepared
        return prepared

    def take_unwanted(self) -> list[bytes]:
        """The names of forgotten statements, which the caller is about to deallocate."""
        unwanted, self.unwanted = self.unwanted, []
        return unwanted

    def forget(self, prepared: Prepared) -> None:
        """Do not use it again; PostgreSQL is to be told at the next opportunity."""
        if self.known.pop((prepared.role, prepared.text), None) is not None:
            self.unwanted.append(prepared.name)


def may_be_stale(code: str | None) -> bool:
    """Whether an error of a prepared statement may be due to its being prepared, so that it is worth running as text.

    Those are what ``Statements`` must forget too."""
    return code == _GONE or code in _STALE
