"""The panel "Compare": the session's runs side by side, layer by layer and channel by channel.

Another part of the app shows two runs here by ``app.compare(before, after, titles=…)``, see
`CompareRuns.show`: they come into the tray like any others.

One run is the reference, all others are compared with it; one of them, ``against``, is the one
whose numbers, differences, blink and wipe are shown. Values come from the tensors that are drawn,
never from colors.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traitlets
from torch import Tensor

from hookviz.comparison import Comparison, KeptSide, LayerDifference, compare
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.render import (
    ActivationPair,
    Drawing,
    GridOptions,
    arrange,
    difference,
    draw,
    draw_sides,
    on_one_grid,
    shared_end,
)
from hookviz.run import Run
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built
from hookviz.widget._kept_runs import KEPT_BYTES, KeptRun, KeptRuns
from hookviz.widget._painting import bar_of, tiles_of
from hookviz.widget._part import Handlers, problem
from hookviz.widget._pictures import look_of
from hookviz.widget._pointing import exact_text
from hookviz.widget._worker import Cancelled, Worker

_PER_PAGE = 32
_SCALES = ("auto", "full")
_FACTS_DELAY = 0.5
# Seconds that an export waits for a run's facts, which take a hash of the weights.
_PATIENCE = 20.0


@dataclass(frozen=True, eq=False)
class _Pair:
    """The maps of the reference and of another run on one grid.

    Attributes:
        number: Of the other run, among those compared.
        record: Both records.
        a: (C, H, W) of the reference.
        b: (C, H, W) of the other.
    """

    number: int
    record: ActivationPair
    a: Tensor
    b: Tensor


class CompareRuns(Panel):
    """Shows the tray of runs, and the comparison of those that were chosen.

    Attributes:
        tray: ``runs``, oldest first, and what the tray holds of its limits, see `KeptRuns.public`.
        compared: ``words`` of each run that is compared, the reference first, their ``keys``,
            ``against`` (position of the one that is shown against it) and ``state``: "comparing",
            "ready" or "failed"; {} for nothing.
        layers: One row for each tensor of the pair, in order of execution.
        summary: ``first``: row of the first difference beyond rounding, or None; ``same``;
            ``only``: labels that the reference alone, or the other alone, has.
        layer: The row whose maps are shown; −1 for none.
        scale: "auto" or "full".
        page: Which channels, from 0.
        pin: The place that is pinned, with its values; {} for none.
        exported: Where the last export is.
        comparison: What `hookviz.compare` found for the pair that is shown; None for nothing.
    """

    title = "Compare"

    _esm = built("panel_compare.min.js")
    _css = built("panel_compare.min.css")

    tray = traitlets.Dict().tag(sync=True)
    compared = traitlets.Dict().tag(sync=True)
    layers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    summary = traitlets.Dict().tag(sync=True)
    layer = traitlets.Int(-1).tag(sync=True)
    scale = traitlets.Unicode("auto").tag(sync=True)
    page = traitlets.Int(0).tag(sync=True)
    pin = traitlets.Dict().tag(sync=True)
    exported = traitlets.Dict().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self.kept = KeptRuns()
        self._found: list[Comparison] = []
        self._pairs: list[_Pair] = []
        self._look: dict[str, Any] = {}
        self._version = 0
        self._last: weakref.ref[Run] | None = None
        self.worker = Worker("hookviz-compare", self.show_problem)
        super().__init__(app, **traits)
        self.tray = self.kept.public()

    @property
    def comparison(self) -> Comparison | None:
        """See the class."""
        return self._found[self._against - 1] if self._found else None

    def refresh(self) -> None:
        """Takes the app's last run into the tray; see `Panel`."""
        run: Run | None = self.app.run
        with self.app.lock:
            if run is None or (self._last is not None and self._last() is run):
                return
            self._last = weakref.ref(run)
            if run.error is None:
                self._keep(run)

    def show(self, *runs: Run, titles: Sequence[str] = ()) -> None:
        """Compares runs that another part of the app, or a cell, has made, and shows that.

        Args:
            *runs: Two or more; the first is the reference. Their outputs are kept on the CPU, the
                models are not.
            titles: What sets each apart, for example ("before", "after"); () for nothing.

        Raises:
            HookvizError: They are fewer than two, or too large to be kept together.
        """
        if len(runs) < 2:
            raise HookvizError(f"{len(runs)} runs were given; two or more can be compared.")
        texts = [*titles, *[""] * len(runs)]
        with self.app.lock:
            kept: list[KeptRun] = []
            for number, run in enumerate(runs):
                one = self._keep(run, texts[number], with_last=number + 1)
                if one is None:
                    raise HookvizError(
                        f"The runs hold more than the {KEPT_BYTES / 1e6:.0f} MB that are kept to "
                        "be compared.",
                        remedy="Capture fewer layers.",
                    )
                kept.append(one)
            self._start([one.key for one in kept], [one.side() for one in kept])
        self.app.send({"type": "show-tab", "tab": "compare"})

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until everything is compared and drawn; see `Panel`."""
        return self.worker.wait(timeout)

    def open(self) -> None:
        """Brings the panel up, also after `close`."""
        self.worker.reopen()
        super().open()

    def close(self) -> None:
        """Takes the panel away and lets go of all runs."""
        self.worker.close()
        super().close()
        self.kept = KeptRuns()
        self._look, self._last = {}, None
        self._end()
        self.tray = self.kept.public()

    # ── the tray

    def _keep(self, run: Run, title: str = "", *, with_last: int = 1) -> KeptRun | None:
        in_use = self.compared.get("keys", ())
        kept = self.kept.keep(run, title, in_use, with_last=with_last)
        if any(key not in self.kept for key in in_use):
            self._end()
        self.tray = self.kept.public()
        if kept is None:
            return None
        if kept.thumbnail:
            self._send_thumbnails([kept])

        def task(_cancelled: Cancelled) -> None:
            kept.find_facts(run)

        self.worker.later(("facts", kept.key), task, _FACTS_DELAY)
        return kept

    def _send_thumbnails(self, kept: Sequence[KeptRun] | None = None) -> None:
        chosen = list(self.kept.values()) if kept is None else kept
        keys = [one.key for one in chosen]
        self.send({"type": "thumbnails", "keys": keys}, buffers=[one.thumbnail for one in chosen])

    def _forget(self, key: str) -> None:
        with self.app.lock:
            self.kept.pop(key, None)
            if key in self.compared.get("keys", ()):
                self._end()
            self.tray = self.kept.public()
        self.app.return_memory_soon()

    # ── comparing

    def _compare_runs(self, keys: list[str]) -> None:
        with self.app.lock:
            chosen = [self._kept(key) for key in dict.fromkeys(keys)]
            if len(chosen) < 2:
                raise HookvizError("Fewer than two runs are ticked.", remedy="Tick two or more.")
            self._start([one.key for one in chosen], [one.side() for one in chosen])

    def _compare_calls(self, key: str, layer: str) -> None:
        with self.app.lock:
            sides = self._kept(key).calls(layer)
            self._start([key], sides, match="order")

    def _kept(self, key: str) -> KeptRun:
        if key not in self.kept:
            raise HookvizError(f"There is no run {key!r:.40} any more.", remedy="Choose another.")
        return self.kept[key]

    def _start(self, keys: list[str], sides: list[KeptSide], match: str | None = None) -> None:
        """Compares the first side with each other one, on the panel's thread."""
        self._end()
        words = [side.words for side in sides]
        begun = {"keys": keys, "words": words, "against": 1, "state": "comparing"}
        self.compared = begun

        def task(_cancelled: Cancelled) -> None:
            try:
                found = [compare(sides[0], other, match=match) for other in sides[1:]]
            except HookvizError as error:
                with self.app.lock:
                    if self.compared is begun:
                        self.compared = {**begun, "state": "failed", **problem(error)}
                return
            with self.app.lock:
                if self.compared is begun:  # else others were chosen meanwhile
                    self._found = found
                    self.compared = {**begun, "state": "ready"}
                    self._show_pair()

        self.worker.later("compare", task)

    def _end(self) -> None:
        """Ends the comparison: nothing is held for it any more."""
        with self.app.lock:
            self.worker.forget("compare")
            self.worker.forget("draw")
            self._found, self._pairs = [], []
            self.compared, self.layers, self.summary, self.pin, self.exported = {}, [], {}, {}, {}
            self.layer, self.page = -1, 0

    def _show_pair(self) -> None:
        """Publishes the pair's rows, and begins with the layer where the two part."""
        found = self.comparison
        if found is None:
            return
        shown = self._entry.label if self._entry is not None else ""
        first = found.first_difference()
        rows = list(found.layers)
        self.layers = [_row(entry) for entry in rows]
        self.summary = {
            "first": None if first is None else rows.index(first),
            "same": all(entry.same for entry in rows),
            "only": [list(found.only_a), list(found.only_b)],
            "matched": found.matched_by,
        }
        labels = [entry.label for entry in rows]
        if shown in labels:
            self._show_layer(labels.index(shown))
        else:
            drawable = [i for i, entry in enumerate(rows) if not entry.reason]
            at = self.summary["first"]
            self._show_layer(at if at in drawable else drawable[0] if drawable else 0)

    @property
    def _entry(self) -> LayerDifference | None:
        found = self.comparison
        there = found is not None and 0 <= self.layer < len(found.layers)
        return found.layers[self.layer] if found is not None and there else None

    # ── what the page asks

    def _choose_against(self, number: int) -> None:
        with self.app.lock:
            if self._found and 1 <= number <= len(self._found):
                self.compared = {**self.compared, "against": number}
                self._show_pair()

    def _show_layer(self, index: int) -> None:
        with self.app.lock:
            if not 0 <= index < len(self.layers):
                raise HookvizError(f"There is no layer {index} to compare.")
            if index != self.layer:
                self.layer, self.page, self.pin = index, 0, {}
            self._draw_soon()

    def _turn_page(self, page: int) -> None:
        with self.app.lock:
            self.page = max(0, page)
            self._draw_soon()

    def _choose_scale(self, scale: str) -> None:
        if scale not in _SCALES:
            raise HookvizError(f"The scale is {scale!r:.40}; legal are {', '.join(_SCALES)}.")
        with self.app.lock:
            self.scale = scale
            self._draw_soon()

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        with self.app.lock:
            self._look = look_of(width, ratio, style)
            self._draw_soon()

    # ── drawing

    def _draw_soon(self) -> None:
        if self._look and self._entry is not None:
            self.worker.later("draw", self._draw)

    def _draw(self, _cancelled: Cancelled) -> None:
        with self.app.lock:
            found, entry, look, page = list(self._found), self._entry, dict(self._look), self.page
            against = self._against
        if entry is None or not look:
            return
        message: dict[str, Any] = {"type": "maps", "label": entry.label}
        pictures: list[bytes] = []
        pairs: list[_Pair] = []
        try:
            if entry.reason:
                raise RenderError(entry.reason)
            pairs = _pairs_of(found, entry, against)
            facts, pictures = _painted(pairs, against, self._options(look), page)
            message |= facts
        except HookvizError as error:
            message |= {"parts": [], "error": error.message, "code": error.code}
        with self.app.lock:
            if self._entry is not entry or self.comm is None:
                return  # a newer order is waiting
            self._version += 1
            self._pairs = pairs if message.get("tiles") else []
            self.page = message.get("page", 0)
            self.send({**message, "version": self._version}, buffers=pictures)
            if self.pin:
                place = [self.pin[name] for name in ("channel", "y", "x")]
                self.pin = self._place(*place) if self._has(*place) else {}

    def _options(self, look: dict[str, Any]) -> GridOptions:
        pixels, tile = look["dpi"] / 100.0, self.app.gallery.tile
        columns = max(1, int((look["width"] / pixels + 6) // (tile + 6)))
        return GridOptions.of(
            **look, ncols=columns, per_page=_PER_PAGE, order="norm", bare=True,
            labels=False, colorbar=False,
        )  # fmt: skip

    # ── pointing

    def _has(self, channel: int, y: int, x: int) -> bool:
        """Whether the pair that is shown has such a place."""
        shapes = [pair.a.shape for pair in self._pairs if pair.number == self._against]
        return bool(shapes) and all(
            0 <= at < size for at, size in zip((channel, y, x), shapes[0], strict=True)
        )

    @property
    def _against(self) -> int:
        return int(self.compared.get("against", 1))

    def _place(self, channel: int, y: int, x: int) -> dict[str, Any]:
        """What stands at a place in every run; {} where nothing does."""
        if not self._has(channel, y, x):
            return {}
        values = [""] * len(self.compared["words"])
        found: dict[str, Any] = {"channel": channel, "y": y, "x": x}
        for pair in self._pairs:
            size = pair.a.shape[1:]
            if not all(at < count for at, count in zip((y, x), size, strict=True)):
                continue  # on a coarser grid of its own
            a, b = (maps[channel, y, x] for maps in (pair.a, pair.b))
            values[pair.number] = exact_text(b)
            if pair.number == self._against:
                values[0] = exact_text(a)
                found["difference"] = exact_text(difference(a, b))
                found["relative"] = exact_text(difference(a, b, relative=True))
        return {**found, "values": values}

    def _answer_point(self, ask: int, version: int, channel: int, y: int, x: int) -> None:
        """Says what stands at a place; nothing where the page has an older picture."""
        answer = {"type": "pointed", "ask": ask, "channel": channel, "y": y, "x": x}
        with self.app.lock:
            there = self._place(channel, y, x) if version == self._version else {}
        self.send({**answer, **there})

    def _set_pin(self, channel: int, y: int, x: int) -> None:
        with self.app.lock:
            there = self._place(channel, y, x)
            if not there:
                raise HookvizError("There is no such place to pin.")
            self.pin = there

    def _unpin(self) -> None:
        self.pin = {}

    # ── export

    def _export(self, everything: bool, folder: str = "") -> bool:
        """Writes the table and the figures of the layer, or of all, into a new folder."""
        found, entry = self.comparison, self._entry
        if found is None or entry is None:
            raise ExportError("There is nothing to export.", remedy="Compare two runs first.")
        target = Path(folder.strip() or "hookviz_exports").expanduser()
        options = GridOptions(order="norm").replace(scale=self.scale)
        layers = None if everything else [entry.layer]
        kept = [self.kept[key] for key in self.compared["keys"]]

        def task(cancelled: Cancelled) -> None:
            app = self.app
            app.clear_problem()
            for run in kept:
                run.known.wait(_PATIENCE)
            result = found.export(
                target, layers=layers, options=options, cancelled=cancelled,
                progress=app.progress("Exporting", "files"),
            )  # fmt: skip
            files = len(result.files)
            self.exported = {"path": str(result.folder.resolve()), "files": files}
            app.end(f"Exported {files} files.")

        self.exported = {}
        return self.app.ask("exporting", "Exporting the comparison …", task)

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "thumbnails": self._send_thumbnails,
            "compare": self._compare_runs,
            "calls": self._compare_calls,
            "forget": self._forget,
            "close": self._end,
            "against": self._choose_against,
            "layer": self._show_layer,
            "page": self._turn_page,
            "scale": self._choose_scale,
            "look": self._take_look,
            "point": self._answer_point,
            "pin": self._set_pin,
            "unpin": self._unpin,
            "export": self._export,
        }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _row(entry: LayerDifference) -> dict[str, Any]:
    """One layer as the page shows it."""
    numbers = ("max_abs", "mean_abs", "relative", "cosine", "correlation", "tolerance")
    texts = ("label", "type", "dtype", "other_dtype", "note", "reason", "mismatched")
    return {
        **{name: _number(getattr(entry, name)) for name in numbers},
        **{name: getattr(entry, name) for name in texts},
        "shapes": [list(entry.shape), list(entry.other_shape)],
        "place": None if entry.place is None else list(entry.place),
        "verdict": entry.verdict(),
    }


def _pairs_of(found: Sequence[Comparison], entry: LayerDifference, against: int) -> list[_Pair]:
    """A layer of the reference and of each other run that has it; the one shown against first."""
    pairs: list[_Pair] = []
    numbers = sorted(range(1, len(found) + 1), key=lambda number: number != against)
    for number in numbers:
        one = found[number - 1]
        same = [
            i
            for i, other in enumerate(one.layers)
            if (other.layer, other.call, other.leaf, other.kind)
            == (entry.layer, entry.call, entry.leaf, entry.kind)
        ]
        if not same or one.layers[same[0]].reason:
            continue
        (record,), _ = one.pairs(same[:1])
        options = GridOptions()
        a, b, _ = on_one_grid(
            arrange(record.a, options, record.sizes[0]), arrange(record.b, options, record.sizes[1])
        )
        pairs.append(_Pair(number, record, a, b))
    return pairs


def _painted(
    pairs: Sequence[_Pair], against: int, options: GridOptions, page: int
) -> tuple[dict[str, Any], list[bytes]]:
    """A page of channels: a picture of each run, of the difference and of the relative difference.

    Returns:
        What the page says of them, and the PNGs, whose tiles all stand at the same places.

    Raises:
        RenderError: They cannot be drawn.
    """
    options = options.replace(page=page)
    if len(pairs) > 1 and (widest := shared_end([pair.record for pair in pairs], options)) > 0:
        options = options.replace(scale="fixed", vmin=-widest, vmax=widest)
    shown = next(pair for pair in pairs if pair.number == against)
    sides = draw_sides(shown.record, options)
    one = next(iter(sides.values()))
    facts: dict[str, Any] = {
        "page": one.page,
        "pages": one.pages,
        "total": one.total,
        "channels": list(one.channels),
        "rows": one.size[0],
        "cols": one.size[1],
        "notes": [*one.notes, f"axes {one.axes}"],
    }
    drawings: list[tuple[str, int, Drawing]] = []
    if "all" in sides:
        drawings.append(("whole", against, one))
    else:
        facts["tiles"] = tiles_of(one, shown.record)
        same = options.replace(channels=one.channels, order="index", page=0, side="b")
        runs = {0: sides["a"], against: sides["b"]}
        runs |= {p.number: draw(p.record, same) for p in pairs if p is not shown}
        drawings += [("run", number, runs[number]) for number in sorted(runs)]
        drawings += [(name, against, sides[name]) for name in ("difference", "relative")]
    facts["parts"] = [_part(*drawing) for drawing in drawings]
    return facts, [drawing.png_bytes() for _, _, drawing in drawings]


def _part(kind: str, number: int, drawing: Drawing) -> dict[str, Any]:
    """What a picture is, and what its colors mean, with the runs by their numbers."""
    first, *own = drawing.scale.split("; ")
    text = first if kind == "run" or not own else own[0]
    for old, new in (
        (" (b − a) / max(|a|, |b|)", ", as a share of the larger of the two values,"),
        ("b − a", f"{number + 1} − 1" if number else "the difference"),
        ("a, b and", "the runs and"),
        ("a and b", "the runs"),
    ):
        text = text.replace(old, new)
    return {"part": kind, "run": number, "scale": text, "bar": bar_of(drawing)}
