"""The commands about data sets: ``survey`` and ``top``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookviz._text import columns
from hookviz.cli import _shared as shared
from hookviz.cli._group import cli
from hookviz.errors import HookvizError

if TYPE_CHECKING:
    from hookviz.surveys import Survey, SurveyProgress

_SHOWN = 5  # failures


@cli.command(task="Many images, and training")
@click.argument("data", type=shared.a_path)
@click.option(
    "--model",
    default="vgg16",
    help="A torchvision name, timm:NAME, a checkpoint, or package.module:function that gives one.",
)
@shared.layer_names
@click.option("-o", "--out", type=shared.a_path, default="survey", help="The survey's folder.")
@click.option(
    "--keep",
    type=click.Choice(["none", "pooled", "whole"]),
    default="none",
    help="Beside numbers and strongest images: the mean over the places, or the tensors.",
)
@click.option("--dtype", type=click.Choice(["float16", "float32"]), help="Of what is kept.")
@click.option(
    "--store",
    type=click.Choice(["safetensors", "zarr"]),
    default="safetensors",
    help="Of what is kept; zarr is smaller for maps after a ReLU.",
)
@click.option("--top", type=int, default=16, help="Images kept per channel.")
@click.option("--batch", type=int, default=32, help="Images in a forward.")
@click.option("--shard", type=int, default=256, help="Images in a file.")
@click.option("--part", help="3/16: the third of sixteen parts; others make the others.")
@click.option("--workers", type=int, help="Processes that read images; 2 if not given.")
@click.option(
    "--bad-limit", type=float, default=0.05, help="Largest share of images that cannot be read."
)
@click.option(
    "--engine",
    type=click.Choice(["here", "ray"]),
    default="here",
    help="ray: an actor a core or GPU of a cluster makes shards.",
)
@click.option(
    "--address",
    help="Of the Ray cluster, or auto. local starts one here, whose processes accept connections "
    "from other machines.",
)
@click.option("--column", help="Of parquet files: the column of images.")
@click.option("--extend", is_flag=True, help="Add images that are new in the data.")
@shared.device
@click.option("--weights", default="auto", help="As for `hookviz maps`.")
def survey(
    data: str, model: str, layers: tuple[str, ...], weights: str, device: str, **options: Any
) -> None:
    """Run a model over DATA: statistics and the strongest images of every channel.

    DATA is a folder of images, a text file of paths, a .tar or .parquet file, a folder of these, or
    a pattern in quotes, such as "train-*.tar". The same line again goes on where the last
    one ended, however that was. Exit code 3: the model failed on some shards; the others are kept.
    """
    from hookviz.surveys import names_function
    from hookviz.surveys import survey as surveyed

    names = shared.selected(layers, model)
    # A function of the user's is called where the survey runs, on each machine of a cluster.
    by_function = names_function(model)
    if by_function:
        sys.path.insert(0, str(Path.cwd()))  # where one's own module lies, as python -m has it
    loaded: Any = model if by_function else shared.load(model, weights, device)
    with shared.bar(desc=model, unit="image") as shown:

        def progress(now: SurveyProgress) -> None:
            shown.total = now.images or None
            shown.set_postfix_str(f"{now.bad} bad" if now.bad else "")
            shown.update(now.images_done - shown.n)

        found = surveyed(loaded, data, names, progress=progress, **options)
    for note in found.notes:
        click.echo(note, err=True)
    click.echo(repr(found)[1:-1], err=True)
    failed = _say_failures(found)
    click.echo(str(found.folder))
    if failed:
        raise SystemExit(3)


def _say_failures(found: Survey) -> bool:
    """What could not be surveyed; whether shards are among it."""
    bad = [one for one in found.failures if one.image is not None]
    shards = [one for one in found.failures if one.image is None]
    for fault, ones in (("images could not be read", bad), ("shards could not be made", shards)):
        if ones:
            click.echo(f"{len(ones)} {fault}:", err=True)
            for one in ones[:_SHOWN]:
                click.echo(f"  {one.name}: {one.reason}", err=True)
            if len(ones) > _SHOWN:
                click.echo(f"  and {len(ones) - _SHOWN} more", err=True)
    return bool(shards)


@cli.command(task="Many images, and training")
@click.argument("folder", type=shared.a_path)
@click.option("-l", "--layer", "layer", required=True, help="A layer of the survey.")
@click.option(
    "-c", "--channel", "channels", type=int, multiple=True,
    help="A channel; repeat it. The eight of the largest maximum if not given.",
)  # fmt: skip
@click.option("--count", type=int, default=9, help="Images of each channel.")
@click.option("-o", "--out", type=shared.a_path, help="Write the figure into this folder as PNG.")
def top(folder: str, layer: str, channels: tuple[int, ...], count: int, out: str | None) -> None:
    """List the strongest images of channels in the survey in FOLDER, and draw them."""
    from hookviz.export import whole_file
    from hookviz.surveys import open_survey

    found = open_survey(folder)
    if count < 1:
        raise HookvizError(f"--count is {count}; legal is a number from 1.")
    chosen = list(channels) or found.strongest_channels(layer)
    rows: list[tuple[str, ...]] = [("channel", "rank", "value", "place", "image", "label")]
    for channel in chosen:
        for hit in found.top(layer, channel, count):
            place = ", ".join(map(str, hit.place))
            rows.append(
                (str(channel), str(hit.rank), f"{hit.value:.6g}", place, hit.name, hit.label)
            )
    click.echo(columns(rows))
    if out is not None:
        plain = re.sub(r"[^\w.-]+", "-", layer) or "model"
        numbers = "-".join(map(str, chosen[:8]))
        target = Path(out) / f"{plain}_{numbers}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        figure = found.figure(layer, chosen, count=count)
        with whole_file(target) as file:
            figure.savefig(file, format="png")
        click.echo(str(target), err=True)
