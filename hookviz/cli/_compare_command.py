"""The command ``compare``: two models, images or exports side by side, with an exit code for CI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookviz.cli import _shared as shared
from hookviz.cli._group import cli
from hookviz.errors import HookvizError

if TYPE_CHECKING:
    from hookviz.models import LoadedModel

_DTYPES = ("float64", "float32", "float16", "bfloat16")


def _twice(name: str, help_: str, **options: Any) -> Callable[[shared.Command], shared.Command]:
    """An option that is given once for both sides, or twice: for A, then for B."""
    return click.option(name, multiple=True, help=f"{help_} Twice: for A, then for B.", **options)


@cli.command(task="Look at an image")
@click.argument("a", type=shared.a_path)
@click.argument("b", type=shared.a_path)
@_twice("--image", "A file, or a sample's name.", type=shared.a_path)
@_twice("--weights", "As for `hookviz maps`.")
@_twice("--device", "auto, cuda, cuda:N, mps or cpu.")
@_twice("--dtype", "Run the model in this dtype.", type=click.Choice(_DTYPES))
@click.option(
    "-l",
    "--layer",
    "layers",
    multiple=True,
    help="A layer's name or a glob; repeat it. All if not given.",
)
@click.option(
    "--match",
    type=click.Choice(["name", "order"]),
    help="How layers find each other; by name if not given and most names are shared.",
)
@click.option(
    "--tol",
    type=click.FloatRange(min=0),
    help="Largest difference allowed, as a share of a layer's largest magnitude; what rounding "
    "explains if not given.",
)
@click.option(
    "-o",
    "--out",
    type=shared.a_path,
    help="Also write figures, table and manifest into a new folder here.",
)
def compare(
    a: str,
    b: str,
    layers: tuple[str, ...],
    match: str | None,
    tol: float | None,
    out: str | None,
    **given: tuple[str, ...],
) -> None:
    """Compare two runs layer by layer (exit code 1 where they differ beyond the tolerance).

    A and B are each a model (a name that `hookviz maps --model` takes) or the folder of an export
    with raw values. Models run on --image, one after the other.
    """
    from hookviz.comparison import compare as compared

    for_a, for_b = _for_both(given)
    said: set[str] = set()
    one, other = _side(a, said, **for_a), _side(b, said, **for_b)
    selected: Any = list(layers) or "*"
    with shared.bar(unit="tensor") as shown:
        found = compared(one, other, selected, match=match, progress=lambda _: shown.update(1))
    click.echo(found.table(tol))
    click.echo(f"\n{found.summary(tol)}", err=True)
    if out is not None:
        shared.say(found.export(out))
    if found.first_difference(tol) is not None:
        raise SystemExit(1)


def _for_both(given: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str | None], ...]:
    """The options of A and those of B."""
    for name, values in given.items():
        if len(values) > 2:
            raise HookvizError(f"--{name} was given {len(values)} times; legal are once and twice.")
    return tuple(
        {name: values[at] if values else None for name, values in given.items()} for at in (0, -1)
    )


def _side(
    source: str,
    said: set[str],
    image: str | None,
    weights: str | None,
    device: str | None,
    dtype: str | None,
) -> Any:
    """What `hookviz.compare` takes for an argument of the command."""
    if Path(source).is_dir():
        return Path(source)
    if image is None:
        raise HookvizError(
            f"No image was named for the model {source!r}.", remedy="Name one with --image."
        )

    def model() -> LoadedModel:
        import torch

        loaded = shared.load(source, weights or "auto", device or "auto", said)
        return loaded if dtype is None else loaded.to(loaded.device, getattr(torch, dtype))

    return model, shared.image_source(image)
