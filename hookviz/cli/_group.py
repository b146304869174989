"""The group ``hookviz`` of commands whose errors are one sentence."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import click

from hookviz._text import fault_text
from hookviz.errors import HookvizError
from hookviz.version import __version__


class Failure(click.ClickException):
    """An error that the user can mend: one sentence, exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"hookviz: {self.format_message()}", err=True, file=file)


TASKS = (
    "Begin",
    "Look at a model",
    "Look at an image",
    "Ask why",
    "Many images, and training",
)
"""What the commands are for, in the order of ``hookviz --help``."""

INTERRUPTED = 130


class SentenceCommand(click.Command):
    """A command whose errors are sentences; ``--debug`` shows the traceback instead.

    Args:
        args: Of click's own command.
        task: What it is for: one of `TASKS`.
        kwargs: Likewise.
    """

    def __init__(self, *args: Any, task: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = task
        self.params.append(
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error.")
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what it raises becomes a sentence."""
        debug = ctx.params.pop("debug", False)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click ends quietly where the reader of a pipe has gone (`| head`)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)  # as click says it, which would end with 1, a "no"
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            if debug:
                raise
            raise Failure(self._sentence(error)) from error

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, HookvizError):
            return as_options(str(error), self)
        if isinstance(error, OSError):
            place = f" ({str(error.filename)!r})" if error.filename else ""
            return f"{error.strerror or error}{place}."
        return f"{fault_text(error)} (`--debug` shows where it happened)"


class SentenceGroup(click.Group):
    """A group of such commands. A wrong option or argument is one sentence as well."""

    command_class = SentenceCommand

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Reads the group's own options."""
        with _usage_as_sentence():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Reads a command's options and runs it."""
        with _usage_as_sentence():
            return super().invoke(ctx)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        formatter: click.HelpFormatter,
    ) -> None:
        """Lists the commands by what they are for."""
        room = formatter.width - 6 - max(map(len, self.commands))
        for task in TASKS:
            rows = [
                (name, command.get_short_help_str(room))
                for name, command in self.commands.items()
                if getattr(command, "task", None) == task
            ]
            with formatter.section(task):
                formatter.write_dl(rows)

    def format_epilog(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        formatter: click.HelpFormatter,
    ) -> None:
        """Says what all commands have in common."""
        with formatter.section("Exit codes"):
            formatter.write_dl(list(_EXIT_CODES.items()))
        with formatter.section("Completion by Tab, one line in your shell's own start file"):
            formatter.write_dl(list(_COMPLETION.items()))


_EXIT_CODES = {
    "0": "Done.",
    "1": "The answer is no: compare found a difference, reproduce another picture, doctor a fault.",
    "2": "Bad input, said in one sentence.",
    "3": "A survey went through, but the model failed on some of its shards.",
    f"{INTERRUPTED}": "Interrupted (Ctrl-C).",
}
_COMPLETION = {
    "bash": 'eval "$(_HOOKVIZ_COMPLETE=bash_source hookviz)"',
    "zsh": 'eval "$(_HOOKVIZ_COMPLETE=zsh_source hookviz)"',
    "fish": "_HOOKVIZ_COMPLETE=fish_source hookviz | source",
}


@click.group(
    cls=SentenceGroup,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="hookviz")
def cli() -> None:
    """See the output of every layer of a PyTorch vision model for an image.

    Results go to standard output, progress and faults to standard error.
    """


@contextlib.contextmanager
def _usage_as_sentence() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise  # click from 8.2 on shows its help that way
        path = error.ctx.command_path if error.ctx else "hookviz"
        said = " ".join(error.format_message().split())
        end = "" if said.endswith((".", "?", "!")) else "."
        raise Failure(f"{said}{end} Try '{path} --help'.") from error


def as_options(text: str, command: click.Command) -> str:
    """A sentence that advises an argument of Python's, with the option of the command instead.

    Examples:
        >>> command = click.Command("maps", params=[click.Option(["--weights"])])
        >>> as_options("Use weights='DEFAULT' or weights=None.", command)
        'Use --weights DEFAULT or --weights none.'
    """
    for option in command.params:
        flag = option.opts[-1]
        if isinstance(option, click.Option) and option.is_flag:
            text = re.sub(rf"\b{option.name}=True", flag, text)
        text = re.sub(rf"\b{option.name}=(?:'([^']*)'|(\w+))", rf"{flag} \1\2", text)
        text = text.replace(f"{flag} None", f"{flag} none")
    return text
