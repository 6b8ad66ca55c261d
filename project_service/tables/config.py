"""The settings of one database's table API (``[stages.<stage>.databases.<name>]``)."""

from __future__ import annotations

from attrs import frozen

from project_service.settings.model import StageDatabase
from project_service.tables.plan.options import PlanOptions


@frozen
class TablesConfig(StageDatabase):
    """A database's settings, and ``statement_timeout``: the service's, written as PostgreSQL takes it ("0" for
    none)."""

    statement_timeout: str = "0"

    @property
    def plan_options(self) -> PlanOptions:
        allows = self.unfiltered_writes == "allow"
        return PlanOptions(
            self.max_rows, self.aggregates, self.legacy_target_names, allows, self.extra_search_path
        )

    @property
    def tx_override(self) -> bool:
        """Whether a request may say how its transaction ends."""
        return self.tx_end.endswith("allow-override")
