"""The panel "Channel": one channel of one layer, large.

It stands in the gallery's place, not beside it: the map takes the width. What is computed comes
from `Run`; here it is only put together and sent. The map and its numbers come first, drawn on the
gallery's thread; what needs receptive fields, weights or another forward follows on the app's.
"""

from __future__ import annotations

import builtins
import keyword
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import traitlets
from PIL import Image, ImageDraw
from torch import Tensor

from hookviz._text import shape_text
from hookviz.errors import HookvizError, RunCancelled
from hookviz.render import GridOptions, SingleChannels, shared_range, value
from hookviz.run import ChannelSummary, ReceptiveField, Run
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built
from hookviz.widget._cards import card_key
from hookviz.widget._cells import interactive_shell
from hookviz.widget._earlier import EarlierImages
from hookviz.widget._looks_for import LooksFor
from hookviz.widget._painting import draw_card
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import jpeg_bytes, look_of, png_bytes
from hookviz.widget._pointing import Shown, exact_text
from hookviz.widget._worker import Cancelled

_BINS = 64
_PLACES = 6
_INPUTS = 12
_KERNELS = 32
_FILTERS_WIDE = 340  # pixels of the page
_CROP = 96  # pixels of a crop's longer side
_THUMBNAIL = 96
_FAR = 5  # strongest places lie at least a fifth of the map apart
_DRAWN_BY = ("cmap", "scale", "vmin", "vmax", "percentile", "sample", "frame", "axes", "grid")


@dataclass(frozen=True, eq=False)
class _Open:
    """The channel that has the page."""

    own: Shown
    channel: int

    @property
    def name(self) -> tuple[Any, ...]:
        """What tells it from every other one, the same channel of another run included."""
        card = self.own.card
        return (card.key, card.leaf, self.channel, self.own.run.started)


class ChannelPage(Panel):
    """Shows the channel that the app's trait ``channel`` names.

    Attributes:
        shown: What is said of the channel: its name, numbers, ranks, histogram; {} for none.
        places: Its strongest places, with what each sees.
        inputs: The input channels of the largest weights, and the layer whose channels they are.
        earlier: The same channel for the present and earlier images.
        looks_for: What there is of a picture of what it looks for; see `LooksFor`.
        sent: What became of the last tensor sent to the notebook.
    """

    title = "Channel"

    _esm = built("panel_channel.min.js")
    _css = built("panel_channel.min.css")

    shown = traitlets.Dict().tag(sync=True)
    places: traitlets.List[Any] = traitlets.List().tag(sync=True)
    inputs = traitlets.Dict().tag(sync=True)
    earlier: traitlets.List[Any] = traitlets.List().tag(sync=True)
    sent = traitlets.Dict().tag(sync=True)
    looks_for = traitlets.Dict().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._look: dict[str, Any] = {}
        self._visible = False
        self._at: dict[str, Any] = {}
        self._cards: list[str] = []
        self._map: tuple[Any, ...] = ()
        self._rest: tuple[Any, ...] = ()
        self.images = EarlierImages()
        self._looks = LooksFor(self)
        super().__init__(app, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            self.images.note(f.run for f in self.app.results.all_fresh() if f.run is not None)
            if self._at != self.app.channel:
                self._at, self._visible = self.app.channel, True  # the page is about to show it
            if not self._at:
                self._forget()
            elif self._visible:
                self.app.gallery.observe(self._draw_soon, "cards")
                self._draw_soon()

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self.images.clear()
        self._looks.clear()
        self._visible = False
        self._forget()

    def _forget(self) -> None:
        self._map = self._rest = ()
        self.images.forget_maps()
        self.shown, self.inputs, self.sent = {}, {}, {}
        self._looks.show(None, 0)
        self.places, self.earlier = [], []

    # ── the map and its numbers

    def _draw_soon(self, _change: Any = None) -> None:
        if self._visible and self.app.channel:
            self.app.gallery.painter.later("channel", self._draw)

    def _open(self) -> _Open | None:
        """What the channel's card shows now; None while there is nothing."""
        at = self.app.channel
        own = self._other(at["key"]) if at else None
        return None if own is None or at["channel"] >= own.channels else _Open(own, at["channel"])

    def _other(self, key: str) -> Shown | None:
        try:
            found: Shown | None = self.app.pointing.shown(key)
        except HookvizError:
            return None  # it cannot be read as maps: its card says so
        return found

    def _draw(self, _cancelled: Cancelled) -> None:
        """Draws the map where it, its colors or its card are others than before."""
        found = self._open()
        if found is None:
            return
        own, channel = found.own, found.channel
        activation = own.activation
        options = self.app.gallery.options.replace(**own.how, **self._style)
        drawn = tuple(getattr(options, name) for name in (*_DRAWN_BY, "style"))
        cards = [card.key for card in self.app.gallery.shown_cards]
        if cards != self._cards and self._rest == found.name:
            self.app.jobs.later("channel inputs", self._find_inputs)  # they may lead elsewhere
        self._cards = cards
        key = (found.name, drawn, own.card.version, own.card.stale)
        if key == self._map:
            return
        message: dict[str, Any] = {"type": "map", "version": own.card.version}
        buffers: list[bytes] = []
        summary = own.summary(channel)
        try:
            size = own.run.input.tensor.shape[-2:]
            single = SingleChannels(activation, options, (int(size[0]), int(size[1])))
            (image,) = single.images([channel])
            buffers.append(png_bytes(Image.fromarray(image.rgb(single.table))))
            message |= {"scale": single.scaling.sentence, "ends": [image.vmin, image.vmax]}
            message["colors"] = ["#" + bytes(c).hex() for c in single.table.rgb[::15]]
        except HookvizError as error:
            message["message"] = error.message
        if own.on_image:
            buffers.append(jpeg_bytes(own.run.input.picture()))
        with self.app.lock:
            now = self.app.channel
            if (now.get("key"), now.get("channel")) != (own.card.key, channel):
                return  # another one has been opened since; it is waiting
            self._map = key
            self.shown = _facts(own, channel, summary)
            if self._rest != found.name:
                self._rest = found.name
                self.places, self.inputs, self.earlier, self.sent = [], {}, [], {}
                self.app.jobs.later("channel places", self._find_places)
                self.app.jobs.later("channel inputs", self._find_inputs)
                self.app.jobs.later("channel earlier", self._rerun)
            self.send({**message, "key": own.card.key, "channel": channel}, buffers=buffers)
            self._looks.show(own, channel)

    @property
    def _style(self) -> dict[str, Any]:
        return {"style": self._look.get("style", "light")}

    # ── the rest, each on the app's thread once nothing more urgent waits

    def _to_do(self) -> _Open | None:
        """The channel whose rest is to be found; None where it is another one by now."""
        found = self._open()
        return found if found is not None and found.name == self._rest else None

    def _find_places(self, _cancelled: Cancelled) -> None:
        found = self._to_do()
        if found is None:
            return
        own, channel = found.own, found.channel
        summary = own.summary(channel)
        if not own.on_image or not summary.low < summary.high:
            return  # its values are the same everywhere, or are those of no place of the image
        apart = math.ceil(max(own.size) / _FAR)
        listed, crops = [], []
        for y, x, _ in summary.strongest(_PLACES, apart):
            about, field = own.field(y, x)
            text = exact_text(summary.map[y, x])
            listed.append({"y": y, "x": x, "value": text, "field": about})
            crops.append(b"" if field is None or field.image_box is None else _crop(own, field))
        with self.app.lock:
            if self._rest == found.name:
                self.places = listed
                self.send({"type": "crops", "channel": channel}, buffers=crops)

    def _find_inputs(self, _cancelled: Cancelled) -> None:
        found = self._to_do()
        if found is None or not found.own.card.has_filters:
            return
        own, channel = found.own, found.channel
        try:
            reads = own.run.input_channels(own.card.layer, channel, own.card.call)
        except HookvizError:
            return  # a Linear layer whose features are no channels, for example
        top = reads.top(_INPUTS)
        largest = max((norm for _, norm, _ in top), default=0.0) or 1.0
        nearest = reads.sources[0].layer if reads.sources else ""
        leads = {}
        for source in reads.sources:
            key = card_key(source.layer, source.call)
            other = self._other(key)
            if other and other.card.leaf == source.leaf and other.channels == reads.total:
                leads = {"key": key, "label": source.layer, "through": list(source.through)}
                break
        shown = {
            "bars": [[c, f"{norm:.4g}", norm / largest, total < 0] for c, norm, total in top],
            "of": len(reads.channels),
            "total": reads.total,
            "leads": leads,
            "nearest": nearest,
        }
        png, shown["filters"] = self._filters(own, channel)
        with self.app.lock:
            if self._rest == found.name:
                self.inputs = shown
                self.send({"type": "filters", "channel": channel}, buffers=[png])

    def _filters(self, own: Shown, channel: int) -> tuple[bytes, str]:
        """The channel's kernels as the figure kind of filters draws them, and what is shown."""
        record = own.run.select(own.card.layer, kind="weight")
        look = {name: self._look[name] for name in ("width", "dpi") if name in self._look}
        options = GridOptions(per_page=_KERNELS, bare=True, **self._style, **look)
        kernels = record.tensor.shape[2:].numel() > 1
        colors = record.tensor.shape[1] == 3 and (record.axes is None or record.axes.groups == 1)
        alone = colors or record.tensor.shape[1] == 1  # one tile
        which: dict[str, Any] = {"channels": (channel,)}
        if kernels and not alone:
            which = {"output_channel": channel}
        drawing, _ = draw_card(record, options.replace(**which), own.card.origin)
        count = len(drawing.channels)
        text = "Its weights" if alone or not kernels else f"{count} of {drawing.total} kernels"
        return drawing.png_bytes(compress_level=1), f"{text}: {drawing.scale}"

    def _rerun(self, cancelled: Cancelled) -> None:
        """The same channel for earlier images, on one scale with the present one."""
        found = self._to_do()
        if found is None:
            return
        own, channel = found.own, found.channel
        images = self.images.before(own.run)
        if not images or own.card.stale:
            return
        summaries = [(own.run.image.name, own.run.input, own.summary(channel))]
        try:
            for one in images:
                with self.app.jobs.turn:  # its edits act in all threads, on live frames as well
                    again = self.images.activation(one, own.run, own.activation, cancelled)
                run = replace(own.run, input=one.given, activations=(again,))
                found_there = run.channel(own.card.layer, channel, **own.where)
                summaries.append((one.name, one.given, found_there))
        except RunCancelled:
            self.app.jobs.later("channel earlier", self._rerun)  # a job is waiting: after it
            return
        except HookvizError:
            return  # a model that takes no other image of that size, for example
        pictures, listed = self._on_one_scale(summaries)
        with self.app.lock:
            if self._rest == found.name:
                self.earlier = listed
                self.send({"type": "earlier", "channel": channel}, buffers=pictures)

    def _on_one_scale(
        self, summaries: list[tuple[str, Any, ChannelSummary]]
    ) -> tuple[list[bytes], list[dict[str, Any]]]:
        maps = [summary.map[None, None] for _, _, summary in summaries]
        options = GridOptions(axes="maps", cmap=self.app.gallery.options.cmap, **self._style)
        try:
            low, high = shared_range(maps, options)
        except HookvizError:
            return [], []  # no value is finite
        options = options.replace(scale="shared", vmin=low, vmax=high)
        pictures, listed = [], []
        for (name, given, summary), one in zip(summaries, maps, strict=True):
            single = SingleChannels(one, options)
            (image,) = single.images([0])
            pictures.append(jpeg_bytes(given.picture(), _THUMBNAIL))
            pictures.append(png_bytes(Image.fromarray(image.rgb(single.table))))
            numbers = {"low": value(summary.low), "high": value(summary.high)}
            listed.append({"name": name, **numbers, "scale": single.scaling.sentence})
        return pictures, listed

    # ── the notebook

    def _send_to_cell(self, name: str, again: bool = False) -> None:
        """Puts the channel's tensor into the notebook under a name."""
        name = name.strip()
        found, shell = self._open(), interactive_shell()
        if found is None:
            self.sent = {"state": "refused", "text": "There is no channel to send."}
        elif shell is None:
            text = "This Python has no notebook whose cells could use it."
            self.sent = {"state": "refused", "text": text}
        elif reason := _no_name(name, shell):
            self.sent = {"state": "refused", "text": reason}
        elif name in shell.user_ns and not again:
            kind = type(shell.user_ns[name]).__name__
            text = f"The notebook has {name} already ({kind}). Replace it, or choose another name."
            self.sent = {"state": "taken", "text": text, "name": name}
        else:
            own, channel = found.own, found.channel
            tensor: Tensor = own.summary(channel).map
            replaced = " It replaced what had that name." if name in shell.user_ns else ""
            shell.user_ns[name] = tensor
            dtype = str(tensor.dtype).removeprefix("torch.")
            text = (
                f"{name} in the notebook is channel {channel} of {own.label}: a copy, "
                f"{shape_text(tensor.shape)} values, {dtype}, on {tensor.device}, in the layer's "
                f"own units, not scaled.{replaced}"
            )
            self.sent = {"state": "sent", "text": text, "name": name}

    # ── what the page asks

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        with self.app.lock:
            self._look = look_of(width, ratio, style, _FILTERS_WIDE)
            self._map = self._rest = ()  # a page that was loaded again has nothing yet
            self._visible = True
            self.refresh()

    def _set_visible(self, on: bool) -> None:
        with self.app.lock:
            self._visible = on
            self.refresh()

    def _step(self, by: int) -> None:
        """Opens the channel that lies so many further; at the ends nothing happens."""
        with self.app.lock:
            at = self.app.channel
            own = self._other(at["key"]) if at else None
            if own is not None:
                wanted = min(own.channels - 1, max(0, at["channel"] + by))
                self.app.pointing.open(at["key"], wanted)

    def _show_in_gallery(self) -> None:
        at = self.app.channel
        if at:
            self.app.gallery.show_channel(at["key"], at["channel"])
            self.app.send({"type": "show-channel", **at})

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "look": self._take_look,
            "visible": self._set_visible,
            "step": self._step,
            "open": self.app.pointing.open,
            "pin": self.app.pointing.pin,
            "gallery": self._show_in_gallery,
            "send": self._send_to_cell,
            "visualize": self._looks.start,
            "cancel": self.app.cancel,
            "export": self._looks.export,
        }


def _facts(own: Shown, channel: int, summary: ChannelSummary) -> dict[str, Any]:
    """A channel as the page describes it."""
    counts, edges = summary.histogram(_BINS)
    odd = ((summary.nan, "NaN"), (summary.posinf, "+Inf"), (summary.neginf, "−Inf"))
    name = re.sub(r"\W+", "_", f"{own.card.layer or 'model'}_channel_{channel}").strip("_")
    return {
        "key": own.card.key,
        "channel": channel,
        "label": own.label,
        "type": own.card.type,
        "of": summary.channels,
        "rows": own.size[0],
        "cols": own.size[1],
        "image": own.on_image,
        "stale": own.card.stale,
        "edited": own.card.origin.facts.edits,
        "numbers": [
            ["Minimum", value(summary.low), None],
            ["Maximum", value(summary.high), summary.ranks["high"]],
            ["Mean", value(summary.mean), summary.ranks["mean"]],
            ["Standard deviation", value(summary.std), summary.ranks["std"]],
            ["Zeros", _percent(summary.zeros), summary.ranks["zeros"] if summary.zeros else None],
        ],
        "odd": ", ".join(f"{count} {word}" for count, word in odd if count),
        "counts": counts.tolist(),
        "ends": [edges[0], edges[-1]] if len(edges) else [],
        "name": name if not name[:1].isdigit() else f"layer_{name}",
    }


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.4g} %"


def _no_name(name: str, shell: Any) -> str:
    """Why a text cannot be a variable of the notebook; "" where it can."""
    if not name.isidentifier() or keyword.iskeyword(name):
        return f"“{name[:40]}” cannot be a variable's name: letters, digits and _ can."
    own = hasattr(builtins, name) or name in getattr(shell, "user_ns_hidden", ())
    if own or (name.startswith("__") and name.endswith("__")):
        return f"{name} is a name of Python's or the notebook's own; choose another one."
    return ""


# ── crops


def _crop(own: Shown, field: ReceptiveField) -> bytes:
    """The photo's pixels that a place sees, with hatching where it reaches beyond them.

    A small frame marks the place itself.
    """
    run: Run = own.run
    seen = field.image_box or (0, 0, *run.image.size)
    left, top, right, bottom = _reach(run, field) or seen
    scale = _CROP / max(right - left, bottom - top)
    size = tuple(max(1, round(scale * n)) for n in (right - left, bottom - top))
    canvas = _hatched((size[0], size[1]))
    at = [round(scale * n) for n in (seen[0] - left, seen[1] - top, seen[2] - left, seen[3] - top)]
    fitted = (max(1, at[2] - at[0]), max(1, at[3] - at[1]))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    canvas.paste(run.image.image.crop(seen).resize(fitted, how), (at[0], at[1]))
    if (box := run.input.box) is not None:
        rows, columns = own.size
        across, down = (box[2] - box[0]) / columns, (box[3] - box[1]) / rows
        corner = (box[0] + field.x * across - left, box[1] + field.y * down - top)
        place = [scale * corner[0], scale * corner[1]]
        place += [place[0] + scale * across, place[1] + scale * down]
        if max(place[2] - place[0], place[3] - place[1]) < 0.8 * _CROP:
            draw = ImageDraw.Draw(canvas)
            draw.rectangle(
                [place[0] - 1, place[1] - 1, place[2] + 1, place[3] + 1], outline="black"
            )
            draw.rectangle(place, outline="white")
    return png_bytes(canvas)


def _reach(run: Run, field: ReceptiveField) -> tuple[int, int, int, int] | None:
    """The whole field in pixels of the photo, also where it lies beyond it; None: not known."""
    box, seen = run.input.box, field.image_box
    if box is None or seen is None or field.box is None or field.whole:
        return None
    height, width = field.input_size
    across, down = (box[2] - box[0]) / width, (box[3] - box[1]) / height
    left, top, right, bottom = field.box
    return (
        min(seen[0], math.floor(box[0] + left * across)),
        min(seen[1], math.floor(box[1] + top * down)),
        max(seen[2], math.ceil(box[0] + right * across)),
        max(seen[3], math.ceil(box[1] + bottom * down)),
    )


def _hatched(size: tuple[int, int]) -> Image.Image:
    """Diagonal stripes: what no photo is."""
    rows, columns = np.mgrid[: size[1], : size[0]]
    stripes = np.where((rows + columns) % 8 < 3, 120, 205).astype(np.uint8)
    return Image.fromarray(np.repeat(stripes[..., None], 3, axis=2))
