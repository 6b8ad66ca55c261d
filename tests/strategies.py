"""Hypothesis strategies that several tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from project_service.storage import keys

text = st.text(alphabet=st.characters(exclude_categories=()), max_size=300)


segments = st.text(
    alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/"), min_size=1
)


good_keys = st.lists(segments.filter(lambda s: s not in {".", ".."}), min_size=1, max_size=5).map("/".join)


def short(key: str) -> bool:
    return len(key.encode()) <= keys.MAX_KEY_BYTES
