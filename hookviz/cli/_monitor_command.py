"""The command about a training: ``monitor``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hookviz.cli import _shared as shared
from hookviz.cli._group import cli


@cli.command(task="Many images, and training")
@click.argument("folder", type=shared.a_path)
@click.option("-l", "--layer", "layers", multiple=True, help="A watched layer; repeat it.")
@click.option(
    "-q", "--quantity", "quantities", multiple=True,
    help="Curves to draw: zeros, mean, gradient, update, loss, …; repeat it.",
)  # fmt: skip
@click.option(
    "-c", "--channel", "channels", type=int, multiple=True,
    help="Also this channel of the layers over the steps, as a strip; repeat it.",
)  # fmt: skip
@click.option(
    "-o",
    "--out",
    type=shared.a_path,
    help="Write curves and the newest pictures into this folder as PNG.",
)
@click.option("--step", type=int, help="Of the table and pictures; the newest if not given.")
def monitor(
    folder: str, layers: tuple[str, ...], quantities: tuple[str, ...], channels: tuple[int, ...],
    out: str | None, step: int | None,
) -> None:  # fmt: skip
    """Show the training that `hookviz.monitor` watches in FOLDER, also while it runs.

    Prints where it is, what went wrong and the newest numbers of the layers.
    """
    from hookviz.export import whole_file
    from hookviz.monitoring import QUANTITIES, open_monitor

    found = open_monitor(folder)
    chosen = list(layers) or None
    found.places(chosen)  # an unknown layer is refused before anything is printed
    click.echo(found.summary(step, chosen))
    if out is None:
        return
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    known = {name for name in QUANTITIES if found.has(name, chosen)}
    for quantity in quantities or [*found.scalars, *(q for q in QUANTITIES if q in known)]:
        figure = found.figure(chosen, quantity)
        file = target / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', quantity)}.png"
        with whole_file(file) as stream:
            figure.savefig(stream, format="png")
        click.echo(str(file), err=True)
    for picture in found.newest_pictures(step, chosen):
        file = target / picture.file
        with whole_file(file) as stream:
            stream.write(found.png_bytes(picture))
        click.echo(str(file), err=True)
        if picture.kind == "filters":
            continue
        over = found.over_time(picture.layer, call=picture.call, leaf=picture.leaf)
        for channel in channels:
            figure = over.strip(channel)
            call = f"_call{picture.call}" if found.calls(picture.layer) > 1 else ""
            plain = re.sub(r"[^A-Za-z0-9.-]+", "-", picture.layer + picture.leaf) or "model"
            file = target / f"{plain}{call}_channel{channel}.png"
            with whole_file(file) as stream:
                figure.savefig(stream, format="png")
            click.echo(str(file), err=True)
