"""GROUP BY. Everything that is selected beside aggregates is grouped by."""

from __future__ import annotations

from project_service.tables.plan.nodes import Everything, Output, ReadPlan
from project_service.tables.sql.embed import embedded_groups
from project_service.tables.sql.fields import column_sql, expression, field_sql


def group_by(plan: ReadPlan) -> str:
    """The GROUP BY clause; empty if there is none, or if all rows are one group."""
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
    """The expression to group by. A data representation's JSON has no equality, so the value itself is grouped by."""
    if output.cast is not None:
        return expression(plan, output)
    # Only a count has no field. One without an aggregate is handed up by a spread relation, whose own rows are not
    # grouped.
    assert output.field is not None
    return field_sql(column_sql(plan, output.field.name), output.field, output.column)
