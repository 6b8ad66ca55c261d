"""What a start says on standard output, beside the log or in its place."""

from __future__ import annotations

import sys

from twisted.logger import Logger

from project_service.log import setup as log_setup

log = Logger()


def say(line: str) -> None:
    """Tell whoever has started us, and write it to the log, unless the log goes to the same output as text."""
    if log_setup.on_output() != "text":
        log.info("{line}", line=line)
    show(line)


def show(text: str) -> None:
    """Print to standard output; not if there are lines of JSON of the log, unless it is a terminal."""
    if log_setup.on_output() == "json" and not on_terminal():
        return
    if sys.__stdout__ is not None and not sys.__stdout__.closed:
        try:
            print(text, file=sys.__stdout__, flush=True)  # progress is meant to be seen
        except OSError:
            return


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    out = sys.__stdout__
    return out is not None and not out.closed and out.isatty()
