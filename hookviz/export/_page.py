"""The part that is one HTML page: the maps of all layers with their values, to open anywhere.

The file needs nothing beside it: no server, no network, no other file. Its template lies in
``page/``. What is stored of a layer:

- *Values, not colors*: 16 bits each. A value is ``base + (code − zero) · step``, with one step for
  the layer and zero stored exactly; the codes above 65,532 are −Inf, +Inf and NaN. The page paints
  the maps from these codes by the color table of the figure, one table for each theme.
- *Within the size*: a page has about 8 MB at most, or 134 kB a layer where there are more than 54.
  A layer that needs more than its share is reduced by a whole factor, to not less than 32 rows or
  columns, then to fewer channels, the grid's page first. The page says either.
- *Figures*: what has no maps (vectors, statistics) is shown as its figure, once for each theme.

No text from outside becomes markup: all of it is JSON in which no tag can begin, and the script
sets it as text. A Content-Security-Policy admits this script and this style by their hashes and
nothing else: no request can leave the page.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import to_hex
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hookviz._text import shape_text
from hookviz.errors import RenderError
from hookviz.export._facts import RunFacts, run_texts
from hookviz.export._figures import draw_activation, fit
from hookviz.export._part import Export, ExportPart, Item, Task
from hookviz.render import (
    FigureFacts,
    GridOptions,
    Subject,
    choose_cmap,
    color_table,
    dead_sentence,
    legend_of,
    page_sentence,
    palette,
    value,
)

Codes = NDArray[np.uint16]

_STEPS = 65_531  # between the smallest and the largest value; one more where zero lies between
_NEGINF, _POSINF, _NAN = 65_533, 65_534, 65_535
# Two bytes a value, four letters for three bytes: 7.2 MB at most.
_VALUES = 2_700_000
_VALUES_OF_A_LAYER = 50_000
_SMALLEST = 32  # rows or columns
_PHOTO, _FIGURE = 336, 1200  # pixels
# What else is in the page, at most: template, photo and facts; facts of a layer, of a map; figures.
_BYTES, _BYTES_OF_A_LAYER, _BYTES_OF_A_MAP, _BYTES_OF_A_FIGURE = 520_000, 12_000, 100, 400_000
_TEMPLATE = Path(__file__).parent / "page"
_THEMES = ("light", "dark")


@dataclass(frozen=True, eq=False)
class Quantised:
    """Values in 16 bits.

    Attributes:
        codes: Of the values' shape.
        base: A value is ``base + (code − zero) · step``, in the values' own units.
        zero: The code of ``base``.
        step: Between two codes; 0 where all finite values are equal.
        low: The smallest finite value; 0 where there is none.
        high: The largest.
    """

    codes: Codes
    base: float
    zero: int
    step: float
    low: float
    high: float


def quantised(values: NDArray[np.float64], *, whole: bool = False) -> Quantised:
    """Values in 16 bits, each within half a step; zero, NaN and the infinities exactly.

    Args:
        values: Of any shape.
        whole: They are whole numbers: the step is one, so that they are exact where they span less
            than 65,532.

    Returns:
        The codes and what they stand for.
    """
    finite = np.isfinite(values)
    codes = np.select(
        [np.isnan(values), values == np.inf, values == -np.inf], [_NAN, _POSINF, _NEGINF]
    ).astype(np.uint16)
    if not finite.any():
        return Quantised(codes, 0.0, 0, 0.0, 0.0, 0.0)
    low, high = float(values[finite].min()), float(values[finite].max())
    if low == high:
        return Quantised(codes, low, 0, 0.0, low, high)
    step = max(high / _STEPS - low / _STEPS, float(np.finfo(np.float64).tiny))
    if whole:
        step = float(np.ceil(step))
    around = low <= 0 <= high
    base, zero = (0.0, int(np.ceil(-low / step))) if around else (low, 0)
    codes[finite] = np.rint((values[finite] - base) / step) + zero
    return Quantised(codes, base, zero, step, low, high)


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer as planned.

    Attributes:
        item: The activation.
        channels: How many are stored; 0 where its figure is.
        factor: By which its rows and columns are reduced.
    """

    item: Item
    channels: int = 0
    factor: int = 1

    @property
    def values(self) -> int:
        """How many values are stored."""
        return self.channels * _values_of_map(self.item, self.factor)

    @property
    def most(self) -> int:
        """How many bytes of the page it takes at most."""
        texts = _BYTES_OF_A_LAYER + 30 * len(self.item.activation.label)
        if not self.channels:
            return texts + _BYTES_OF_A_FIGURE
        packed = 2 * self.values * 1.001 + 100
        return texts + int(packed * 4 / 3) + self.channels * _BYTES_OF_A_MAP


def _values_of_map(item: Item, factor: int) -> int:
    """How many values a map has that is reduced by a factor."""
    *planes, height, width = (item.shape or (0, 0, 0))[1:]
    return int(np.prod(planes, initial=1)) * -(-height // factor) * -(-width // factor)


def _subject(facts: RunFacts, item: Item, options: GridOptions) -> Subject:
    about = FigureFacts(input_size=facts.input_size)
    return Subject(item.activation, options, about, categories=facts.categories)


def _planned(export: Export, item: Item) -> _Layer:
    """A layer with all of its maps, unreduced; or with its figure."""
    options = item.options or export.options
    subject = _subject(export.facts, item, options)
    if options.figure != "auto" or not subject.kind.paged or _values_of_map(item, 1) == 1:
        return _Layer(item)
    return _Layer(item, len(subject.chosen if export.all_pages else subject.channels))


def _within(layers: Sequence[_Layer]) -> list[_Layer]:
    """The layers reduced so that the page keeps its size.

    Those that need less than an equal share leave the rest to the others.
    """
    left, found = max(_VALUES, _VALUES_OF_A_LAYER * len(layers)), {}
    for done, layer in enumerate(sorted(layers, key=lambda layer: layer.values)):
        found[id(layer)] = fitting = _reduced_to(layer, left // (len(layers) - done))
        left -= fitting.values
    return [found[id(layer)] for layer in layers]


def _reduced_to(layer: _Layer, room: int) -> _Layer:
    item, channels, factor = layer.item, layer.channels, 1
    longest = max((item.shape or (1,))[-2:])
    while (
        channels * _values_of_map(item, factor) > room and -(-longest // (factor + 1)) >= _SMALLEST
    ):
        factor += 1
    each = _values_of_map(item, factor)
    return _Layer(item, min(channels, max(1, room // max(1, each))), factor)


def _reduced(values: Tensor, factor: int, shrink: str) -> Tensor:
    """(n, H, W) float64 with fewer rows and columns.

    "mean" is that of the finite values of each square; what is not finite in it stays, NaN first.
    """
    if factor == 1:
        return values
    if shrink == "nearest":
        for axis in (-2, -1):
            last = values.shape[axis] - 1
            at = torch.arange(0, last + 1, factor) + factor // 2
            values = values.index_select(axis, at.clamp(max=last))
        return values

    def pooled(part: Tensor) -> Tensor:
        return F.avg_pool2d(part, factor, ceil_mode=True, count_include_pad=False)

    finite = values.isfinite()
    good = torch.where(finite, values, 0.0)
    unit = float(good.abs().max()) or 1.0
    mean = pooled(good / unit) / pooled(finite.double()) * unit
    rank = (values == -torch.inf).double() + 2.0 * (values == torch.inf) + 3.0 * values.isnan()
    odd = F.max_pool2d(rank, factor, ceil_mode=True).long()
    strange = torch.tensor([0.0, -torch.inf, torch.inf, torch.nan], dtype=torch.float64)
    return torch.where(odd > 0, strange[odd], mean)


def _stored(subject: Subject, channels: Sequence[int], factor: int) -> tuple[Quantised, list[int]]:
    """The values of these channels, and [rows, columns] of what is stored."""
    maps, shrink = subject.arranged.maps, subject.options.shrink
    with torch.no_grad(), torch.device("cpu"):
        parts = [maps[channel].detach().cpu().double() for channel in channels]
        parts = [
            _reduced(part if part.dim() == 3 else part[None], factor, shrink) for part in parts
        ]
        values = torch.stack(parts).numpy()
    whole = not maps.is_floating_point() and (factor == 1 or shrink == "nearest")
    return quantised(values, whole=whole), list(values.shape[-2:])


def _kept(subject: Subject, count: int, first: int) -> tuple[tuple[int, ...], str]:
    """The channels to store, from the ``first`` on, and a sentence where not all are."""
    chosen, noun = subject.channels, subject.kind.noun
    if count >= len(chosen):
        return chosen, ""
    start = min(first, len(chosen) - count)
    span = f"{noun}s {start + 1}–{start + count}" if count > 1 else f"{noun} {start + 1}"
    return chosen[start : start + count], f"for the size of this page, {span} of them alone"


def _maps(layer: _Layer, export: Export) -> tuple[dict[str, Any], Codes]:
    """What the page says of a layer with maps, and its values."""
    item, options, first = layer.item, layer.item.options or export.options, 0
    if export.all_pages:
        first = options.page * options.per_page
        options = options.replace(page=0, per_page=sys.maxsize)
    subject = _subject(export.facts, item, options)
    channels, left_out = _kept(subject, layer.channels, first)
    arranged, scale, found = subject.arranged, subject.scaling, subject.extents
    values, size = _stored(subject, channels, layer.factor)
    names = {
        theme: "gray"
        if arranged.rgb
        else choose_cmap(options.cmap, theme, symmetric=scale.symmetric)
        for theme in _THEMES
    }
    legends = [
        legend_of(found, scale, color_table(names[theme]), arranged.absent) for theme in _THEMES
    ]
    dead, numbers = found.dead, list(channels) if scale.per_channel else [0]
    marks = [
        "dead" if dead[c] else f"= {value(found.low[c])}" if found.low[c] == found.high[c] else ""
        for c in channels
    ]
    apart = arranged.apart
    facts = [
        page_sentence(subject),
        left_out,
        scale.sentence,
        "gray is zero" if arranged.rgb and scale.symmetric else "",
        f"axes {arranged.statement}",
        *arranged.notes,
        dead_sentence(subject),
        "" if apart is None else "class and register tokens are not on this page",
        *_comparison_sentences(subject),
        *item.notes,
        _reduction_sentence(layer.factor, options.shrink),
        _step_sentence(values),
    ]
    ends = ("min", "max") if scale.ends is None else tuple(map(value, scale.ends))
    return _about(subject, facts) | {
        "legend": [
            [to_hex(light), to_hex(dark), text]
            for (light, text), (dark, _) in zip(*legends, strict=True)
        ],
        "onPhoto": subject.kind.on_image and not arranged.part and not arranged.rgb,
        "maps": {
            "channels": list(channels),
            "marks": marks,
            "planes": 3 if arranged.rgb else 1,
            "height": size[0],
            "width": size[1],
            "full": list(subject.size),
            "factor": layer.factor,
            "mean": options.shrink == "mean",
            "base": values.base,
            "zero": values.zero,
            "step": values.step,
            "low": values.low,
            "high": values.high,
            "perChannel": scale.per_channel,
            "clipped": bool(scale.below or scale.above),
            "first": scale.low[numbers].tolist(),
            "last": scale.high[numbers].tolist(),
            "ends": None if arranged.rgb or not options.colorbar else ends,
        }
        | names,
    }, values.codes


def _about(subject: Subject, facts: Sequence[str]) -> dict[str, Any]:
    """What the page says of every layer."""
    activation: Any = subject.source
    dtype = str(activation.tensor.dtype).removeprefix("torch.")
    kind = (activation.module_type, shape_text(activation.shape), dtype)
    return {
        "name": activation.label,
        "kind": " · ".join(part for part in kind if part),
        "facts": [fact for fact in facts if fact],
        "legend": [],
        "noun": subject.arranged.figure_kind.noun,
        "onPhoto": False,
    }


def _comparison_sentences(subject: Subject) -> list[str]:
    """What the maps of a comparison are."""
    if not subject.arranged.beside:
        return []
    sides = getattr(subject.source, "sides", ("", ""))
    share = ", as a share of the larger of the two" * subject.options.relative
    names = [f"{name} = {side}" for name, side in zip("ab", sides, strict=True) if side]
    return [f"the maps are the difference b − a{share}", *names]


def _reduction_sentence(factor: int, shrink: str) -> str:
    if factor == 1:
        return ""
    square = f"{factor} × {factor}"
    if shrink == "mean":
        return f"reduced for the size of this page: each value is the mean of {square} of the layer"
    return f"reduced for the size of this page: each value is one of {square} of the layer"


def _step_sentence(values: Quantised) -> str:
    if not values.step:
        return "values in 16 bits: all are the same, exactly"
    if values.step == 1 and values.base == int(values.base):
        return "values in 16 bits, steps of 1: whole numbers, exactly"
    step, half = value(values.step), value(values.step / 2)
    return f"values in 16 bits, steps of {step}: each is within {half} of the exact one"


def _figure(layer: _Layer, export: Export) -> tuple[dict[str, Any], None]:
    """What the page says of a layer that it shows as its figure."""
    item, options = layer.item, layer.item.options or export.options
    if options.width > _FIGURE:
        options = options.replace(width=_FIGURE, dpi=min(options.dpi, 100.0))
    subject = _subject(export.facts, item, options)
    drawings = [
        draw_activation(export.facts, item.activation, options.replace(style=theme))
        for theme in _THEMES
    ]
    drawing = drawings[0]
    noun = "single values" if drawing.kind == "bars" else drawing.kind
    texts = (f"{noun} of {item.activation.label}", f"axes {drawing.axes}", drawing.scale)
    pngs = [_png_url(drawing.png_bytes(compress_level=9)) for drawing in drawings]
    figure = dict(zip(_THEMES, pngs, strict=True))
    figure["alt"] = "; ".join(text for text in texts if text)
    return _about(subject, item.notes) | {"figure": figure}, None


def _png_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _photo(image: Image.Image | None) -> str:
    """What the network saw, as an address that holds it; "" where there was no image."""
    if image is None:
        return ""
    small, file = image.convert("RGB"), io.BytesIO()
    small.thumbnail((_PHOTO, _PHOTO))
    small.save(file, "PNG", optimize=True)
    return _png_url(file.getvalue())


def _run_facts(facts: RunFacts) -> list[tuple[str, str]]:
    texts = run_texts(facts)
    pairs = [
        ("Model", texts.get("model")),
        ("Weights", texts.get("weights")),
        ("Weights hash", texts.get("weights_hash")),
        ("Image", texts.get("image")),
        ("Image SHA-256", texts.get("image_sha256")),
        ("Preprocessing", texts.get("preprocessing")),
        ("Edited", texts.get("edits")),
        ("Device", f"{facts.device}, {facts.dtype}"),
        ("Run", texts.get("time")),
        ("Versions", f"hookviz {facts.hookviz_version}, torch {facts.torch_version}"),
    ]
    return [(term, text) for term, text in pairs if text]


def _table(name: str) -> dict[str, str]:
    table = color_table(name)
    parts = {"colors": table.rgb, "flags": table.flags}
    return {key: base64.b64encode(part.tobytes()).decode("ascii") for key, part in parts.items()}


def _face(theme: str) -> str:
    faint = np.array(palette(theme).faint[:3]) * 255
    return base64.b64encode(np.rint(faint).astype(np.uint8).tobytes()).decode("ascii")


def _json(data: Any) -> str:
    """JSON in ASCII in which no tag, no comment and no entity can begin."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _block(codes: Codes, number: int) -> str:
    """The values of a layer: low bytes of all codes, then the high ones; deflated, in base64."""
    halves = codes.ravel().astype("<u2").view(np.uint8).reshape(-1, 2).T.tobytes()
    data = base64.b64encode(zlib.compress(halves, 6)).decode("ascii")
    return f'<script type="text/plain" id="values-{number}">{data}</script>'


def _html(data: dict[str, Any], codes: Sequence[Codes | None]) -> bytes:
    """The file."""
    style, script = (
        (_TEMPLATE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        for text in (style, script)
    )
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    blocks = [f'<script type="application/json" id="page">{_json(data)}</script>']
    blocks += [_block(part, number) for number, part in enumerate(codes) if part is not None]
    template = Template((_TEMPLATE / "page.html").read_text(encoding="utf-8"))
    page = template.substitute(policy=policy, style=style, script=script, data="\n".join(blocks))
    return page.encode("utf-8")


class HtmlPage(ExportPart):
    """One HTML file with the maps of all layers and their values; it is not drawn again."""

    name = "page"

    def plan(self, export: Export) -> Iterator[Task]:
        """One task, which says how large the file is at most."""
        if not any(item.options for item in export.items):
            fit(export)
        drawn = [item for item in export.items if item.options is not None]
        found = [export.attempt(partial(_planned, export, item), item, self.name) for item in drawn]
        if layers := _within([layer for layer in found if layer is not None]):
            most = _BYTES + sum(layer.most for layer in layers)
            yield Task(self, [export.book.take("page", ".html")], data=layers, most=most)

    def write(self, task: Task, export: Export) -> None:
        """Reads the values here, packs and writes on another thread."""
        if contents := export.made(partial(self._contents, task.data, export), task):
            export.put(task, partial(_html, *contents))

    def _contents(
        self, layers: Sequence[_Layer], export: Export
    ) -> tuple[dict[str, Any], list[Codes | None]]:
        found = []
        for layer in layers:
            export.pipeline.proceed()
            read = partial(_maps if layer.channels else _figure, layer, export)
            if made := export.attempt(read, layer.item, "not on the page"):
                found.append(made)
        if not found:
            raise RenderError("None of the layers can be shown on a page.")
        facts = export.facts
        texts = run_texts(facts)
        shown = {id(layer.item) for layer in layers}
        notes = [f"{name or '(model)'}: {reason}" for name, reason in facts.missing.items()]
        notes += export.notes
        notes += [
            f"{item.activation.label}: {note}"
            for item in export.items
            for note in item.notes
            if id(item) not in shown
        ]
        names = {
            about["maps"][theme] for about, codes in found if codes is not None for theme in _THEMES
        }
        data = {
            "title": " · ".join(texts[key] for key in ("model", "image") if key in texts),
            "untrained": "" if facts.trained else texts["trained"],
            "facts": _run_facts(facts),
            "notes": notes,
            "photo": _photo(facts.input_image),
            "faint": {theme: _face(theme) for theme in _THEMES},
            "tables": {name: _table(name) for name in names},
            "layers": [about for about, _ in found],
        }
        return data, [codes for _, codes in found]
