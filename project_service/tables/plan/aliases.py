"""Names for the relations within one statement."""

from __future__ import annotations

# PostgreSQL truncates longer names, and two that are truncated may become equal.
NAME_BYTES = 63


def alias(name: str, number: int) -> str:
    """A name for a relation within one statement, unique by ``number`` and never cut by PostgreSQL."""
    suffix = f"_{number}"
    kept = name.encode()[: NAME_BYTES - len(suffix)].decode(errors="ignore")
    return kept + suffix
