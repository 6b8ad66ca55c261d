"""What the text of a function in SQL or PL/pgSQL may do to its session and to plans, as its tokens show. Pure.

A text proves that it is harmless, or it counts as one that may do the worst: whatever is not understood here is
slower, and never wrong (``trust``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from attrs import frozen

from project_service.database.sql_lexer import Token, Unreadable, tokens


def words(text: str) -> frozenset[str]:
    """The words of ``text``, which is how long lists are written here."""
    return frozenset(text.split())


# Functions of PostgreSQL and of known extensions that leave something on the session or show what is left there, and
# those that run a text as SQL.
LEAVING = words("""
    set_config set_limit setseed currval lastval pg_replication_origin_session_setup
    pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock pg_try_advisory_lock_shared
    query_to_xml query_to_xmlschema query_to_xml_and_xmlschema ts_stat ts_rewrite
    isn_weak crosstab crosstab2 crosstab3 crosstab4 connectby xpath_table
    st_findextent find_extent populate_geometry_columns addgeometrycolumn dropgeometrycolumn dropgeometrytable
    updategeometrysrid addauth checkauth lockrow unlockrows enablelongtransactions disablelongtransactions
    _add_raster_constraint addrasterconstraints addoverviewconstraints st_createoverview st_retile
    st_mapalgebra _st_mapalgebra st_mapalgebraexpr
""")

# What reads who is asking, and when.
_OF_THE_CALLER = words("""
    current_user current_role session_user user system_user current_catalog current_schema
    current_date current_time current_timestamp localtime localtimestamp
""")
# Types whose input looks something up in the catalog.
_OF_CATALOG = words("""
    regclass regproc regprocedure regoper regoperator regtype regrole regnamespace regconfig regdictionary
    regcollation
""")
# Statements other than queries and PL/pgSQL's own, for which a function that depends on its arguments has no use.
_STATEMENTS = words("""
    insert update delete merge truncate copy table lock call do execute explain
    create alter drop grant revoke comment analyze vacuum cluster refresh import
    listen notify unlisten load set reset show discard prepare deallocate
    fetch move open commit rollback savepoint abort checkpoint
""")
# Special forms whose parentheses contain a FROM that reads nothing.
_WITH_FROM = words("extract substring trim overlay")
_END_OF_FROM = words(
    "where group having window order limit offset fetch for union intersect except returning then"
)
_QUERY = words("select values with")
# Words of statements that are column names too. These may follow a column, and are no names that the statement takes.
_AFTER_COLUMN = words("""
    from as is and or not in like ilike asc desc then else end when where order group limit union into using collate
""")
# A statement begins after these, and at the beginning.
_BEFORE_STATEMENT = words("begin atomic then else loop")
# What may follow an alias in FROM, and no statement begins with it.
_AFTER_ALIAS = words("join cross natural inner left right full on using as tablesample where")
# How many tokens are looked at for each of a text, so that a long text does not take forever.
_LOOKS_PER_TOKEN = 20
_ENDS_PLAIN_NAME = words("loop then else begin set end")

# Settings that decide how values are written and read.
FORM_SETTINGS = words("""
    timezone timezone_abbreviations datestyle intervalstyle bytea_output extra_float_digits xmlbinary xmloption
    array_nulls quote_all_identifiers
    lc_messages lc_monetary lc_numeric lc_time default_text_search_config
    pg_trgm.similarity_threshold pg_trgm.word_similarity_threshold pg_trgm.strict_word_similarity_threshold
""")
# Their last names, as they stand after SET.
_FORM_WORDS = frozenset(name.rpartition(".")[2] for name in FORM_SETTINGS)
# Settings that decide how texts are read as SQL; and the seed of random numbers, which stays though the setting ends.
_OF_READING = re.compile(
    r"standard_conforming_strings|backslash_quote|client_encoding|transform_null_equals|\A\s*(?:names|seed)\s*\Z",
    re.IGNORECASE,
)
_ROLE = words("role session_authorization authorization")
# Schemas of temporary tables and functions, which stay as long as the session.
_TEMPORARY = "pg_temp"


@frozen
class Facts:
    """What the text of a function shows.

    ``leaves``: it may leave something on the session, or show what others left. ``sets_role``: it may change the role
    for the rest of the transaction, ``sets_form`` how values are written. ``pure``: it reads neither relations nor
    settings, unless what it ``calls`` does. ``names`` are all names in it; those of its
    ``attributes`` may be calls in another notation. ``queries`` are names of queries (WITH) that it reads from,
    unless there are relations of these names.
    """

    leaves: bool = True
    sets_role: bool = True
    sets_form: bool = True
    pure: bool = False
    calls: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    queries: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


_NOTHING_KNOWN = Facts()
# Texts whose facts are remembered from one reading of the catalog to the next.
_REMEMBERED = 4096


@lru_cache(maxsize=_REMEMBERED)
def facts_of(language: str, text: str) -> Facts:
    """The facts of the body of a function in ``language``."""
    if language not in ("sql", "plpgsql"):
        return _NOTHING_KNOWN
    try:
        body = _Body(tokens(text), language == "plpgsql")
    except Unreadable:
        return Facts(names=frozenset(re.findall(r"\w+", text.lower())))
    return Facts(
        body.leaves,
        body.sets_role,
        body.sets_form,
        body.pure,
        body.calls,
        body.attributes,
        frozenset(body.queries),
        body.names,
    )


class _Body:
    """The tokens of a text, asked one question after another."""

    def __init__(self, found: Sequence[Token], procedural: bool) -> None:
        # After a point every word is a name: ``a.order``, ``a.is``.
        found = [
            Token("quoted", token.text, token.position)
            if token.kind == "name" and before.kind == "punctuation" and before.text == "."
            else token
            for before, token in pairwise([_NO_TOKEN, *found])
        ]
        self._tokens = [*found, Token("punctuation", ";", -1)]
        self._procedural = procedural
        self._looks = _LOOKS_PER_TOKEN * len(self._tokens)
        positions = range(len(found))
        # What the texts do that EXECUTE runs, as far as they are written there; None for others.
        self._executed = {at: self._facts_of_executed(at) for at in positions if found[at].is_word("execute")}
        inner = [facts for facts in self._executed.values() if facts is not None]
        self.names = frozenset(token.text for token in found if token.kind in ("name", "quoted")).union(
            *(facts.names for facts in inner)
        )
        # After AS it is an alias with names for its columns, or a type.
        self.calls = frozenset(
            found[at].text for at in positions if self._is_called(at) and not self._at(at - 1).is_word("as")
        )
        self._named_queries = frozenset(found[at].text for at in positions if self._names_query(at))
        self.queries: set[str] = set()
        self.attributes = frozenset(found[at].text for at in positions if self._is_mark(at - 1, "."))
        self.leaves = any(self._leaves(at) for at in positions)
        self.sets_role = any(self._sets_role(at) for at in positions)
        written = {token.text.strip().lower() for token in found}
        self.sets_form = (
            (bool(written & (FORM_SETTINGS | _FORM_WORDS)) and bool(written & {"set", "set_config"}))
            or any(map(self._sets_form_by_words, positions))
            or any(facts.sets_form for facts in inner)
        )
        self.pure = (
            not any(token.is_word(*_OF_THE_CALLER, *_STATEMENTS) for token in found)
            # The type of arrays of them begins with an underscore.
            and not {name.removeprefix("_") for name in self.names} & _OF_CATALOG
            and all(map(self._reads_no_relation, positions))
        )

    def _at(self, at: int) -> Token:
        """The token there; one that is nothing outside the text."""
        return self._tokens[at] if 0 <= at < len(self._tokens) else _NO_TOKEN

    def _is_mark(self, at: int, *marks: str) -> bool:
        """Whether the token ``at`` is one of these punctuation ``marks``. A literal or a quoted name may look like
        one."""
        token = self._at(at)
        return token.kind == "punctuation" and token.text in marks

    def _is_enough(self) -> bool:
        """Whether so much has been looked at that the rest counts as not understood."""
        self._looks -= 1
        return self._looks < 0

    def _is_called(self, at: int) -> bool:
        return self._at(at).kind in ("name", "quoted") and self._is_mark(at + 1, "(")

    def _names_query(self, at: int) -> bool:
        """Whether the token ``at`` is a name that WITH gives to a query."""
        begins = self._at(at - 1).is_word("with", "recursive") or self._is_mark(at - 1, ",")
        return begins and self._at(at).kind in ("name", "quoted") and self._at(at + 1).is_word("as")

    # What stays on the session.

    def _leaves(self, at: int) -> bool:  # noqa: PLR0911  # one for each kind of statement
        token, before, after = self._at(at), self._at(at - 1), self._at(at + 1)
        if token.kind in ("name", "quoted"):
            if token.text == "set_config":
                return self._is_mark(at + 1, "(") and not self._is_local(at + 1)
            if token.text in LEAVING or token.text.startswith(_TEMPORARY):
                return True
        if token.kind != "name" or self._is_mark(at - 1, "."):
            return False
        if token.text == "set":
            return not self._is_harmless_set(at)
        if token.text in ("reset", "discard", "listen", "load", "prepare", "do"):
            return self._begins(at) and _is_argument(after)
        if token.text in ("temp", "temporary"):
            return after.is_word("table", "view", "sequence", "recursive") or before.is_word(
                "into", "local", "global"
            )
        if token.text == "hold":
            return before.is_word("with")
        if token.text == "into" and not self._procedural:
            # SELECT INTO makes a table, of which the search path decides whether it is a temporary one.
            return not before.is_word("insert", "merge")
        if token.text == "create":
            return not after.is_word(
                "table", "index", "unique", "unlogged", "schema", "materialized", "temp", "temporary"
            )
        return token.text == "execute" and self._executes(at, lambda facts: facts.leaves)

    def _begins(self, at: int) -> bool:
        """Whether a statement may begin there."""
        before = self._at(at - 1)
        return (
            at == 0 or self._is_mark(at - 1, ";") or before.is_word(*_BEFORE_STATEMENT) or before.text == ">>"
        )

    def _is_harmless_set(self, at: int) -> bool:
        """Whether a SET ends with the transaction, or belongs to UPDATE."""
        after = self._at(at + 1)
        if after.is_word("local"):
            return not any(
                (token.kind == "literal" and (not token.exact or self._at(number - 1).kind == "literal"))
                or _OF_READING.search(token.text) is not None
                or _TEMPORARY in token.text.lower()
                or self._is_enough()
                for number, token in self._statement(at)
            )
        if after.is_word("constraints", "transaction"):
            return True
        return self._is_of_update(at)

    def _is_of_update(self, at: int) -> bool:
        return any(self._is_update(back, at) for back in range(max(0, at - 10), at))

    def _is_update(self, at: int, end: int) -> bool:
        """Whether the tokens from there to the SET at ``end`` are ``UPDATE [ONLY] name [*] [[AS] alias]``, or the
        UPDATE of ON CONFLICT or MERGE."""
        before = self._at(at - 1)
        if not self._at(at).is_word("update") or before.is_word("for", "key"):
            return False
        at += 1
        if at == end:
            return before.is_word("do", "then")
        at += self._at(at).is_word("only")
        while self._is_mark(at + 1, "."):
            at += 2
        if not self._is_plain_name(at):
            return False
        at += 1 + (self._at(at + 1).text == "*")
        at += self._at(at).is_word("as")
        return at == end or (at + 1 == end and self._is_plain_name(at))

    def _is_plain_name(self, at: int) -> bool:
        token = self._at(at)
        return token.kind == "quoted" or (token.kind == "name" and token.text not in _ENDS_PLAIN_NAME)

    def _statement(self, at: int) -> Iterable[tuple[int, Token]]:
        """The tokens from there to the end of the statement, with their places."""
        while not self._is_mark(at, ";"):
            yield at, self._at(at)
            at += 1

    def _is_local(self, opening: int) -> bool:
        """Whether the arguments of a call of ``set_config`` make a setting that ends with the transaction, and on
        which nothing depends that is judged here."""
        arguments = self._arguments(opening)
        if len(arguments) != 3 or not (len(arguments[2]) == 1 and arguments[2][0].is_word("true")):
            return False
        name, value = _written(arguments[0]), _written(arguments[1])
        if name is None or _OF_READING.search(name):
            return False
        return name.strip().lower() != "search_path" or (
            value is not None and _TEMPORARY not in value.lower()
        )

    def _arguments(self, opening: int) -> list[list[Token]]:
        """The tokens of each argument of a call whose parenthesis is at ``opening``; none if it does not close
        soon enough."""
        depth, arguments = 0, [[]]  # type: tuple[int, list[list[Token]]]
        for at in range(opening, len(self._tokens)):
            token = self._tokens[at]
            if self._is_enough():
                return []
            if token.text in ("(", "[") and token.kind == "punctuation":
                depth += 1
                if depth == 1:
                    continue
            elif token.text in (")", "]") and token.kind == "punctuation":
                depth -= 1
                if depth == 0:
                    return arguments
            elif token.text == "," and token.kind == "punctuation" and depth == 1:
                arguments.append([])
                continue
            arguments[-1].append(token)
        return []

    def _executes(self, at: int, what: Callable[[Facts], bool]) -> bool:
        """Whether an EXECUTE runs a text of which that may be true."""
        if self._at(at + 1).is_word("on"):
            return False  # it is a right that is granted
        facts = self._executed[at]
        return facts is None or what(facts)

    def _facts_of_executed(self, at: int) -> Facts | None:
        """The facts of the text that an EXECUTE runs, if all of it is written there: one literal, or ``format`` of
        one that takes only names and literals."""
        if not self._procedural:
            return None
        after = self._at(at + 1)
        if after.kind == "literal":
            return facts_of("sql", after.text) if after.exact and self._ends(at + 2) else None
        if after.is_word("format") and self._is_mark(at + 2, "("):
            arguments = self._arguments(at + 2)
            form = arguments[0] if arguments else []
            if len(form) != 1 or form[0].kind != "literal" or not form[0].exact:
                return None
            text = _filled(form[0].text)
            end = at + 3 + sum(map(len, arguments)) + len(arguments)
            return facts_of("sql", text) if text is not None and self._ends(end) else None
        return None

    def _sets_form_by_words(self, at: int) -> bool:
        """Whether SET TIME ZONE or SET XML OPTION stands there."""
        return self._at(at).is_word("set", "local", "session") and (
            (self._at(at + 1).is_word("time") and self._at(at + 2).is_word("zone"))
            or (self._at(at + 1).is_word("xml") and self._at(at + 2).is_word("option"))
        )

    def _ends(self, at: int) -> bool:
        return self._is_mark(at, ";", ",", ")") or self._at(at).is_word("into", "using", "loop")

    # The role.

    def _sets_role(self, at: int) -> bool:
        token = self._at(at)
        if token.is_word("set"):
            if self._is_of_update(at):
                return False
            at += 1
            while self._at(at).is_word("local", "session"):
                at += 1
            return self._at(at).kind in ("name", "quoted") and self._at(at).text in _ROLE
        if token.is_word("execute"):
            return self._executes(at, lambda facts: facts.sets_role)
        if token.text != "set_config" or token.kind == "literal" or not self._is_mark(at + 1, "("):
            return False
        name = _written((self._arguments(at + 1) or [[]])[0])
        return name is None or name.strip().lower() in _ROLE

    # Relations.

    def _reads_no_relation(self, at: int) -> bool:  # noqa: PLR0911, PLR0912  # one for each form of FROM
        """Whether a FROM that stands there reads functions and queries only."""
        token, before = self._at(at), self._at(at - 1)
        if not token.is_word("from"):
            return True
        if before.is_word("distinct") and self._at(at - 2).is_word("is", "not"):
            return True
        if self._within(at) in _WITH_FROM:
            return True
        at += 1
        depth = 0
        expected = True
        while not self._is_mark(at, ";"):
            token = self._at(at)
            if self._is_enough():
                return False
            if token.is_word("into") and depth == 0:
                # PL/pgSQL takes it out wherever it stands, and what follows goes on with FROM.
                at = self._after_target(at)
                continue
            if expected:
                if not self._is_item(at):
                    return False  # a relation, or what is not understood
                expected = False
            if token.kind == "punctuation" and token.text in ("(", "["):
                depth += 1
            elif token.kind == "punctuation" and token.text in (")", "]"):
                depth -= 1
                if depth < 0:
                    return True
            elif depth == 0 and (
                token.is_word(*_END_OF_FROM) or (token.is_word("loop") and self._is_of_for(at))
            ):
                return True
            elif token.is_word("join") or (depth == 0 and token.text == "," and token.kind == "punctuation"):
                expected = True
            at += 1
        return not expected

    def _is_of_for(self, at: int) -> bool:
        """Whether a LOOP ends a query. PostgreSQL takes it for an alias in other places."""
        return (
            self._procedural
            and not self._at(at - 1).is_word("as")
            and not self._is_mark(at + 1, ",", "(", ")", ";")
            and not self._at(at + 1).is_word(*_AFTER_ALIAS)
        )

    def _after_target(self, at: int) -> int:
        """What follows the variables of INTO."""
        at += 1 + self._at(at + 1).is_word("strict")
        while self._is_mark(at + 1, ".", ","):
            at += 2
        return at + 1

    def _is_item(self, at: int) -> bool:
        """Whether an item of FROM is a function or a query."""
        if self._at(at).is_word("lateral"):
            at += 1
        opened = at
        while self._is_mark(at, "("):
            at += 1
            if self._is_enough():
                return False
        if at > opened:
            return self._at(at).is_word(*_QUERY)
        if self._at(at).text in self._named_queries and not self._is_mark(at + 1, ".", "("):
            self.queries.add(self._at(at).text)
            return self._at(at).kind in ("name", "quoted")
        while self._is_mark(at + 1, "."):
            at += 2
        return self._is_called(at) and not self._at(at).is_word("from", "only")

    def _within(self, at: int) -> str:
        """The word before the parenthesis that ``at`` is directly in; empty if it is a query's own."""
        depth = 0
        for back in range(at - 1, -1, -1):
            token = self._at(back)
            if self._is_mark(back, ";") or self._is_enough():
                return ""
            if token.kind == "punctuation" and token.text == ")":
                depth += 1
            elif token.kind == "punctuation" and token.text == "(":
                if depth == 0:
                    word = self._at(back - 1)
                    return word.text if word.kind == "name" and not self._is_mark(back - 2, ".") else ""
                depth -= 1
            elif depth == 0 and token.is_word(*_QUERY):
                return ""
        return ""


_NO_TOKEN = Token("punctuation", "", -1)


def _written(argument: Sequence[Token]) -> str | None:
    """The value of an argument that is one literal, as a text or cast to one; None for any other."""
    first, *cast = argument or [_NO_TOKEN]
    if (
        first.kind != "literal"
        or not first.exact
        or [token.text for token in cast] not in ([], ["::", "text"])
    ):
        return None
    return first.text


def _is_argument(token: Token) -> bool:
    """Whether a token after a word shows that the word is a statement, and not a column's name."""
    if token.kind == "name":
        return token.text not in _AFTER_COLUMN
    return token.kind in ("quoted", "literal") or token.text == "*"


# A name that ``format`` puts in. It is quoted only where it has to be, so it may be any word that is not reserved.
_GIVEN = "project_service_given_name"
_DIRECTIVE = re.compile(r"%(?:([0-9]+\$)?([IL])|(%)|(.)|\Z)", re.DOTALL)
# Where a given name can only be that of a relation, schema or column, with what must not follow there.
_BEFORE_GIVEN = words("from join into update only on by where and or select table exists set")


def _filled(form: str) -> str | None:
    """A text that does what ``format(form, …)`` may do; None if that cannot be said."""
    if any(directive[4] is not None or directive[0] == "%" for directive in _DIRECTIVE.finditer(form)):
        return None
    text = _DIRECTIVE.sub(lambda m: "%" if m[3] else f" {_GIVEN} " if m[2] == "I" else f" '{_GIVEN}' ", form)
    try:
        found = [*tokens(text), _NO_TOKEN]
    except Unreadable:
        return None
    # What is given must not be part of a comment, or of another literal or name, which it might end.
    given = [token for token in found if token.text == _GIVEN and token.kind in ("name", "literal")]
    if len(given) != text.count(_GIVEN):
        return None
    for at, token in enumerate(found):
        if token.text != _GIVEN or token.kind == "literal":
            continue
        before, after = found[at - 1] if at else _NO_TOKEN, found[at + 1]
        follows = (
            before.is_word(*_BEFORE_GIVEN) or before.text in (".", ",", "(") or before.kind == "operator"
        )
        columns = before.is_word("into", "table", "exists") or (
            before.text == "." and after.text == "(" and _into(found, at)
        )
        called = after.text == "(" and not columns
        names = (
            before.is_word("into")
            and after.kind == "name"
            and not after.is_word("values", "select", "default", "as")
        )
        # A schema in which something is made may be that of temporary tables.
        created = any(found[back].is_word("create") for back in range(max(0, at - 6), at))
        makes = created or (before.is_word("into") and not found[at - 2].is_word("insert", "merge"))
        if not follows or called or names or (makes and after.text == "."):
            return None
    return text


def _into(found: Sequence[Token], at: int) -> bool:
    """Whether the qualified name that ends there is that of INSERT INTO or CREATE TABLE, so that columns follow."""
    while at >= 2 and found[at - 1].text == ".":
        at -= 2
    return at > 0 and found[at - 1].is_word("into", "table", "exists")


# What a table may be made with, where the search path decides in which schema.
_MAKING = words("create execute")


def settings_leave(settings: Iterable[str], names: frozenset[str] = frozenset()) -> bool:
    """Whether a function's own settings, as ``name=value``, change what its text means or does. ``names`` are those
    in its text."""
    path = any(one.startswith("search_path=") and _TEMPORARY in one.lower() for one in settings)
    first = any(one.startswith(f"search_path={_TEMPORARY}") for one in settings)
    reading = any(_OF_READING.match(one.partition("=")[0]) for one in settings)
    return reading or first or (path and bool(names & _MAKING))


def settings_form(settings: Iterable[str]) -> bool:
    """Whether a function's own settings change how values are written and read."""
    return any(one.partition("=")[0].lower() in FORM_SETTINGS for one in settings)
