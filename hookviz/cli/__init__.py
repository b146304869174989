"""The command line: ``hookviz lab``, ``maps``, ``filters`` and the others.

In: arguments. Out: files, tables, an exit code (0 done, 1 a "no", 2 bad input, 3 some shards of a
survey failed, 130 interrupted). Must not know: the widget.

torch is imported inside the commands, so that ``hookviz --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

# Importing a module makes its commands known.
from hookviz.cli import (  # noqa: F401
    _compare_command,
    _explanation_commands,
    _model_commands,
    _monitor_command,
    _setup_commands,
    _survey_commands,
)
from hookviz.cli._group import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Runs the command line; the entry point of ``hookviz`` and ``python -m hookviz``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that lacks a character gets its escape, not an exception.
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="hookviz")
    finally:
        _forget_what_cannot_be_written()


def _forget_what_cannot_be_written() -> None:
    # Python writes the rest at its end, and would change the exit code where that fails.
    with contextlib.suppress(ValueError, AttributeError):  # closed, or none
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
