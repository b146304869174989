"""``hookviz lab | weights | doctor``: the commands about this installation."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import sys
from pathlib import Path

import click

from hookviz._text import columns
from hookviz.cli import _shared as shared
from hookviz.cli._group import cli
from hookviz.errors import HookvizError

_NOTEBOOKS = ("hookviz", "hooks", "your_model", "explain", "survey", "live", "training")


@cli.command(task="Begin")
@click.argument("notebook", type=click.Choice(_NOTEBOOKS), default="hookviz")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port on 127.0.0.1; a free one if not given."
)
@click.option(
    "--no-browser", is_flag=True, help="Start the server only; open its address yourself."
)
def lab(notebook: str, port: int | None, no_browser: bool) -> None:
    """Open JupyterLab on a notebook that comes with hookviz.

    NOTEBOOK is hookviz (the app, the default), hooks (PyTorch's hooks side by side with hookviz),
    your_model (a module and a checkpoint of your own), explain (why a model answers as it does),
    survey (what channels look for in a data set), live (a camera, a video, an animation) or
    training (a network watched while it learns).
    It is copied into the current folder; one that is there already is kept.
    """
    import importlib.util
    import os

    from hookviz.bundled import bundled_file

    if importlib.util.find_spec("jupyterlab") is None:
        raise HookvizError(
            "JupyterLab is not installed beside hookviz.",
            remedy="Install it: pip install 'hookviz[lab]'.",
        )
    if port is not None and not _port_is_free(port):
        raise HookvizError(
            f"Port {port} on 127.0.0.1 is in use.", remedy="Choose another with --port."
        )
    copy = Path(f"{notebook}.ipynb")
    if copy.is_file():
        click.echo(f"Keeping the {copy} that is here.", err=True)
    else:
        source = bundled_file("notebooks", copy.name).read_bytes()
        try:
            with copy.open("xb") as file:
                file.write(source)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                with contextlib.suppress(OSError):
                    copy.unlink()
            raise HookvizError(
                f"The notebook {copy} cannot be written into this folder: {error.strerror}.",
                remedy="Start hookviz lab in a folder of your own.",
            ) from error
        click.echo(f"Copied the notebook to {copy}.", err=True)
    command = [
        *(sys.executable, "-m", "jupyter", "lab", "--ServerApp.ip=127.0.0.1"),
        # A notebook named alone is opened in a browser that starts here, but the address that is
        # printed for all others would lead to the launcher.
        f"--ServerApp.root_dir={Path.cwd()}",
        f"--LabApp.default_url=/lab/tree/{copy.name}",
    ]
    if port is not None:
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if no_browser:
        command.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # Jupyter refuses to run as root without this; containers have no other user. The server
        # listens on 127.0.0.1 alone and asks for its token.
        command.append("--allow-root")
    if sys.platform == "win32":
        import subprocess

        raise SystemExit(subprocess.call(command))  # noqa: S603 - our own interpreter, fixed words
    os.execv(command[0], command)  # noqa: S606 - our own interpreter, fixed words


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Without SO_REUSEADDR a port whose last connection closed a moment ago counts as in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@cli.command(task="Begin")
@click.option("--check", is_flag=True, help="Read every file and compare its hash with its name.")
@shared.as_json
def weights(check: bool, as_json: bool) -> None:
    """List the model weights that are on this machine.

    Keys of --json: folder, files (file, bytes, state, models).
    """
    from hookviz.models import cache_folder, cached_weights

    files = cached_weights(check=check)
    if as_json:
        listed = [
            {"file": f.path.name, "bytes": f.bytes, "state": f.state, "models": f.models}
            for f in files
        ]
        shared.say_json(folder=str(cache_folder()), files=listed)
        return
    click.echo(f"torch's cache: {cache_folder()}")
    if not files:
        click.echo("No weights there. VGG16's convolutions ship with hookviz and need no download.")
        return
    rows: list[tuple[str, ...]] = [("file", "MB", "state", "belongs to")]
    rows += [
        (f.path.name, f"{f.bytes / 1e6:,.1f}", f.state, ", ".join(f.models) or "unknown")
        for f in files
    ]
    click.echo(columns(rows))


@cli.command(task="Begin")
@shared.as_json
def doctor(as_json: bool) -> None:
    """Check the installation: versions, device, widget front end, caches, bundled weights.

    Exit code 1 where something is missing. Keys of --json: good, findings (what, good, found,
    remedy).
    """
    from hookviz.doctor import examine

    findings = examine()
    good = all(f.good for f in findings)
    if as_json:
        shared.say_json(good=good, findings=[dataclasses.asdict(f) for f in findings])
    else:
        width = max(len(f.what) for f in findings)
        for f in findings:
            click.echo(f"{'ok ' if f.good else 'NO '} {f.what.ljust(width)}  {f.found}")
            if f.remedy:
                click.echo(f"{'':4}{'':{width}}  → {f.remedy}")
    if not good:
        raise SystemExit(1)
