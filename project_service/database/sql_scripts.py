"""A text of SQL with several statements: whether it is one transaction, what of it must not be run, and what our
rules add to PostgreSQL's hints. It is run by whoever has the connection, a statement at a time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from attrs import frozen

from project_service.database.sql_statements import Comment, Script, Statement, read_script

# A comment above the first statement says so of a file whose statements cannot run inside a transaction, such as
# CREATE INDEX CONCURRENTLY. Anything may follow on the line.
NO_TRANSACTION = "-- no transaction"
_NO_TRANSACTION = re.compile(r"--\s*no\s+transaction", re.IGNORECASE)
# What else people write, here and for other tools, when they mean that; of a comment's letters alone.
_NEARLY = re.compile(
    r"no(ddl)?(transaction|tx)"
    r"|(disable|without|outside|skip)d?(a|the|any|ddl|of)*(transaction|tx)"
    r"|transaction(is|s|mode)*(false|off|no|disabled)|txmodenone"
)
# A comment by which other tools find the part that undoes a file: dbmate's "-- migrate:down", goose's
# "-- +goose Down", sql-migrate's "-- +migrate Down", Rambler's "-- rambler down", node-pg-migrate's "-- Down
# Migration", the "-- Down" of several, MyBatis' "-- //@UNDO", tern's "---- create above / drop below ----".
_DOWN = re.compile(
    r"--\W*((?<=\+)\w+\s+|\w+:|(rambler|migrat\w+):?\s+)?(downs?|undo|rollback|revert)(\s+(migration|script|sql|part))?\W*$"
    r"|--\W*((?<=\+)\w+\s+|\w+:)(downs?|undo|rollback|revert)\s"  # with options behind it
    r"|--\W*create\s+above\s*/\s*drop\s+below",
    re.IGNORECASE,
)
_HOW = f'begin the file with the line "{NO_TRANSACTION}"'


@frozen
class SqlFile:
    """``name`` is how messages name it."""

    name: str
    script: Script

    @classmethod
    def of(cls, name: str, text: str) -> SqlFile:
        return cls(name, read_script(text))

    @property
    def in_transaction(self) -> bool:
        """Whether the file is one transaction. If not, each of its statements is a transaction by itself."""
        return not any(
            _NO_TRANSACTION.match(comment.text) for comment in self.script.comments if comment.after == 0
        )

    @property
    def ends_transactions(self) -> list[Statement]:
        """The statements that begin or end a transaction."""
        return [one for one in self.script.statements if _ends_transaction(one.words)]

    def faults(self) -> list[str]:
        """Why the file must not be run, a line for each reason; none if it may be."""
        faults = []
        ending = self.ends_transactions
        if ending and self.in_transaction:
            listed = ", ".join(f"line {one.line}: {one.words[0].upper()}" for one in ending)
            faults.append(
                f"{self.name}, {listed}: a file is one transaction, which it cannot begin or end by itself; "
                f"delete that, or, if each statement is to be a transaction of its own, {_HOW}"
            )
        down = next((one for one in self.script.comments if self._begins_down(one)), None)
        if down is not None:
            faults.append(
                f'{self.name}, line {down.line}: "{down.text.strip()}" begins what undoes the file, and would be run '
                "too: delete that part (a new file undoes another), or stay with the tool that it was written for"
            )
        return faults

    def _begins_down(self, comment: Comment) -> bool:
        """Whether ``comment`` begins the part that undoes the file. It does not at the end of the file, where
        templates of other tools have such a comment with no SQL behind it."""
        return comment.alone and comment.after < self.script.tokens and _DOWN.match(comment.text) is not None

    def hint(self, statement: Statement, sqlstate: str | None) -> str | None:
        """What our rules add to PostgreSQL's own hint."""
        if not self.in_transaction:
            return self._hint_of_leftovers(statement)
        # active_sql_transaction, invalid_transaction_termination, unsafe_new_enum_value_usage. SET TRANSACTION fails
        # with the first too, where it comes too late.
        if sqlstate not in ("25001", "2D000", "55P04") or statement.words[0] == "set":
            return None
        near = next((one for one in self.script.comments if _is_nearly(one.text)), None)
        misspelt = f' (line {near.line}, "{near.text.strip()}", does not count)' if near else ""
        return f"to run each statement of the file as a transaction of its own, {_HOW}{misspelt}"

    def _hint_of_leftovers(self, statement: Statement) -> str | None:
        left = []
        if statement is not self.script.statements[0]:
            left.append(f"there is no transaction: what stands before line {statement.line} has been done")
        if "concurrently" in statement.words:
            left.append("if the statement has left an index behind, that is invalid: drop it")
        return "; ".join(left) or None


def _ends_transaction(words: tuple[str, ...]) -> bool:
    """Whether a statement that begins with ``words`` begins or ends a transaction; savepoints do not."""
    match words:
        case ("rollback", "to", *_) | ("rollback", "work" | "transaction", "to", *_):
            return False
        case ("begin" | "commit" | "end" | "abort" | "rollback", *_) | ("start", "transaction", *_):
            return True
        case ("prepare", "transaction", then, *_):
            return then not in ("as", "(")  # a prepared statement with this name
    return False


def _is_nearly(comment: str) -> bool:
    return _NEARLY.search(re.sub("[^a-z]", "", comment.lower())) is not None


def unsuited(statement: Statement, status: Callable[[str], str | None]) -> str | None:
    """Why the settings of the session, which statements before this one may have changed, would give it another
    meaning, as a clause about the text. ``status`` returns the present value of a setting that the server reports."""
    if "\\" in statement.text and status("standard_conforming_strings") == "off":
        return (
            "has set standard_conforming_strings to off, which is not supported: "
            "leave that out, and write strings that have escapes as E'…'"
        )
    if not statement.text.isascii() and status("client_encoding") not in (None, "UTF8"):
        return f"is in UTF-8, and has set client_encoding to {status('client_encoding')}: leave that out"
    return None
