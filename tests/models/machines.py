"""Plays state machines of Hypothesis."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def play(machine: Callable[[], RuleBasedStateMachine], examples: int) -> None:
    """Fails with the shortest run that it finds in which a new ``machine()`` fails. ``--quick`` tries fewer."""
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # a factory will do, it says
        settings=settings(
            max_examples=max(1, examples * settings().max_examples // 100),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
