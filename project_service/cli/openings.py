"""What of a database is open by accident: where rows can be read or written past row-level security, or without any,
by roles that requests may take.

``judged`` says so of what ``catalog`` has read. Where it is intended, the comment of the object says that, by
``PHRASE``. Pure.

With whose rights a view reads, and whom policies do not concern: PostgreSQL's manual, CREATE VIEW (Notes) and section
5.9, Row Security Policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

# In the comment of an object, in any case, this says that it is meant to be open.
PHRASE = "open on purpose"

# pg_class.relkind
_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "f": "foreign table"}
# With the letters of pg_policy.polcmd.
_RIGHTS = {"SELECT": "r", "INSERT": "a", "UPDATE": "w", "DELETE": "d"}
_ALWAYS = re.compile(r"true|NOT false|(.+) = \1")


# All names are as SQL writes them, with their schema, and quoted where that is needed.


@frozen
class Role:
    """``has`` are the owners of relations whose rights it has, itself included. ``bypasses`` is whether no policy
    ever concerns it."""

    name: str
    bypasses: bool = False
    has: Sequence[str] = ()
    comment: str | None = None


@frozen
class Policy:
    """``command`` is ``pg_policy.polcmd``. ``callers`` are those to whom it applies."""

    name: str
    command: str = "*"
    permissive: bool = True
    callers: Sequence[str] = ()
    using: str | None = None
    check: str | None = None
    comment: str | None = None

    def conditions(self, privilege: str) -> list[str]:
        """What it demands of a row that is written with the privilege: of an update, of the row as it was and of that
        which it is to be. Nothing if it is not about that."""
        if self.command not in ("*", _RIGHTS[privilege]):
            return []
        check = self.check or self.using
        of_row = {"INSERT": [check], "UPDATE": [self.using, check], "DELETE": [self.using]}
        return [one for one in of_row.get(privilege, []) if one is not None]


@frozen
class Relation:
    """``kind`` is ``pg_class.relkind``. ``exposed_to`` are the callers who may name it in a request, and ``grants``
    their rights to its rows, if only to some columns; ``grantees`` are the roles that were granted these.

    ``reads`` are the relations that a view reads, and ``invoker`` is its option ``security_invoker``. ``of_service``
    is whether it belongs to the service, which shows its rows to nobody."""

    name: str
    kind: str
    owner: str
    exposed_to: Sequence[str] = ()
    grants: dict[str, list[str]] = field(factory=dict)
    grantees: Sequence[str] = ()
    reads: Sequence[str] = ()
    invoker: bool = False
    secured: bool = False
    forced: bool = False
    of_service: bool = False
    policies: Sequence[Policy] = ()
    comment: str | None = None

    @property
    def shown(self) -> str:
        return f"{_KINDS[self.kind]} {self.name}"

    @property
    def closed(self) -> str:
        """The SQL that takes the callers' rights from them."""
        return f"revoke all on {self.name} from {', '.join(self.grantees)};"


@frozen
class Function:
    """A function with the rights of its owner, which has no search path of its own. ``path`` is the one with which
    requests call it."""

    name: str
    callers: Sequence[str]
    path: Sequence[str]
    comment: str | None = None


@frozen
class Catalog:
    """What can be open. ``callers`` are the roles that requests may take, but for that of the service key.
    ``version`` is PostgreSQL's major one."""

    callers: Sequence[str]
    roles: Sequence[Role] = ()
    relations: Sequence[Relation] = ()
    functions: Sequence[Function] = ()
    version: int = 18


@frozen
class Opening:
    """``shown`` is the object, as in ``COMMENT ON``; ``why`` goes on from there, and ``mend`` is SQL that ends it."""

    shown: str
    why: str
    mend: str


def judged(catalog: Catalog) -> list[Opening]:
    """What is open and does not say that it is meant to be."""
    roles = {one.name: one for one in catalog.roles}
    callers = [name for name in catalog.callers if not roles[name].bypasses]
    judge = _Judge(roles, {one.name: one for one in catalog.relations}, catalog.version)
    reached = {caller: judge.reached(caller) for caller in callers}
    found = [
        Opening(f"role {name}", "is concerned by no policy", f"alter role {name} nosuperuser nobypassrls;")
        for name in catalog.callers
        if roles[name].bypasses and not _intended(roles[name].comment)
    ]
    for one in catalog.relations:
        by = [caller for caller in callers if one.name in reached[caller]]
        direct = [caller for caller in by if caller in one.exposed_to]
        found += judge.view(one, direct) if one.kind in "vm" else judge.table(one, by)
    for function in catalog.functions:
        able = [caller for caller in callers if caller in function.callers]
        if able and not _intended(function.comment):
            why = f"has the rights of its owner and the search path of its callers: {', '.join(able)}"
            path = ", ".join(dict.fromkeys((*function.path, "pg_temp")))
            mend = f"alter function {function.name} set search_path = {path};"
            found.append(Opening(f"function {function.name}", why, mend))
    return found


def _intended(comment: str | None) -> bool:
    return comment is not None and PHRASE in comment.lower()


def _always(condition: str) -> bool:
    """Whether a condition, as PostgreSQL writes it, is true for every row."""
    return _ALWAYS.fullmatch(condition.strip("()")) is not None


@frozen
class _Judge:
    roles: dict[str, Role]
    relations: dict[str, Relation]
    version: int

    def read_by(self, view: Relation) -> list[Relation]:
        return [self.relations[name] for name in view.reads if name in self.relations]

    def holds(self, table: Relation, role: str) -> bool:
        """Whether the policies of ``table`` concern the role."""
        owns = table.owner in self.roles[role].has and not table.forced
        return table.secured and not owns and not self.roles[role].bypasses

    def hidden(self, table: Relation, role: str) -> bool:
        """Whether the role reads rows that the table shows to no caller who may not see them by itself."""
        return not self.holds(table, role) if table.secured else table.of_service

    def reached(self, caller: str) -> set[str]:
        """What the caller may use by itself, in a request or through views that read with the caller's rights."""
        todo = [one for one in self.relations.values() if caller in one.exposed_to and caller in one.grants]
        found: set[str] = set()
        while todo:
            one = todo.pop()
            if one.name not in found:
                found.add(one.name)
                todo += [read for read in self.read_by(one) if one.invoker and caller in read.grants]
        return found

    def table(self, table: Relation, by: list[str]) -> Iterator[Opening]:
        open_to = [caller for caller in by if not self.holds(table, caller)]
        if open_to and not _intended(table.comment):
            may = _may({one: table.grants[one] for one in open_to})
            if table.kind == "f":
                yield Opening(table.shown, f"can have no policies: {may} every row", table.closed)
            else:
                why = "has policies, but not for its owner" if table.secured else "has no row-level security"
                own = any(table.owner in self.roles[one].has for one in open_to) and not table.forced
                mend = "enable row level security" + (", force row level security" if own else "")
                yield Opening(table.shown, f"{why}: {may} every row", f"alter table {table.name} {mend};")
        for policy in table.policies:
            wide = {
                caller: [
                    one
                    for one in table.grants[caller]
                    if any(map(_always, policy.conditions(one))) and not _restricted(table, one, caller)
                ]
                for caller in by
                if caller not in open_to and caller in policy.callers and policy.permissive
            }
            if any(wide.values()) and not _intended(policy.comment):
                shown = f"policy {policy.name} on {table.name}"
                yield Opening(shown, f"says true where {_may(wide)}", f"drop {shown};")

    def view(self, view: Relation, by: list[str]) -> Iterator[Opening]:
        past = {caller: pairs for caller in by if (pairs := self.past(view, caller))}
        if not past:
            return
        pairs = list(dict.fromkeys(pair for pairs in past.values() for pair in pairs))
        tables = ", ".join(dict.fromkeys(table for _, table in pairs))
        readers = list(dict.fromkeys(reader for reader, _ in pairs))
        whose = "its owner" if readers == [view.name] else f"the owner of {', '.join(readers)}"
        why = f"opens {tables} to {', '.join(past)}, with the rights of {whose}, whom no policy concerns"
        if any(self.relations[one].kind == "m" for one in readers):
            mend = view.closed
        elif self.version < 15:
            why += " (without security_invoker, which PostgreSQL 15 has, conditions have to be in the view)"
            mend = view.closed
        else:
            mend = " ".join(f"alter view {one} set (security_invoker = true);" for one in readers)
        yield Opening(view.shown, why, mend)

    def past(self, view: Relation, caller: str) -> list[tuple[str, str]]:
        """The tables of which ``view`` shows the caller rows past their policies, or rows that are the service's own;
        each after the view that reads it.

        A materialised view is filled with the rights of its owner, and what it reads concerns no caller any more.
        """
        found = []
        todo: list[tuple[Relation, Relation | None]] = [(view, None)]
        seen = set()
        while todo:
            reader, filled = todo.pop()
            if reader.kind == "m":
                filled = reader
            at = (reader.name, filled.name if filled else None)
            if at in seen or _intended(reader.comment):
                continue
            seen.add(at)
            as_owner = reader if not reader.invoker else filled
            for read in self.read_by(reader):
                if read.kind in "vm":
                    if as_owner is not None or caller in read.grants:
                        todo.append((read, filled))
                elif as_owner is not None and self.hidden(read, as_owner.owner):
                    found.append(((filled or reader).name, read.name))
        return found


def _may(rights: Mapping[str, Sequence[str]]) -> str:
    """Who may do what, those with the same rights together."""
    callers: dict[tuple[str, ...], list[str]] = {}
    for caller, privileges in rights.items():
        if privileges:
            callers.setdefault(tuple(one for one in _RIGHTS if one in privileges), []).append(caller)
    return "; ".join(
        f"{', '.join(whom)} may {', '.join(privileges).lower()}" for privileges, whom in callers.items()
    )


def _restricted(table: Relation, privilege: str, caller: str) -> bool:
    """Whether a restrictive policy still demands something of a row that the caller writes."""
    return any(
        not one.permissive and caller in one.callers and not all(map(_always, one.conditions(privilege)))
        for one in table.policies
    )


def as_text(openings: Sequence[Opening]) -> str:
    """A line for each, with the SQL that mends it below, and how to say that it is intended."""
    lines = (f"{one.shown} {one.why}\n      {one.mend}" for one in openings)
    how = f"where that is intended, its comment has to say so: comment on {openings[0].shown} is '{PHRASE}';"
    return "\n  ".join(("this may be open by accident:", *lines, how))
