"""The panel "Live": a camera, a video or an animation, frame by frame through the model.

The page sends one frame at a time, each with a number ``seq``, and waits for the answer to it: the
maps of the ticked layers as levels, one byte each, and a table of colors. A frame that comes while
another one is under way takes the place of the one that waits.

Where JupyterLab runs handlers on a thread of their own (a subshell), the work is done in the
handler: the answer then follows the frame on the same thread, also while a cell runs. Elsewhere a
handler would block the cells, so that a thread of the panel's own works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import traitlets
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import HookvizError, ImageError, RenderError
from hookviz.export import FrameExport
from hookviz.images import ANIMATED, Frames, Picture, frames_in, read_image, sample_frames
from hookviz.models import LoadedModel
from hookviz.run import Run, run_model
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built
from hookviz.widget._cards import card_key
from hookviz.widget._live_tiles import LiveTiles
from hookviz.widget._painting import Origin, draw_card
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import look_of, png_bytes
from hookviz.widget._running import explained, origin_of
from hookviz.widget._worker import Cancelled, Worker

HOLDS = (
    ("none", "of each frame"),
    ("running", "the widest so far"),
    ("fixed", "of the first frame"),
)
FORMS = (("files", "PNGs"), ("apng", "animated PNG"), ("webp", "animated WebP"), ("gif", "GIF"))
MOST_RECORDED = 2000
_LARGEST = 2048  # pixels of a side that a page may send
_SHORT = 256  # pixels of the shorter side that a page sends at least
_FIGURE_EVERY = 1.0  # seconds
_FIGURE_REST = 0.25  # seconds without another frame before a figure is drawn
_PATIENCE = 0.1  # seconds that a frame waits for its turn
_PREVIEW = 320
_WIDEST = 1200


@dataclass(frozen=True)
class _Frame:
    """One frame that the page asks for.

    Attributes:
        seq: The page's number for it, which its answer carries.
        read: Gives the picture.
        paused: Whether the source stands still at it.
        clip: Whether it is one of the kernel's own frames, which the page does not have.
    """

    seq: int
    read: Callable[[], Picture]
    paused: bool
    clip: bool = False


class LiveView(Panel):
    """Runs the model on frames as they come and shows the ticked layers' maps.

    Attributes:
        why_not: Why there can be no frames now, in words; "" where there can.
        clip: The animation in use: ``name`` and ``count`` of its frames; {} for none.
        side: Pixels of the shorter side that the page is to send, as the model's input needs.
        hold: How the scale is held over frames: see `hookviz.render.HeldScales`.
        holds: The choices for that, with their texts.
        forms: The forms of recordings, with their texts.
        recording: The recording: how many are ``done`` of ``total``, and once it has ended the
            ``path`` of its folder and the number of ``files``; {} for none.
    """

    title = "Live"

    _esm = built("panel_live.min.js")
    _css = built("panel_live.min.css")

    why_not = traitlets.Unicode().tag(sync=True)
    clip = traitlets.Dict().tag(sync=True)
    side = traitlets.Int(_SHORT).tag(sync=True)
    hold = traitlets.Unicode("none").tag(sync=True)
    holds: traitlets.List[Any] = traitlets.List().tag(sync=True)
    forms: traitlets.List[Any] = traitlets.List().tag(sync=True)
    recording = traitlets.Dict().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._worker = Worker("hookviz-live", self.show_problem)
        self._turn = threading.Lock()
        self._waiting: _Frame | None = None
        self._stops = 0  # sources that have ended: what is under way of them comes too late
        self._tiles = LiveTiles()
        self._run: Run | None = None
        self._frames: Frames | None = None
        self._frames_of: Picture | None = None
        self._export: FrameExport | None = None
        self._begun = self._drawn_at = 0.0
        self._look: dict[str, Any] = {}
        super().__init__(
            app, holds=[list(c) for c in HOLDS], forms=[list(f) for f in FORMS], **traits
        )

    def refresh(self) -> None:
        """See `Panel`."""
        app = self.app
        self.why_not = (
            "Choose a model."
            if app.model is None
            else ("" if app.tree.selected else "Tick at least one layer.")
        )
        how = app.image_input.preprocessing
        sides = [*(how.crop or ()), *_numbers(getattr(how, "resize", None))]
        self.side = max(_SHORT, min(_LARGEST, max(sides, default=0)))
        picture: Picture | None = app.image
        if picture is not self._frames_of:
            self._frames_of = picture
            if picture is not None and picture.number is not None:
                return  # a frozen frame leaves the clip that it is of
            self._frames = None
            self.clip = {}
            if picture is not None and picture.format in ANIMATED:
                self._worker.later("clip", partial(self._open_clip, picture))

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until what the page sent is answered."""
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        self._worker.close()
        super().close()
        self._stop_recording()
        self._waiting = self._run = self._frames = self._frames_of = None
        self._tiles, self.clip, self.recording = LiveTiles(), {}, {}

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        self._worker.reopen()
        super().open()

    @property
    def run(self) -> Run | None:
        """The run of the last frame; None where there was none since the source began."""
        return self._run

    # ── frames

    def _take_frame(
        self,
        seq: int,
        width: int,
        height: int,
        buffers: Any,
        name: str = "camera",
        number: int = 0,
        seconds: float = 0.0,
        png: bool = False,
        paused: bool = False,
    ) -> None:
        """A frame's pixels: raw RGB, or a PNG."""
        if not (1 <= width <= _LARGEST and 1 <= height <= _LARGEST):
            raise ImageError(f"The page sent a frame of {width}×{height} pixels.")
        data = buffers[0] if buffers else b""
        if not png and len(data) != 3 * width * height:
            raise ImageError(f"The page sent {len(data)} bytes for {width}×{height} pixels.")
        number, seconds = max(0, number), max(0.0, seconds)

        def read() -> Picture:
            source: Any = data
            if not png:
                source = Image.frombytes("RGB", (width, height), data)
            picture = read_image(source, name=f"{name or 'camera'} frame {number}")
            if picture.size != (width, height):
                raise ImageError(f"The page sent a frame that is not {width}×{height} pixels.")
            return replace(picture, number=number, seconds=seconds, data=b"")

        self._put(_Frame(seq, read, paused))

    def _take_clip_frame(self, seq: int, number: int, paused: bool = False) -> None:
        """The number of a frame of the animation in use."""
        frames = self._frames
        if frames is None:
            raise HookvizError("There is no animation. Drop a GIF, WebP, PNG or AVIF of frames.")
        if not 0 <= number < len(frames):
            raise HookvizError(f"Frame {number} was asked for; there are 0 to {len(frames) - 1}.")
        self._put(_Frame(seq, partial(frames.__getitem__, number), paused, clip=True))

    def _put(self, frame: _Frame) -> None:
        self._waiting = frame
        self._worker.forget("figure")
        if threading.current_thread() is threading.main_thread():
            self._worker.later("frame", self._work)
        else:
            self._work()

    def _work(self, _cancelled: Cancelled | None = None) -> None:
        """Answers the frame that waits, and those that come meanwhile."""
        while self._waiting is not None and self._turn.acquire(blocking=False):
            try:
                frame, self._waiting = self._waiting, None
                if frame is not None:
                    self._answer_frame(frame)
            finally:
                self._turn.release()

    def _answer_frame(self, frame: _Frame) -> None:
        begin = time.perf_counter()
        app = self.app
        with app.lock:
            model: LoadedModel | None = app.model
            layers, hidden = list(app.tree.selected), set(app.tree.hidden_calls)
            stops = self._stops
            how, view = app.image_input.preprocessing, app.gallery.options
        if model is None or not layers:
            self.send({"type": "failed", "seq": frame.seq, "text": self.why_not})
            return
        # Edits act in all threads: beside What if's answer a frame would be of the edited model.
        if app.jobs.busy or not app.jobs.turn.acquire(timeout=_PATIENCE):
            self.send({"type": "busy", "seq": frame.seq})
            return
        try:
            picture = frame.read()
            run = run_model(model, picture, layers, preprocess=how, keep_partial=True)
            if run.error is not None:
                raise explained(run, run.error, None)
        except Exception as error:  # noqa: BLE001 - shown; the page does not wait for ever
            self.show_problem(error)
            self.send({"type": "failed", "seq": frame.seq, "text": ""})
            return
        finally:
            app.jobs.turn.release()
        shown = [
            a
            for a in run.activations
            if a.kind == "output" and card_key(a.layer, a.call) not in hidden
        ]
        view = view.replace(style=self._look.get("style", view.style))
        cards, buffers = self._tiles.cards(run, shown, view)
        message: dict[str, Any] = {
            "type": "tiles",
            "seq": frame.seq,
            "cards": cards,
            "style": view.style,
            "name": picture.name,
            "number": picture.number,
            "at": picture.seconds,
            "size": list(picture.size),
            "missing": [f"{layer}: {why}" for layer, why in run.missing.items()],
        }
        if frame.clip and self._frames is not None and picture.number is not None:
            message["lasts"] = self._frames.seconds(picture.number)
            message["preview"] = len(buffers)
            buffers.append(_preview(picture.image))
        message["milliseconds"] = 1000 * (time.perf_counter() - begin)
        self.send(message, buffers=buffers)
        with app.lock:
            if app.model is not model or self._stops != stops:
                return
            self._run = run
            app.show_predictions(run)
            app.explaining.follow(run)
        self._record_frame(run, shown)
        if frame.paused:
            delay = max(_FIGURE_REST, self._drawn_at + _FIGURE_EVERY - time.monotonic())
            self._worker.later("figure", partial(self._draw, frame.seq, run, shown), delay)

    # ── its figures

    def _draw(self, seq: int, run: Run, shown: list[Activation], cancelled: Cancelled) -> None:
        """Draws the figures of a frame at which the source stands."""
        self._drawn_at = time.monotonic()
        origin: Origin = origin_of(run.model, run.image, run.input)
        keys, pictures = [], []
        for activation in shown:
            if cancelled() or self._waiting is not None:
                return
            options = self._tiles.options.get(activation.label, self.app.gallery.options)
            try:
                drawing, _ = draw_card(activation, options.replace(**self._look), origin)
            except RenderError:
                continue
            keys.append(card_key(activation.layer, activation.call) + activation.leaf)
            pictures.append(drawing.png_bytes())
        ratio = self._look.get("dpi", 100.0) / 100
        self.send({"type": "figures", "seq": seq, "keys": keys, "ratio": ratio}, buffers=pictures)

    # ── the animation in use

    def _open_clip(self, picture: Picture, _cancelled: Cancelled) -> None:
        with self.showing_problems():
            frames = frames_in(picture)
            if frames is not None and self.app.image is picture:
                self._show_clip(frames)

    def _show_clip(self, frames: Frames) -> None:
        self._frames = frames
        self.clip = {"name": frames.name, "count": len(frames)}

    # ── what the page asks

    def _take_sample(self) -> None:
        """Takes the clip that ships with hookviz as the animation in use."""
        self._show_clip(sample_frames())

    def _change_hold(self, how: str) -> None:
        self._tiles, self.hold = LiveTiles(how), how

    def _freeze(self) -> None:
        """Makes the last frame the app's image, with what the model gave for it."""
        run = self._run
        if run is None:
            raise HookvizError("There is no frame to freeze yet.")
        self._waiting = None
        self.app.clear_problem()
        self.app.run = run
        self.app.send({"type": "show-tab", "tab": "gallery"})

    def _stop(self) -> None:
        """The page's source has ended."""
        self._waiting = None
        self._worker.forget("figure")
        self._stop_recording()
        with self.app.lock:
            self._stops += 1
            last, self._run = self._run, None
            if last is not None and self.app.run is not last:
                self._tiles = LiveTiles(self.hold)
                self.app.show_predictions(None if self.app.results.stale else self.app.run)
            self.app.explaining.follow(None)

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        self._look = look_of(width, ratio, style, _WIDEST)

    # ── recording

    def _record(self, frames: int, form: str = "files", folder: str = "") -> None:
        """Keeps the grids of the next frames."""
        if not 1 <= frames <= MOST_RECORDED:
            raise HookvizError(f"{frames} frames were asked for; legal are 1 to {MOST_RECORDED:,}.")
        target = Path(folder.strip() or "hookviz_exports").expanduser()
        options = self.app.gallery.options.replace(page=0)
        export = FrameExport(target, options=options, form=form, all_pages=False)  # type: ignore[arg-type]  # refuses another word
        self._stop_recording()
        self.app.clear_problem()
        with self.app.lock:
            self._export, self._begun = export, time.monotonic()
            self.recording = {"done": 0, "total": frames}

    def _record_frame(self, run: Run, shown: list[Activation]) -> None:
        export, total = self._export, int(self.recording.get("total", 0))
        if export is None:
            return
        seconds = time.monotonic() - self._begun
        with self.showing_problems():
            try:
                # Files are light, as every export is; the rest is as shown.
                own = {name: o.replace(style="light") for name, o in self._tiles.options.items()}
                export.add(run.facts, shown, number=export.count, seconds=seconds, own_options=own)
            except BaseException:
                self._export, self.recording = None, {}
                raise
            self.recording = {"done": export.count, "total": total}
            if export.count >= total:
                self._stop_recording()

    def _stop_recording(self) -> None:
        export, self._export = self._export, None
        if export is None:
            return
        total = int(self.recording.get("total", 0))
        self.recording = {}
        if export.count:
            short = f"Stopped after {export.count} of {total} frames."
            with self.showing_problems():
                result = export.finish("" if export.count >= total else short)
                path, files = str(result.folder), len(result.files)
                self.recording = {"done": export.count, "total": total} | {
                    "path": path, "files": files
                }  # fmt: skip

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "frame": self._take_frame,
            "clip-frame": self._take_clip_frame,
            "sample-clip": self._take_sample,
            "hold": self._change_hold,
            "freeze": self._freeze,
            "stop": self._stop,
            "record": self._record,
            "record-stop": self._stop_recording,
            "look": self._take_look,
        }


def _numbers(size: Any) -> tuple[int, ...]:
    """The sides that a resize names: one number, or two."""
    return (size,) if isinstance(size, int) else tuple(size or ())


def _preview(image: Image.Image) -> bytes:
    small = image.copy()
    small.thumbnail((_PREVIEW, _PREVIEW))
    return png_bytes(small)
