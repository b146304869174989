"""The command line: ``hookviz lab``, ``maps``, ``filters`` and the others.

In: arguments. Out: files, tables, an exit code (0 done, 1 a "no", 2 bad input, 3
some shards of a survey failed). Must not know:
the widget.

torch is imported inside the commands, so that ``hookviz --help`` answers at once.
"""

from __future__ import annotations

import io
import sys

import click

from hookviz.cli._compare_command import compare
from hookviz.cli._errors import SentenceGroup
from hookviz.cli._explain_command import explain
from hookviz.cli._model_commands import filters, layers, maps, models, reproduce
from hookviz.cli._monitor_command import monitor
from hookviz.cli._setup_commands import doctor, lab, weights
from hookviz.cli._survey_commands import survey, top
from hookviz.cli._what_if_commands import sweep, visualize
from hookviz.version import __version__

__all__ = ["cli", "main"]


@click.group(cls=SentenceGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hookviz")
def cli() -> None:
    """See the output of every layer of a PyTorch vision model for an image."""


for _command in (
    *(lab, models, layers, maps, filters, compare, explain, sweep, visualize, survey, top),
    *(monitor, reproduce, weights, doctor),
):
    cli.add_command(_command)


def main() -> None:
    """Runs the command line; the entry point of ``hookviz`` and ``python -m hookviz``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that lacks a character gets its escape, not an exception.
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="hookviz")
