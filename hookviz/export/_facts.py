"""What an exported file says about itself: the facts of a run as texts by key, and back.

Grids and single channels carry these keys, contact sheets and inputs those that concern the run; a
key in parentheses is there only where it has something to say. Numbers have a point, lists are
separated by a comma and a space, times are UTC.

==================  ===============================================================================
key                 text
==================  ===============================================================================
Software            ``hookviz 0.1.0``
hookviz_version     ``0.1.0``
torch_version       ``2.14.1``
matplotlib_version  of grids and contact sheets, whose letters it sets
style               of grids and contact sheets: ``light``, ``dark`` or matplotlib's own colors
file                what the file is: ``grid``, ``channel``, ``contact`` or ``input``
model               the model's name
weights             where its weights come from
weights_hash        hexadecimal digest over the weights
trained             ``yes``, or ``UNTRAINED: random weights``
layer               dotted name of the layer; ``(model)`` for the model itself
type                class name of the layer
run                 which forward of the capture, from 1
call                ``2 of 3``
execution           position among the calls of the run, from 1: the number that begins the name
kind                ``output``, ``input``, ``output_gradient``, ``attribution``, ...
(method, target,    of attributions: the method, the targets and their scores in words, and JSON
score, explanation) with what computes them again
leaf                path of the tensor inside a nested output; empty for a bare tensor
shape               of the whole tensor, ``1, 64, 224, 224``
dtype               of the tensor, ``float32``
sample              which image of the batch, from 0
(frame)             which frame of a volume, from 0
layout              how the axes were read, for example ``maps``
channels            the channels in the file, in their order: ``0-15, 42``
page                ``1 of 8``
order               how the channels are ordered: ``index``, ``mean``, ...
scale               the sentence about colors that the figure carries
vmin, vmax          values at the ends of the color table; ``per channel`` where each has its own
(ranges)            JSON: the two values of each tile, where each has its own
cmap                name of matplotlib's color table
(edits)             what was changed while the model ran: ``features.28: zero channel 7; …``
(edits_record)      JSON: the same, for doing it again
(nan, posinf,       how many of the values drawn are NaN, +Inf and -Inf
neginf)
image               base name of the image
image_sha256        SHA-256 of the image's bytes
preprocessing       what was done to the image
device              where the model ran
model_dtype         the model's dtype
time                when the run began, ``2026-11-04T14:22:33Z``
options             JSON: every drawing option, for drawing it again
record              JSON: which activations the file shows, exactly (the texts above are for people)
==================  ===============================================================================

No text holds an absolute path. PNGs carry no EXIF.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._png import open_png
from hookviz.version import __version__

if TYPE_CHECKING:
    from hookviz.images import NetworkInput, Picture
    from hookviz.models import LoadedModel


def base_name(path: str) -> str:
    r"""The last part of a path of any system, so that no file tells where things lie.

    Examples:
        >>> base_name("/home/me/dog.jpg"), base_name("C:\\me\\dog.jpg"), base_name("dog")
        ('dog.jpg', 'dog.jpg', 'dog')
    """
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else ""


# At least two separators, so that "mean/std" and URLs stay.
_PATH_IN_TEXT = re.compile(r"(?<![\w.:/\\])(?:~|[A-Za-z]:)?[/\\][^\s'\"]*[/\\]([^\s'\"/\\]+)")


def hidden_paths(text: str) -> str:
    """``text`` in which each absolute path is its last part alone.

    Examples:
        >>> hidden_paths("file /home/me/my.pth, strict")
        'file my.pth, strict'
    """
    return _PATH_IN_TEXT.sub(r"\1", text)


def utc_text(moment: datetime) -> str:
    """A time as the files state it: ISO 8601, UTC, whole seconds.

    A time without a zone is taken as UTC.

    Examples:
        >>> utc_text(datetime(2026, 11, 4, 14, 22, 33, 999, tzinfo=UTC))
        '2026-11-04T14:22:33Z'
    """
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What is true of every activation of one run.

    Attributes:
        model: The model's name, for example "vgg16".
        weights: Where its weights come from, in words.
        weights_hash: Hexadecimal digest over the weights; "" where it is not known.
        trained: False where the weights are random; every file then says UNTRAINED.
        image_name: Base name of the image.
        image_sha256: SHA-256 of the image's bytes (of its pixels where it had none).
        preprocessing: What was done to the image, in words.
        device: For example "cpu" or "cuda:0".
        dtype: The model's dtype, for example "float32".
        torch_version: Version of torch.
        hookviz_version: Version of hookviz.
        started: When the forward began; UTC.
        input_image: What the network saw, as RGB; None where there was no image.
        categories: Class names of the model's last layer; () where it has none.
        missing: Layers that were asked for and were not captured, each with the reason.
        edits: What was changed while the model ran, in words; "" for nothing.
        edits_record: The same as JSON.
    """

    model: str = ""
    weights: str = ""
    weights_hash: str = ""
    trained: bool = True
    image_name: str = ""
    image_sha256: str = ""
    preprocessing: str = ""
    device: str = ""
    dtype: str = ""
    torch_version: str = torch.__version__
    hookviz_version: str = __version__
    started: datetime = field(default_factory=partial(datetime.now, UTC))
    input_image: Image.Image | None = None
    categories: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    edits: str = ""
    edits_record: str = ""

    @property
    def input_size(self) -> tuple[int, int] | None:
        """(height, width) of what the network saw; None where there was no image."""
        if self.input_image is None:
            return None
        width, height = self.input_image.size
        return height, width

    @classmethod
    def of_run(
        cls,
        *,
        model: LoadedModel,
        image: Picture | None,
        network_input: NetworkInput | None,
        started: datetime,
        missing: Mapping[str, str] | None = None,
        edits: str = "",
        edits_record: str = "",
    ) -> RunFacts:
        """The facts of one run, taken from its parts.

        Args:
            model: The model. Its weights are hashed here, once.
            image: The image, or None.
            network_input: What the network received, or None.
            started: When the forward began.
            missing: Layers without an activation, each with the reason.
            edits: See the attribute.
            edits_record: See the attribute.

        Returns:
            The facts, with the input as an image.
        """
        received = None if network_input is None else network_input.tensor
        return cls(
            model=model.name,
            weights=model.weights,
            weights_hash=model.weights_hash,
            trained=model.trained,
            image_name="" if image is None else image.name,
            image_sha256="" if image is None else image.sha256,
            preprocessing="" if network_input is None else network_input.description,
            device=str(model.device if received is None else received.device),
            dtype=str(model.dtype).removeprefix("torch."),
            started=started,
            input_image=None if network_input is None else network_input.picture(),
            categories=tuple(model.categories),
            missing=missing or {},
            edits=edits,
            edits_record=edits_record,
        )


UNTRAINED = "UNTRAINED: random weights"
SCHEMA = 1

Key = tuple[str, int, int, str, str]
"""What tells one activation from another: layer, run, call, kind, leaf."""


def key_of(activation: Activation) -> Key:
    """What tells this activation from the others of a capture."""
    return (activation.layer, activation.run, activation.call, activation.kind, activation.leaf)


@dataclass(frozen=True)
class FileRecord:
    """Which activations a file shows: what is needed to draw it again.

    Attributes:
        file: Which kind of file: the ``record`` of an export part, "grid" for example.
        keys: The activations that are in it.
        options: The drawing options as JSON (see ``GridOptions.from_json``).
        page: Page of a grid or contact sheet, from 0.
        channel: The channel of a single-channel file.
        factor: How many pixels wide and high an activation is in a single-channel file.
    """

    file: str
    keys: tuple[Key, ...] = ()
    options: str = "{}"
    page: int = 0
    channel: int | None = None
    factor: int = 1

    def text(self) -> str:
        """The key "record": JSON."""
        record: dict[str, Any] = {"schema": SCHEMA, "file": self.file, "page": self.page}
        if self.channel is not None:
            record |= {"channel": self.channel, "factor": self.factor}
        record["activations"] = [list(key) for key in self.keys]
        return _in_ascii(record)

    def texts(self) -> dict[str, str]:
        """The keys "file", "options" (where there are any) and "record"."""
        texts = {"file": self.file, "options": self.options, "record": self.text()}
        return {key: text for key, text in texts.items() if text}


# ASCII, so that every layer name comes back exactly, whatever characters it holds.
_in_ascii = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def number_text(value: float | None) -> str:
    """A value that reads back as the same number.

    Examples:
        >>> number_text(-344.0625), number_text(None), number_text(float("nan"))
        ('-344.0625', 'per channel', 'NaN')
    """
    return "per channel" if value is None else json.dumps(float(value))


def ranges_text(numbers: Iterable[int]) -> str:
    """Numbers in their order, with runs of neighbours drawn together.

    Examples:
        >>> ranges_text([0, 1, 2, 3, 42, 7, 8])
        '0-3, 42, 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def odd_texts(*, nan: int, posinf: int, neginf: int) -> dict[str, str]:
    """How many values are not finite; nothing where all are."""
    counts = {"nan": nan, "posinf": posinf, "neginf": neginf}
    return {key: str(int(count)) for key, count in counts.items() if count}


def run_texts(facts: RunFacts) -> dict[str, str]:
    """What every file of a run says."""
    texts = {
        "Software": f"hookviz {facts.hookviz_version}",
        "hookviz_version": facts.hookviz_version,
        "torch_version": facts.torch_version,
        "model": facts.model,
        "weights": hidden_paths(facts.weights),
        "weights_hash": facts.weights_hash,
        "trained": "yes" if facts.trained else UNTRAINED,
        "image": base_name(facts.image_name),
        "image_sha256": facts.image_sha256,
        "preprocessing": hidden_paths(facts.preprocessing),
        "device": facts.device,
        "model_dtype": facts.dtype,
        "edits": facts.edits,
        "edits_record": facts.edits_record,
        "time": utc_text(facts.started),
    }
    return {key: text for key, text in texts.items() if text}


def activation_texts(activation: Activation) -> dict[str, str]:
    """What every file of one activation says."""
    return {
        "layer": activation.layer or "(model)",
        "type": activation.module_type,
        "run": str(activation.run),
        "call": f"{activation.call} of {activation.calls}",
        "execution": str(activation.order),
        "kind": activation.kind,
        "leaf": activation.leaf,
        "shape": ", ".join(map(str, activation.shape)),
        "dtype": str(activation.tensor.dtype).removeprefix("torch."),
    } | activation.texts


def read_png_facts(png: str | Path | bytes) -> dict[str, str]:
    """What a PNG of an export says about itself.

    Args:
        png: The file, or its bytes. No pixel of it is decoded.

    Returns:
        Text by key; the keys are those of the table in this module's docstring.

    Raises:
        ExportError: The file cannot be read, is no PNG, is cut short or damaged, or was not
            written by hookviz.
    """
    return facts_in(*open_png(png))


def facts_in(image: PngImageFile, name: str) -> dict[str, str]:
    """The same for a PNG that is open, with the name to use in messages.

    The texts are those that stand before the pixels; of equal keys the last counts.
    """
    texts = {str(key): str(text) for key, text in image.info.items() if isinstance(text, str)}
    if not texts.get("Software", "").startswith("hookviz ") or "record" not in texts:
        raise ExportError(
            f"{name} says nothing about how it was made: hookviz did not write it, or another "
            "program saved it again without its texts.",
            remedy="Use a PNG as hookviz exported it.",
        )
    return texts


def _is_count(value: Any, least: int = 0, most: int = 10**9) -> bool:
    return type(value) is int and least <= value <= most


def record_of(texts: Mapping[str, str], name: str = "the file") -> FileRecord:
    """Which activations a file shows, read from its texts.

    Args:
        texts: What `read_png_facts` gave.
        name: What to call the file in messages.

    Raises:
        ExportError: The text "record" is not what hookviz writes.
    """
    damaged = f"The text 'record' of {name} is damaged"
    try:
        record = json.loads(texts["record"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ExportError(f"{damaged}: it is not JSON.") from error
    if not isinstance(record, dict):
        raise ExportError(f"{damaged}: it is not a JSON object.")
    if record.get("schema") != SCHEMA:
        raise ExportError(
            f"{name} has a record of the form {record.get('schema')!r:.40}, and this version of "
            f"hookviz reads form {SCHEMA}.",
            remedy="Use the version that wrote it; the text 'hookviz_version' names it.",
        )
    match {"channel": None, "factor": 1, **record}:
        case {
            "file": str(file),
            "page": page,
            "channel": channel,
            "factor": factor,
            "activations": [*keys],
        } if (
            all(isinstance(k, list) and [*map(type, k)] == [str, int, int, str, str] for k in keys)
            and _is_count(page)
            and (channel is None or _is_count(channel))
            and _is_count(factor, 1, 64)
        ):
            options = texts.get("options", "{}")
            return FileRecord(file, tuple(map(tuple, keys)), options, page, channel, factor)
    raise ExportError(f"{damaged}: a value in it is not legal.")
