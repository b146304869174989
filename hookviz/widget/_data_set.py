"""The panel "Data set": what each channel does over many images, and which move it most.

It reads a survey's folder (see `hookviz.surveys`), which needs neither model nor images, on a
thread of its own; so what is there can be looked at while a survey runs on the app's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from hookviz.errors import HookvizError, LayerError, RunCancelled, SurveyError
from hookviz.images import Picture
from hookviz.models import LoadedModel
from hookviz.render import value
from hookviz.surveys import (
    Hit,
    LayerStatistics,
    Survey,
    SurveyProgress,
    open_survey,
)
from hookviz.surveys import survey as run_survey
from hookviz.widget._app import Panel, time_text
from hookviz.widget._bundle import built
from hookviz.widget._cards import card_key
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import jpeg_bytes
from hookviz.widget._worker import Cancelled, Worker

_CROPS = 9
_ROWS = 60
_THUMBNAIL = 44
_MOST_THUMBNAILS = 40
_FAILURES = 100
_BINS = 60
_MOST_AT_A_TIME = 4096
_SHARD = 64  # images: what a cancel loses at most, and how often progress is told
_ORDERS = ("mean", "max", "zeros", "channel")
_FORMATS = ("png", "pdf", "svg")
_FOLDER = "hookviz_surveys"


@dataclass(frozen=True, eq=False)
class _ToOpen:
    """A channel that is to be opened once there is a run over an image.

    Attributes:
        picture: The image.
        key: The card.
        leaf: Which tensor of the layer.
        channel: The channel.
        place: Row and column of its map; None where the place is none of a map.
    """

    picture: Picture
    key: str
    leaf: str
    channel: int
    place: tuple[int, int] | None


class DataSet(Panel):
    """Shows a survey's channels and the crops that move one most; starts a survey, too.

    Attributes:
        folder: The survey's folder, as it was typed; "" for none.
        opened: The survey: ``title``, ``facts`` (sentences), ``layers`` ([name, channels]),
            ``failures`` ([name, reason]), ``failed`` (how many), ``rest`` (the folder of images to
            go on with; "" where it is complete).
        layer: The layer that is shown.
        order: What its channels are sorted by: "mean", "max", "zeros" or "channel".
        falling: Whether the largest comes first.
        dead: Where dead channels stand: "last" or "first".
        channels: ``rows`` ([channel, mean, max, zeros, note] as texts), ``of``.
        channel: The channel that is shown: ``channel``, ``numbers``, ``counts`` and ``ends`` of its
            histogram, ``hits`` (``rank``, ``value``, ``place``, ``name``, ``label``, ``shows``,
            ``openable``); {} for none.
        progress: How far the survey is that runs: a sentence; "" for none.
        why_not: Why none can be started now, in words; "" where one can.
        said: What became of the crop that was opened as the image.
    """

    title = "Data set"

    _esm = built("panel_dataset.min.js")
    _css = built("panel_dataset.min.css")

    folder = traitlets.Unicode().tag(sync=True)
    opened = traitlets.Dict().tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    order = traitlets.Unicode("mean").tag(sync=True)
    falling = traitlets.Bool(True).tag(sync=True)
    dead = traitlets.Unicode("last").tag(sync=True)
    channels = traitlets.Dict().tag(sync=True)
    channel = traitlets.Dict().tag(sync=True)
    progress = traitlets.Unicode().tag(sync=True)
    why_not = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self.reader = Worker("hookviz-survey", self.show_problem)
        self._survey: Survey | None = None
        self._statistics: LayerStatistics | None = None
        self._hits: tuple[Hit, ...] = ()
        self._shown = _ROWS
        self._wanted: _ToOpen | None = None
        super().__init__(app, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            if self.app.model is None:
                self.why_not = "Choose a model."
            else:
                self.why_not = "" if self.app.tree.selected else "Tick the layers to survey."
            self._open_wanted()

    def wait(self, timeout: float | None = None) -> bool:
        """See `Panel`."""
        return self.reader.wait(timeout)

    def open(self) -> None:
        """Brings the panel up, also after `close`."""
        self.reader.reopen()
        super().open()

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        self.reader.close()
        super().close()
        self._survey = self._statistics = self._wanted = None
        self._hits = ()
        self.opened, self.channels, self.channel = {}, {}, {}
        self.folder = self.layer = self.progress = self.said = ""

    @property
    def survey(self) -> Survey | None:
        """The survey that is shown."""
        return self._survey

    # ── reading

    def show(self, folder: str | Path) -> Survey:
        """Opens a survey's folder and shows it.

        Args:
            folder: Where it is.

        Raises:
            SurveyError: There is no survey in it, or it is damaged; what was shown stays.
        """
        found = open_survey(folder)
        notes, failures = found.notes, found.failures
        layer = self.layer if self.layer in found.layers else found.layers[0]
        statistics = found.statistics(layer)
        with self.app.lock:
            self.alert = {}
            self._survey, self.folder, self.said = found, str(folder), ""
            facts = found.facts
            self.opened = {
                "title": f"{facts['model']} ({facts['weights']})",
                "facts": [f"{statistics.images} of {sum(facts['sections'])} images.", *notes],
                "layers": [
                    [name, layout["shape"]]
                    for name, layout in zip(found.layers, facts["layouts"], strict=True)
                ],
                "failures": [[one.name, one.reason] for one in failures[:_FAILURES]],
                "failed": len(failures),
                "rest": "" if found.complete or facts["data"] != "files" else facts["root"],
            }
            self._take_layer(layer, statistics)
        return found

    def _take_layer(self, layer: str, statistics: LayerStatistics) -> None:
        self.layer, self._statistics, self._shown = layer, statistics, _ROWS
        self.channel, self._hits = {}, ()
        self._list()

    def _list(self) -> None:
        """Publishes the channels in their order."""
        statistics = self._statistics
        if statistics is None:
            self.channels = {}
            return
        order = channel_order(
            statistics, self.order, falling=self.falling, dead_first=self.dead == "first"
        )
        dead = statistics.dead
        self.channels = {
            "of": len(order),
            "rows": [
                [
                    int(at),
                    value(statistics.mean[at]),
                    value(statistics.max[at]),
                    _percent(statistics.zero_share[at]),
                    "dead" if dead[at] else "" if statistics.count[at] else "nothing finite",
                ]
                for at in order[: self._shown]
            ],
        }

    def _open(self, folder: str) -> None:
        """Opens a folder that was typed."""

        def task(_cancelled: Cancelled) -> None:
            try:
                self.show(typed_folder(folder, "the survey's folder"))
            except (HookvizError, OSError) as error:
                self.show_problem(error, field="folder")

        self.alert = {}
        self.reader.later("open", task)

    def _choose_layer(self, layer: str) -> None:
        found = self._survey
        if found is None or layer not in found.layers:
            raise LayerError(f"The survey has no layer {layer!r:.80}.")

        def task(_cancelled: Cancelled) -> None:
            statistics = found.statistics(layer)
            with self.app.lock:
                if self._survey is found:
                    self._take_layer(layer, statistics)

        self.reader.later("layer", task)

    def _sort(self, by: str, falling: bool = True) -> None:
        if by not in _ORDERS:
            raise HookvizError(f"Channels cannot be sorted by {by!r:.40}.")
        with self.app.lock:
            self.order, self.falling, self._shown = by, falling, _ROWS
            self._list()

    def _put_dead(self, first: bool) -> None:
        with self.app.lock:
            self.dead, self._shown = "first" if first else "last", _ROWS
            self._list()

    def _show_more(self) -> None:
        with self.app.lock:
            self._shown += 5 * _ROWS
            self._list()

    def _choose_channel(self, channel: int) -> None:
        found, statistics, layer = self._survey, self._statistics, self.layer
        if found is None or statistics is None or not 0 <= channel < len(statistics.count):
            raise LayerError(f"The layer has no channel {channel}.")

        def task(_cancelled: Cancelled) -> None:
            hits = found.top(layer, channel, _CROPS)
            facts = _channel_facts(found, statistics, channel, hits)
            with self.app.lock:
                if self._statistics is statistics:
                    self._hits, self.channel, self.said = hits, facts, ""
                    self._send_crops()

        self.reader.later("channel", task)

    def _send_crops(self) -> None:
        if self.channel:
            message = {"type": "crops", "channel": self.channel["channel"]}
            self.send(message, buffers=[_crop(hit) for hit in self._hits])

    def _send_thumbnails(self, channels: list[str]) -> None:
        """Sends the strongest crop of some channels, which the page is about to show."""
        found, statistics, layer = self._survey, self._statistics, self.layer
        if found is None or statistics is None:
            return
        some = [int(text) for text in channels[:_MOST_THUMBNAILS] if text.isdecimal()]
        some = [channel for channel in some if channel < len(statistics.count)]

        def task(_cancelled: Cancelled) -> None:
            hits = [found.top(layer, channel, 1) for channel in some]
            pictures = [_crop(hit[0], _THUMBNAIL) if hit else b"" for hit in hits]
            message = {"type": "thumbnails", "layer": layer, "channels": some}
            self.send(message, buffers=pictures)

        self.reader.later(("thumbnails", *some), task)

    # ── surveying

    def _start(self, images: str, folder: str = "", batch: int = 32) -> None:
        """Starts a survey of the ticked layers; the same folders again go on with it."""
        self.clear_problem()
        try:
            if self.why_not:
                raise SurveyError(self.why_not)
            if not 1 <= batch <= _MOST_AT_A_TIME:
                raise SurveyError(f"{batch} images at a time: it can be 1 to {_MOST_AT_A_TIME}.")
            data = typed_folder(images, "the folder of images")
            out = Path(_FOLDER, data.name or "images")
            if folder.strip():
                out = typed_folder(folder, "the survey's folder")
        except HookvizError as error:
            self.show_problem(error, field="images")
            return
        self._begin(data, list(self.app.tree.selected), out, batch=batch)

    def _go_on(self, more: bool = False) -> None:
        """Goes on with the survey that is shown, its own layers; with new images if wanted."""
        found = self._survey
        if found is None or self.app.model is None or found.facts["data"] != "files":
            raise SurveyError("There is no survey of files to go on with.")
        self.clear_problem()
        self._begin(Path(found.facts["root"]), found.facts["layers"], found.folder, more=more)

    def _act(self, do: str) -> None:
        if do == "more-images":
            self._go_on(more=True)

    def _begin(
        self, data: Path, layers: list[str], out: Path, *, batch: int = 32, more: bool = False
    ) -> None:
        app = self.app
        task = partial(
            self._make, app.model, data, layers, out, app.image_input.preprocessing, batch, more
        )
        with app.lock:
            if not app.begin("running", f"Surveying {data.name} …", task):
                raise HookvizError("Something else is going on: wait for it, or cancel it.")
            self.progress = "Reading the first images …"

    def _make(
        self,
        model: LoadedModel,
        data: Path,
        layers: list[str],
        out: Path,
        how: Any,
        batch: int,
        more: bool,
        cancelled: Cancelled,
    ) -> None:
        """Surveys, on the app's thread."""
        app = self.app

        def progress(now: SurveyProgress) -> None:
            left = "" if now.seconds_left is None else f", {time_text(now.seconds_left)} left"
            bad = f", {now.bad} could not be read" if now.bad else ""
            speed = f"{now.images_per_second:.3g} images per second"
            self.progress = (
                f"{now.images_done} of {now.images} images are done and kept{bad}; {speed}{left}."
            )
            shown: dict[str, Any] = {"done": now.images_done, "total": now.images, "unit": "images"}
            app.set_status(f"Surveying {data.name} …", **shown)

        options: dict[str, Any] = {"shard": _SHARD, "batch": batch}
        try:
            if (out / "manifest.json").exists():
                begun = open_survey(out).facts
                options = {name: begun[name] for name in _KEPT}
            # No worker processes. Forked off a kernel, they may wait for ever for a lock that
            # another of its threads held; started afresh, they would import the program that is
            # the host's (a script without a guard runs again, a preprocessing from a cell is not
            # there).
            found = run_survey(
                model, data, layers, out, preprocess=how, workers=0, extend=more,
                progress=progress, cancelled=cancelled, **options,
            )  # fmt: skip
        except RunCancelled:
            app.end("Cancelled: what is done is kept.", "cancelled")
        except (HookvizError, OSError) as error:
            self.show_problem(error, field="images")
            app.end("The survey ended early.", "failed")
        else:
            app.end(f"{found.statistics(found.layers[0]).images} images are surveyed.")
        finally:
            self.progress = ""
        self.reader.later("open", partial(self._open_made, out))

    def _open_made(self, out: Path, _cancelled: Cancelled) -> None:
        """Shows what there is of a survey that has ended, however it did."""
        alert = self.alert
        if any((out / "shards").glob("*.safetensors")):
            self.show(out)
            self.alert = alert

    # ── a crop as the app's image

    def _show_crop(self, rank: int) -> None:
        """Makes the image of a crop the app's, and has its channel opened there."""
        found = self._survey
        hit = next((hit for hit in self._hits if hit.rank == rank), None)
        if found is None or hit is None:
            raise HookvizError(f"There is no crop {rank}.")
        if self.app.jobs.busy:
            raise HookvizError("Something else is going on: wait for it, or cancel it.")
        layer, channel = self.layer, int(self.channel["channel"])

        def task(_cancelled: Cancelled) -> None:
            try:
                picture = found.picture(hit.image)
            except HookvizError as error:
                self.show_problem(error, field="crop")
                return
            self._take_picture(found, layer, channel, hit, picture)

        self.alert = {}
        self.reader.later("picture", task)

    def _take_picture(
        self, found: Survey, layer: str, channel: int, hit: Hit, picture: Picture
    ) -> None:
        app, facts = self.app, found.facts
        model: LoadedModel | None = app.model
        same = model is not None and model.weights_hash == facts["weights_hash"]
        with app.lock:
            self.said = f"{hit.name} is the app's image."
            layout = facts["layouts"][found.layers.index(layer)]
            if not same or layout["layer"] not in app.tree.names:
                app.image = picture
                self.said += (
                    f" The survey is of another model ({facts['model']}): choose that one to see"
                    " the channel."
                )
                return
            place = map_place(layout, hit.place)
            if not app.image_input.choose(facts["preprocessing"]):
                place = None
                self.said += " The survey prepared it otherwise, so its values differ."
            if app.edits:
                self.said += " Runs are made with the edits of What if, so values may differ."
            app.image = picture
            key = card_key(layout["layer"], layout["call"])
            app.tree.hidden_calls = [one for one in app.tree.hidden_calls if one != key]
            app.tree.selected = [*app.tree.selected, layout["layer"]]
            self._wanted = _ToOpen(picture, key, layout["leaf"], channel, place)
            app.start_run()

    def _open_wanted(self) -> None:
        """Opens the channel that is waited for, where its run is there."""
        app, wanted = self.app, self._wanted
        if wanted is None:
            return
        if app.image is not wanted.picture:
            self._wanted = None  # another one was chosen meanwhile
            return
        card = app.gallery.card(wanted.key)
        found = None if card is None else app.results.get(card.layer)
        if card is None or found is None or found.run is None:
            return
        if found.run.image is not wanted.picture or wanted.leaf not in card.leaves:
            return
        self._wanted = None
        app.gallery.choose_leaf(wanted.key, wanted.leaf)
        with self.showing_problems():
            app.pointing.open(wanted.key, wanted.channel)
            if wanted.place is not None:
                app.pointing.pin(wanted.key, wanted.channel, *wanted.place)

    # ── a figure

    def _export(self, form: str = "png") -> None:
        """Offers the browser the channel's figure."""
        found, layer, channel = self._survey, self.layer, self.channel.get("channel")
        if found is None or channel is None:
            raise HookvizError("Choose a channel first.")
        if form not in _FORMATS:
            raise HookvizError(f"A figure cannot be saved as {form!r:.20}.")
        name = f"{layer or 'model'} channel {channel}.{form}".replace("/", "_")

        def task(_cancelled: Cancelled) -> None:
            figure = found.figure(layer, channel)
            self.app.exporting.offer(
                name, "Made a figure of {}.", lambda file: figure.savefig(file, format=form)
            )

        if not self.app.begin("exporting", "Drawing the figure …", task):
            raise HookvizError("Something else is going on: wait for it, or cancel it.")

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "open": self._open,
            "layer": self._choose_layer,
            "sort": self._sort,
            "dead": self._put_dead,
            "more": self._show_more,
            "channel": self._choose_channel,
            "crops": self._send_crops,
            "thumbnails": self._send_thumbnails,
            "survey": self._start,
            "go-on": self._go_on,
            "action": self._act,
            "cancel": self.app.cancel,
            "show": self._show_crop,
            "export": self._export,
        }


_KEPT = ("batch", "shard", "top", "keep", "dtype")
"""What has to be as it was when a survey goes on."""


def typed_folder(text: str, what: str) -> Path:
    """A folder that was typed: below the kernel's working directory, or a whole path.

    Args:
        text: What was typed.
        what: What it is, for the sentence.

    Raises:
        SurveyError: Nothing was typed, or the path leads out of the working directory.

    Examples:
        >>> typed_folder(" my survey ", "the survey's folder").as_posix()
        'my survey'
    """
    plain = text.strip()
    if not plain:
        raise SurveyError(f"Type the path of {what}.")
    try:
        path = Path(plain).expanduser()
    except RuntimeError as error:
        raise SurveyError(f"There is no path {plain!r:.200}: {error}.") from error
    if not path.is_absolute() and ".." in path.parts:
        raise SurveyError(
            f"{plain!r:.200} leads out of the folder that the notebook runs in.",
            remedy="Type the whole path, from / on.",
        )
    return path


def channel_order(
    statistics: LayerStatistics, by: str, *, falling: bool = True, dead_first: bool = False
) -> NDArray[np.int64]:
    """The channels of a layer in an order; equal ones by number, those without a value last.

    Args:
        statistics: The layer's numbers.
        by: "mean", "max", "zeros" (their share) or "channel".
        falling: Whether the largest comes first.
        dead_first: Whether dead channels come before all others, not after them.

    Returns:
        (C,) numbers of channels.
    """
    values: NDArray[Any] = {
        "mean": statistics.mean,
        "max": statistics.max,
        "zeros": statistics.zero_share,
        "channel": np.arange(len(statistics.count)),
    }[by]
    keys = -values if falling else values
    dead = ~statistics.dead if dead_first else statistics.dead
    order: NDArray[np.int64] = np.lexsort((keys, dead, statistics.count == 0))
    return order


def map_place(layout: dict[str, Any], place: tuple[int, ...]) -> tuple[int, int] | None:
    """Row and column at which a place is shown; None where it is none of a map.

    Args:
        layout: Of the layer, from the manifest.
        place: As `hookviz.surveys.Hit` has it.

    Examples:
        >>> map_place({"axes": "NTC", "grid": [14, 14], "apart": 1}, (16,))
        (1, 1)
    """
    if layout["axes"] in ("NCHW", "NHWC"):
        return place[0], place[1]
    grid = layout["grid"]
    if grid and len(place) == 1:
        row, column = divmod(place[0] - layout["apart"], grid[1])
        if 0 <= row < grid[0]:
            return row, column
    return None


def _channel_facts(
    found: Survey, statistics: LayerStatistics, channel: int, hits: tuple[Hit, ...]
) -> dict[str, Any]:
    """A channel as the page describes it."""
    counts, edges = statistics.equal_bins(channel, _BINS)

    def where(image: int, place: NDArray[np.int64]) -> str:
        if image < 0:
            return ""
        return ", ".join(filter(None, (found.images[image].name, place_text(tuple(place)))))

    odd = ((statistics.nan, "NaN"), (statistics.posinf, "+Inf"), (statistics.neginf, "−Inf"))
    files = found.facts["data"] in ("files", "tar files", "parquet files")
    numbers = [
        ["Mean", value(statistics.mean[channel]), ""],
        ["Standard deviation", value(statistics.std[channel]), ""],
        [
            "Largest", value(statistics.max[channel]),
            where(int(statistics.max_image[channel]), statistics.max_place[channel]),
        ],
        [
            "Smallest", value(statistics.min[channel]),
            where(int(statistics.min_image[channel]), statistics.min_place[channel]),
        ],
        ["Zeros", _percent(statistics.zero_share[channel]), ""],
        ["Values", f"{statistics.count[channel]:,}", f"in {statistics.images} images"],
        *(["Not finite", f"{kind[channel]:,}", word] for kind, word in odd if kind[channel]),
    ]  # fmt: skip
    return {
        "channel": channel,
        "numbers": numbers,
        "dead": bool(statistics.dead[channel]),
        "counts": np.rint(counts).astype(int).tolist(),
        "ends": edges[[0, -1]].tolist() if len(edges) else [],
        "hits": [
            {
                "rank": hit.rank,
                "value": value(hit.value, 4),
                "place": place_text(hit.place),
                "name": hit.name,
                "label": hit.label,
                "shows": hit.shows,
                "openable": files,
            }
            for hit in hits
        ],
    }


def place_text(place: tuple[int, ...]) -> str:
    """A place in words.

    Examples:
        >>> place_text((3, 9)), place_text((16,)), place_text(())
        ('y 3, x 9', 'place 16', '')
    """
    if len(place) == 2:
        return f"y {place[0]}, x {place[1]}"
    return f"place {', '.join(map(str, place))}" if place else ""


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.1f} %"


def _crop(hit: Hit, longest: int | None = None) -> bytes:
    """A crop for the page; b"" where there is none."""
    crop = hit.crop
    return b"" if crop is None else jpeg_bytes(crop, longest)
