"""GROUP BY: beside aggregates whatever else is selected groups."""

from __future__ import annotations

from project_service.tables.plan.nodes import Everything, Output, ReadPlan
from project_service.tables.sql.embed import embedded_groups
from project_service.tables.sql.fields import expression, field_sql


def group_by(plan: ReadPlan) -> str:
    """GROUP BY; nothing where all rows are one group."""
    if not plan.grouped:
        return ""
    keys: list[str] = []
    for output in plan.outputs:
        if isinstance(output, Output):
            keys.extend([] if output.aggregate is not None else [_group_key(plan, output)])
        elif isinstance(output, Everything):
            keys.extend(_group_key(plan, named) for named in output.named)
        else:
            keys.extend(embedded_groups(output))
    return " GROUP BY " + ", ".join(keys) if keys else ""


def _group_key(plan: ReadPlan, output: Output) -> str:
    """What represents a value as JSON has no equality; the value itself may have."""
    if output.cast is not None:
        return expression(plan.alias, output)
    # A count without an aggregate is what a spread relation hands up, whose own rows are not grouped.
    assert output.field is not None
    return field_sql(plan.alias, output.field, output.column)
