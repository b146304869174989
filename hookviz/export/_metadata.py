"""What an exported PNG says about itself, in plain words.

In: the facts of a run, an activation, what was drawn. Out: texts by key, and back. Must not know:
how a PNG is laid out, how files are written.

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
style               of grids and contact sheets: ``light``, ``dark`` or matplotlib's own colours
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
kind                ``output``, ``input``, ``output_gradient`` or ``input_gradient``
leaf                path of the tensor inside a nested output; empty for a bare tensor
shape               of the whole tensor, ``1, 64, 224, 224``
dtype               of the tensor, ``float32``
sample              which image of the batch, from 0
(frame)             which frame of a volume, from 0
layout              how the axes were read, for example ``maps``
channels            the channels in the file, in their order: ``0-15, 42``
page                ``1 of 8``
order               how the channels are ordered: ``index``, ``mean``, ...
scale               the sentence about colours that the figure carries
vmin, vmax          values at the ends of the colour table; ``per channel`` where each has its own
(ranges)            JSON: the two values of each tile, where each has its own
cmap                name of matplotlib's colour table
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
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._facts import RunFacts, base_name, hidden_paths, utc_text
from hookviz.export._png import png_bytes_of, read_texts

__all__ = [
    "KINDS_OF_FILES",
    "UNTRAINED",
    "FileRecord",
    "Key",
    "activation_texts",
    "facts_in",
    "key_of",
    "number_text",
    "ranges_text",
    "read_png_facts",
    "record_of",
    "run_texts",
]

UNTRAINED = "UNTRAINED: random weights"
KINDS_OF_FILES = ("grid", "channel", "contact", "input")
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
        file: "grid", "channel", "contact" or "input".
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
        """The keys "file", "options" and "record"."""
        texts = {"file": self.file}
        if self.file != "input":
            texts["options"] = self.options
        return texts | {"record": self.text()}


# ASCII, so that every layer name comes back exactly, whatever characters it holds.
_in_ascii = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def number_text(value: float | None) -> str:
    """A value that reads back as the same number.

    Examples:
        >>> number_text(-344.0625), number_text(None), number_text(float("nan"))
        ('-344.0625', 'per channel', 'NaN')
    """
    if value is None:
        return "per channel"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(float(value))


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
    }


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
    return facts_in(*png_bytes_of(png))


def facts_in(data: bytes, name: str) -> dict[str, str]:
    """The same for bytes that were read already, with the name to use in messages."""
    texts = read_texts(data, name)
    if not texts.get("Software", "").startswith("hookviz ") or "record" not in texts:
        raise ExportError(
            f"{name} says nothing about how it was made: hookviz did not write it, or another "
            "program saved it again without its texts.",
            remedy="Use a PNG as hookviz exported it.",
        )
    return texts


def _is_key(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 5
        and all(type(v) is t for v, t in zip(value, (str, int, int, str, str), strict=True))
    )


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def record_of(texts: Mapping[str, str], name: str = "the picture") -> FileRecord:
    """Which activations a file shows, read from its texts.

    Args:
        texts: What :func:`read_png_facts` gave.
        name: What to call the file in messages.

    Raises:
        ExportError: The text "record" is not what hookviz writes.
    """
    try:
        record = json.loads(texts["record"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ExportError(f"The text 'record' of {name} is damaged: it is not JSON.") from error
    if not isinstance(record, dict):
        raise ExportError(f"The text 'record' of {name} is damaged: it is not a JSON object.")
    if record.get("schema") != SCHEMA:
        raise ExportError(
            f"{name} has a record of the form {record.get('schema')!r:.40}, and this version of "
            f"hookviz reads form {SCHEMA}.",
            remedy="Use the version that wrote it; the text 'hookviz_version' names it.",
        )
    keys: Sequence[Any] = record.get("activations") or ()
    file, page = record.get("file"), record.get("page")
    channel, factor = record.get("channel"), record.get("factor", 1)
    sound = (
        file in KINDS_OF_FILES
        and isinstance(keys, list | tuple)
        and all(map(_is_key, keys))
        and _is_count(page, 10**9)
        and (_is_count(channel, 10**9) if file == "channel" else channel is None)
        and _is_count(factor, 64)
        and factor >= 1
        and (len(keys) == 1 if file in {"grid", "channel"} else True)
    )
    if not sound:
        raise ExportError(f"The text 'record' of {name} is damaged: a value in it is not legal.")
    return FileRecord(
        file=str(file),
        keys=tuple((k[0], k[1], k[2], k[3], k[4]) for k in keys),
        options=texts.get("options", "{}"),
        page=int(page or 0),
        channel=channel,
        factor=int(factor),
    )
