"""What several commands have in common: options, loading a model, a bar, the last lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hookviz._text import fault_text
from hookviz.cli._group import as_options
from hookviz.errors import HookvizError

if TYPE_CHECKING:
    from hookviz.export import ExportResult
    from hookviz.images import Picture
    from hookviz.models import LoadedModel
    from hookviz.run import Run

Command = Callable[..., Any]

model_name = click.option(
    "--model", default="vgg16", help="A torchvision name, timm:NAME or a checkpoint."
)
layer_names = click.option(
    "-l", "--layer", "layers", multiple=True, help="A layer's name or a glob; repeat it."
)
# Only so that a shell completes it; what is wrong with a file is said by whoever reads it.
a_path = click.Path(readable=False)
out_folder = click.option(
    "-o",
    "--out",
    type=a_path,
    default="hookviz_exports",
    help="The export's new folder is made here.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; its keys stay as they are."
)
at_least_one = click.IntRange(min=1)
cmap = click.option("--cmap", default="auto", help="A matplotlib colormap.")
_weights = click.option(
    "--weights",
    default="auto",
    help="auto (torch's cache, else bundled, else download), DEFAULT, a name of the model's "
    "weights, a file, or none (untrained).",
)
device = click.option("--device", default="auto", help="auto, cuda, cuda:N, mps or cpu.")


def model_options(command: Command) -> Command:
    """--weights and --device, the same for every command that loads a model."""
    return _weights(device(command))


def load(model: str, weights: str, device: str, said: set[str] | None = None) -> LoadedModel:
    """The model; what the user should know of its weights goes to stderr, once.

    Args:
        model: A name or a file.
        weights: As the option --weights says.
        device: As the option --device says.
        said: What was said before; takes in what is said now.
    """
    from hookviz.models import load_model

    loaded = load_model(model, weights=weights, device=device)
    said = set() if said is None else said
    for text in (loaded.report.table() if loaded.report else "", with_options(loaded.note)):
        if text and text not in said:
            click.echo(text, err=True)
            said.add(text)
    return loaded


def with_options(text: str) -> str:
    """A sentence about a model with the command's options in place of Python's arguments."""
    return as_options(text, click.get_current_context().command)


def image_source(image: str) -> Any:
    """A path, or a bundled sample where no such file exists."""
    from hookviz.images import sample_image, sample_images

    names = {name for sample in sample_images() for name in (sample, Path(sample).stem)}
    return sample_image(image) if image in names and not Path(image).exists() else Path(image)


def picture_of(image: str) -> Picture:
    """The image of that file, or the sample of that name."""
    from hookviz.images import read_image

    return read_image(image_source(image))


def run_once(model: LoadedModel, image: Picture, layers: list[str], **options: Any) -> Run:
    """One forward; what the model itself raises is a sentence that names the layer."""
    from hookviz.run import failing_layer, run_model

    try:
        return run_model(model, image, layers, **options)
    except HookvizError:
        raise
    except Exception as error:
        layer = failing_layer(model.module, error)
        place = "" if layer is None else f" in layer '{layer}'"
        raise HookvizError(
            f"The forward of {model.name} failed{place}: {fault_text(error)}"
        ) from error


def selected(layers: tuple[str, ...], model: str) -> list[str]:
    """The layers named on the command line; none is an error."""
    if not layers:
        raise HookvizError(
            "No layer was named.",
            remedy=f"Name at least one with -l; `hookviz layers {model}` lists them.",
        )
    return list(layers)


def say_json(**found: Any) -> None:
    """Prints an object of JSON, numbers that JSON lacks as null, any text as ASCII."""
    click.echo(json.dumps(found, indent=2, allow_nan=False))


def bar(**settings: Any) -> Any:
    """A tqdm bar that a terminal shows while something is under way, and nothing else does."""
    from tqdm import tqdm

    return tqdm(leave=False, disable=None, **settings)


@contextmanager
def counting(desc: str, unit: str) -> Iterator[Callable[[int, int, object], None]]:
    """A bar; gives what is to be called with steps done, steps in all and what was done."""
    with bar(desc=desc, unit=unit) as shown:

        def progress(done: int, total: int, _what: object) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield progress


def say(result: ExportResult) -> None:
    """What an export left out and where it is."""
    for note in result.notes:
        click.echo(note, err=True)
    click.echo(f"{len(result.files)} files and manifest.json in", err=True)
    click.echo(str(result.folder))
