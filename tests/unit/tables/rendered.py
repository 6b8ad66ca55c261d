"""Syntax trees made by Hypothesis, and the text that a client would write for them."""

from __future__ import annotations

from hypothesis import strategies as st

from project_service.tables.request.syntax import (
    OPERATORS,
    Compare,
    Field,
    Filter,
    In,
    Is,
    JsonStep,
    Logic,
    Operand,
    Operation,
    OrderTerm,
    Search,
    SelectAll,
    SelectColumn,
    SelectEmbed,
    SelectItem,
)

_COMPARISONS = [name for name, one in OPERATORS.items() if one.operand in ("value", "pattern")]
_QUANTIFIABLE = [name for name, one in OPERATORS.items() if one.quantified_sql is not None]
_SEARCHES = [name for name, one in OPERATORS.items() if one.operand == "search"]

anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
keys = names.filter(lambda key: not key.lstrip("-").isdigit())
steps = st.builds(JsonStep, st.one_of(st.integers(-99, 99), keys), st.booleans())
fields = st.builds(Field, names, st.lists(steps, max_size=2).map(tuple))
operands = anything.filter(lambda text: "*" not in text).map(Operand)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field_text(field: Field) -> str:
    steps = (("->>" if step.as_text else "->") + _key(step.key) for step in field.path)
    return quoted(field.name) + "".join(steps)


def _key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else quoted(key)


operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Compare, st.sampled_from(_COMPARISONS), operands),
    st.builds(
        Compare,
        st.sampled_from(_QUANTIFIABLE),
        operands,
        st.sampled_from(["any", "all"]),
    ),
    st.builds(Is, st.sampled_from(["null", "not_null", "true", "false", "unknown"])),
    st.builds(
        Search,
        st.sampled_from(_SEARCHES),
        operands,
        st.sampled_from([None, "english", "simple"]),
    ),
    st.lists(anything, max_size=3).map(lambda values: In(Operand(_array(values)))),
)


def _array(values: list[str]) -> str:
    return "{" + ",".join(quoted(value) for value in values) + "}"


def operation_text(operation: Operation) -> str:
    """An operation as it is written in a logic tree, where operands are quoted."""
    if isinstance(operation, Is):
        return f"is.{operation.value}"
    if isinstance(operation, In):
        return f"in.({operation.operand.text[1:-1]})"
    if isinstance(operation, Search):
        language = f"({operation.language})" if operation.language else ""
        return f"{operation.operator}{language}.{quoted(operation.operand.text)}"
    quantifier = f"({operation.quantifier})" if operation.quantifier else ""
    return f"{operation.operator}{quantifier}.{quoted(operation.operand.text)}"


filters = st.builds(Filter, fields, operations, st.booleans())
logic: st.SearchStrategy[Logic] = st.deferred(
    lambda: st.builds(
        Logic,
        st.sampled_from(["and", "or"]),
        st.lists(st.one_of(filters, logic), min_size=1, max_size=3).map(tuple),
        st.booleans(),
    )
)


def logic_text(tree: Logic) -> str:
    """A logic tree without the operator before it, as it is written after the ``=`` of a parameter."""
    return "(" + ",".join(_term(term) for term in tree.terms) + ")"


def _term(term: Filter | Logic) -> str:
    negation = "not." if term.negated else ""
    if isinstance(term, Logic):
        return f"{negation}{term.operator}{logic_text(term)}"
    return f"{field_text(term.field)}.{negation}{operation_text(term.operation)}"


orders = st.lists(
    st.builds(
        OrderTerm,
        fields,
        st.sampled_from([None, "asc", "desc"]),
        st.sampled_from([None, "nullsfirst", "nullslast"]),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


def order_text(terms: tuple[OrderTerm, ...]) -> str:
    return ",".join(
        ".".join(filter(None, (field_text(term.field), term.direction, term.nulls))) for term in terms
    )


columns = st.builds(
    SelectColumn,
    fields,
    st.one_of(st.none(), names),
    st.sampled_from([None, "text", "double precision", "int[]"]),
    st.sampled_from([None, "sum", "count"]),
)
selects: st.SearchStrategy[tuple[SelectItem, ...]] = st.deferred(
    lambda: st.lists(st.one_of(columns, embeds), min_size=1, max_size=3).map(tuple)
)
embeds: st.SearchStrategy[SelectEmbed] = st.builds(
    SelectEmbed,
    names.filter(lambda name: name != "count"),
    st.one_of(st.just(()), selects),
    st.one_of(st.none(), names),
    st.one_of(st.none(), names.filter(lambda name: name not in ("inner", "left"))),
    st.sampled_from([None, "inner", "left"]),
)


def select_text(items: tuple[SelectItem, ...]) -> str:
    return ",".join(_item(item) for item in items)


def _item(item: SelectItem) -> str:
    if isinstance(item, SelectAll):
        return "*"
    alias = f"{quoted(item.alias)}:" if item.alias is not None else ""
    if isinstance(item, SelectColumn):
        assert item.field is not None
        cast = f"::{item.cast}" if item.cast else ""
        return alias + field_text(item.field) + cast + (f".{item.aggregate}()" if item.aggregate else "")
    hint = f"!{quoted(item.hint)}" if item.hint is not None else ""
    join = f"!{item.join}" if item.join else ""
    return f"{alias}{quoted(item.target)}{hint}{join}({select_text(item.items)})"
