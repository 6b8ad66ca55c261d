"""How statements are run prepared, and which of the plans that PostgreSQL keeps with a connection a request may use.

PostgreSQL checks some rights, and computes what is declared immutable, when it makes a plan. Used for another caller,
the plan would skip the check, or contain what was the first caller's. So:

* A statement is prepared for one role and one version of the schema cache (``database.statements``).
* Plans of the queries inside functions are discarded when a connection passes to another role, if a function calls
  one that not every role may call (``pass_to_role``).
* All plans are discarded in each request where that is not enough (``preamble``, ``_forgets_plans``).

What functions call and read is known from their texts (``catalog.texts``). Two more rules are about prepared
statements alone: a statement before them takes their locks, without which they could miss rows (``sql.locks``), and
one that may no longer fit the schema is run once more as it is (``refused``).
"""

from __future__ import annotations

from project_service.database.session import Session
from project_service.database.statements import Statements
from project_service.tables.execution.preamble import Preamble
from project_service.tables.execution.work import Row, Work
from project_service.tables.sql.settings import FORGET_PLANS

_NO_RIGHT = "42501"


async def pass_to_role(session: Session, preamble: Preamble) -> None:
    """Make sure that functions' cached plans of another role are not used, for a preamble with ``plans_apart``. Call
    it outside a transaction. Raises what ``Session.execute`` raises."""
    if session.statements.plans_of != preamble.role:
        await session.execute(FORGET_PLANS)
        session.statements.plans_of = preamble.role


def execution(statements: Statements, work: Work) -> str | None:
    """The EXECUTE of each part of the work; None if one of them has to be prepared first."""
    version, role = work.version, work.preamble.role
    found = statements.execution(work.statement.text, version, role)
    if found is None or not work.locks:
        return found
    locks = statements.execution(work.locks.text, version, role)
    return f"{locks}; {found}" if locks is not None else None


def beginning(statements: Statements, work: Work) -> str:
    """The preamble, with the EXECUTE of its settings if these are prepared."""
    sql = work.preamble.sql
    found = statements.execution(sql.settings.statement.text, work.version)
    return sql.text if found is None else sql.executed(found)


async def prepare_and_send(session: Session, work: Work) -> list[Row]:
    """Begin a transaction, prepare what is not prepared yet, and run it. The preamble goes first: names are looked up
    by its role and its search path."""
    preamble, statements = work.preamble, session.statements
    await session.query(f"BEGIN; {preamble.sql.text}", preamble.values)
    settings = preamble.sql.settings.statement
    # Prepared without psycopg2's placeholders: the values of settings are written once for many requests.
    await statements.prepare(session.query, settings.text, settings.for_prepare, 0, work.version)
    texts = [
        await statements.prepare(
            session.query, part.text, part.for_prepare, len(part.parameters), work.version, preamble.role
        )
        for part in work.parts
    ]
    return await session.query("; ".join(texts), work.values)


def refused(statements: Statements, work: Work, code: str | None) -> bool:
    """Whether it is worth running unprepared. All parts are told, for nothing says which of them was refused."""
    if code == _NO_RIGHT and work.locks:
        # Without the locks the response may be another: the statement itself is refused for a wrong value first.
        return True
    found = [statements.refused(part.text, code, work.preamble.role) for part in work.parts]
    return any(found)
