"""The commands ``sweep`` and ``visualize``: what a target hangs on, what a channel looks for."""

from __future__ import annotations

from pathlib import Path

import click

from hookviz.cli._errors import SentenceCommand
from hookviz.cli._model_commands import image_source, load, model_options, say
from hookviz.errors import HookvizError

_model = click.option(
    "--model",
    default="vgg16",
    show_default=True,
    help="A torchvision name, timm:NAME or a checkpoint.",
)


@click.command(cls=SentenceCommand)
@click.argument("image")
@_model
@click.option("-l", "--layer", required=True, help="The layer's name.")
@click.option(
    "--target",
    help="What the effect is on: a class (number or name), 'channel 31 of features.28', 'box 0'. "
    "The likeliest class if not given.",
)
@click.option("--by", type=click.Choice(["zero", "mean"]), default="zero", show_default=True,
              help="What a channel is replaced by.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True,
              help="How many channels are listed.")  # fmt: skip
@click.option("-o", "--csv", "csv_file", help="Also write all channels into this new CSV file.")
@model_options
def sweep(
    image: str,
    model: str,
    layer: str,
    target: str | None,
    by: str,
    top: int,
    csv_file: str | None,
    weights: str,
    device: str,
) -> None:  # fmt: skip
    """Rank the channels of a layer by their effect on what a model answers to IMAGE.

    IMAGE is a file or the name of a bundled sample (chelsea.png, coffee.png, astronaut.png).
    """
    from tqdm import tqdm

    from hookviz.explanation import sweep as swept
    from hookviz.images import read_image

    if csv_file is not None and Path(csv_file).exists():
        raise HookvizError(f"The file {csv_file!r} exists already; name a new one.")
    picture = read_image(image_source(image))
    loaded = load(model, weights, device)
    with tqdm(desc=loaded.name, unit="channel", leave=False, disable=None) as bar:

        def progress(done: int, total: int, _seconds: float) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = swept(
            loaded,
            picture,
            layer,
            target=target,
            by="mean" if by == "mean" else "zero",
            progress=progress,
        )
    click.echo(f"{found.target}: score {found.before:.6g}", err=True)
    click.echo(found.table(top))
    if csv_file is not None:
        with Path(csv_file).open("x", encoding="utf-8", newline="") as file:
            file.write(found.to_csv())


@click.command(cls=SentenceCommand)
@_model
@click.option("-l", "--layer", help="The layer's name; the model's classes if not given.")
@click.option(
    "-c", "--channel", required=True, help="A channel's number, or a class by number or name."
)
@click.option("--place", nargs=2, type=click.IntRange(min=0), metavar="ROW COLUMN",
              help="The neuron there; the mean over all places if not given.")  # fmt: skip
@click.option("--size", type=click.IntRange(min=8), help="Pixels of a side.")
@click.option("--steps", type=click.IntRange(min=1), default=128, show_default=True,
              help="How many steps are made.")  # fmt: skip
@click.option("--decay", type=click.FloatRange(0, 4), default=1.0, show_default=True,
              help="1 as in photos, 1.5 larger and smoother forms.")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True,
              help="How many different pictures are made.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of all random numbers.")  # fmt: skip
@click.option("-o", "--out", default="hookviz_exports", show_default=True,
              help="The export's new folder is made here.")  # fmt: skip
@model_options
def visualize(
    model: str,
    layer: str | None,
    channel: str,
    place: tuple[int, int] | None,
    size: int | None,
    steps: int,
    decay: float,
    count: int,
    seed: int,
    out: str,
    weights: str,
    device: str,
) -> None:  # fmt: skip
    """Write a picture to which a channel of a layer answers as strongly as it can."""
    from tqdm import tqdm

    from hookviz.explanation import feature_visualization

    loaded = load(model, weights, device)
    with tqdm(total=steps, desc=loaded.name, unit="step", leave=False, disable=None) as bar:

        def progress(_step: int, value: float, _picture: object) -> None:
            bar.set_postfix(value=f"{value:.4g}")
            bar.update()

        found = feature_visualization(
            loaded,
            layer,
            int(channel) if channel.isdecimal() else channel,
            place=place,
            size=size,
            steps=steps,
            decay=decay,
            count=count,
            seed=seed,
            progress=progress,
        )
    for clean, robust in zip(found.activations, found.robust, strict=True):
        click.echo(
            f"{found.objective}: {clean:.6g}, under fresh transformations {robust:.6g}", err=True
        )
    say(found.export(out))
