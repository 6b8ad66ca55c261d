"""What a role may do with a relation, in plain words: made of its grants, row-level security and policies.

With whose rights a view reads, whom policies do not concern, and how several policies go together: PostgreSQL's
manual, CREATE VIEW (Notes), section 5.9 (Row Security Policies) and CREATE POLICY. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

# What each privilege allows, in the order in which sentences name them.
_VERBS = {"SELECT": "read", "INSERT": "add", "UPDATE": "change", "DELETE": "delete"}
# PostgreSQL's manual recommends to write calls in policies like this, for speed.
_CALLED_ONCE = re.compile(r"\( SELECT ([\w.]+\(\)) AS \w+\)")


@frozen
class Policy:
    """``command`` is ``ALL`` or a privilege. ``using`` and ``check`` are conditions as PostgreSQL prints them."""

    name: str
    command: str
    permissive: bool = True
    using: str | None = None
    check: str | None = None

    def condition(self, privilege: str) -> str | None:
        """Which rows it is about; None for all. Of an update: those that may be changed, and what they may become if
        that is something else."""
        check = self.using if self.check is None else self.check
        if privilege == "INSERT":
            return _plain(check)
        using = _plain(self.using)
        if privilege != "UPDATE" or _plain(check) == using:
            return using
        return f"{using or 'true'}, if {_plain(check) or 'true'} afterwards"


@frozen
class Role:
    """``privileges`` are its own, those of PUBLIC and those of roles that it is a member of: None for the whole
    relation, or the columns. ``policies`` are the names of those that apply to it. ``exempt``: none ever does, as it
    is a superuser, has BYPASSRLS or owns the relation."""

    name: str
    privileges: Mapping[str, Sequence[str] | None]
    uses_schema: bool = True
    exempt: bool = False
    policies: Sequence[str] = ()


@frozen
class Relation:
    """``secured``: it has row-level security. ``reads_as`` is the role with whose rights a view reads what is below
    it, if not its caller's."""

    schema: str
    columns: int
    secured: bool
    policies: Sequence[Policy] = ()
    is_view: bool = False
    reads_as: str | None = None


def summary(relation: Relation, roles: Iterable[Role]) -> str:
    """What concerns everybody, in one sentence."""
    if relation.is_view:
        if relation.reads_as is None:
            return "The view reads with the rights of whoever asks."
        return f"The view reads with the rights of {relation.reads_as}: its policies apply, not those of the caller."
    if not relation.secured:
        return "Row-level security is off: whoever may use a column reaches it in every row."
    if not relation.policies:
        exempt = [role.name for role in roles if role.exempt]
        return f"No policy: nobody but {_listed(exempt) or 'the owner'} reaches a row."
    return "Row-level security is on: policies say who reaches which rows."


def sentences(relation: Relation, role: Role) -> list[str]:
    """What ``role`` may do: one sentence for each kind of rows. At least one."""
    name = role.name
    granted = [privilege for privilege in _VERBS if privilege in role.privileges]
    if not granted:
        return [f"{name} may do nothing: it has no grant."]
    if not role.uses_schema:
        return [f"{name} may do nothing: it may not use the schema {relation.schema}."]
    guarded = relation.secured and not role.exempt
    together: dict[tuple[str, tuple[str, ...] | None], list[str]] = {}
    refused = []
    for privilege in granted:
        rows = _rows(relation, role, privilege) if guarded else ""
        if rows is None:
            refused.append(_VERBS[privilege])
        else:
            columns = role.privileges[privilege]
            key = rows, None if columns is None else tuple(columns)
            together.setdefault(key, []).append(_VERBS[privilege])
    said = [
        f"{name} may {_listed(verbs)} {_what(relation, rows, columns, verbs)}."
        for (rows, columns), verbs in together.items()
    ]
    if refused:
        said.append(
            f"{name} may not {_listed(refused, 'or')} a row: it has the grant, but no policy allows it."
        )
    return said


def _what(relation: Relation, rows: str, columns: Sequence[str] | None, verbs: Sequence[str]) -> str:
    reached = rows or ("rows" if verbs == ["add"] else "all rows")
    if relation.is_view and relation.reads_as is None:
        reached = "the rows that its rights to what is below the view allow"
    if columns is None:
        return reached
    count = f"{len(columns)} of {relation.columns} column{'s' if relation.columns != 1 else ''}"
    return f"{count} ({', '.join(columns)}) of {reached}"


def _rows(relation: Relation, role: Role, privilege: str) -> str | None:
    """Which rows policies let ``role`` use with ``privilege``: "" for all, None for none."""
    about = [
        policy
        for policy in relation.policies
        if policy.name in role.policies and policy.command in ("ALL", privilege)
    ]
    opening = list(dict.fromkeys(policy.condition(privilege) for policy in about if policy.permissive))
    if not opening:
        return None
    demanded = [
        condition for policy in about if not policy.permissive and (condition := policy.condition(privilege))
    ]
    conditions = [] if None in opening else [_either([one for one in opening if one is not None])]
    conditions += [one for one in dict.fromkeys(demanded) if one not in conditions]
    if not conditions:
        return ""
    return f"rows where {' and '.join(map(_grouped, conditions) if conditions[1:] else conditions)}"


def _either(conditions: Sequence[str]) -> str:
    return " or ".join(map(_grouped, conditions)) if conditions[1:] else conditions[0]


def _grouped(condition: str) -> str:
    return f"({condition})" if re.search(r"\b(?:AND|OR|or|if)\b", condition) else condition


def _plain(condition: str | None) -> str | None:
    """The condition without the brackets around all of it, and None for one that every row meets."""
    if condition is None:
        return None
    text = _CALLED_ONCE.sub(r"\1", condition)
    while text.startswith("(") and _closing(text) == len(text) - 1:
        text = text[1:-1]
    return None if text == "true" else text


def _closing(text: str) -> int:
    """Where the bracket closes that ``text`` begins with. Brackets in quotes do not count."""
    depth, quote = 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
            if depth == 0:
                return at
    return -1


def _listed(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
