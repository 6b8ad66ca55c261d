"""What a database's settings decide about plans."""

from __future__ import annotations

from attrs import frozen


@frozen
class PlanOptions:
    max_rows: int = 0
    aggregates: bool = True
    legacy_target_names: bool = True
    allow_unfiltered_writes: bool = False
    extra_search_path: tuple[str, ...] = ()
