"""The panel Live: a frame gives what Python gives, and each has one answer, whatever comes."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hookviz
from hookviz.capture import edit, zero_channels
from hookviz.export import read_png_facts
from hookviz.models import LoadedModel
from hookviz.render import GridOptions, Subject, color_table
from hookviz.widget import Explorer, explore


def frame(shade: int = 0, size: tuple[int, int] = (40, 30)) -> np.ndarray:
    """(H, W, 3) uint8, as a page sends it."""
    pixels = np.full((size[1], size[0], 3), 255, np.uint8)
    pixels[..., 0] = np.arange(size[0]) * 5
    pixels[..., 1] = 40 * shade
    pixels[8:20, 5 + shade : 15 + shade, 2] = 10
    return pixels


@pytest.fixture
def ready(model: LoadedModel, make_page: Any) -> Iterator[tuple[Explorer, Any, Any]]:
    app = explore(model, layers=["conv", "deep.0"])
    panel = next(part for part in app.parts if type(part).__name__ == "LiveView")
    yield app, panel, make_page(panel)
    app.close()


def show(page: Any, seq: int, pixels: np.ndarray, **more: Any) -> None:
    height, width = pixels.shape[:2]
    page.say("frame", pixels.tobytes(), seq=seq, width=width, height=height, **more)
    assert page.widget.wait(30)


def clip(count: int = 5) -> bytes:
    file = io.BytesIO()
    first, *others = (Image.fromarray(frame(n)) for n in range(count))
    first.save(file, "WEBP", save_all=True, append_images=others, duration=70, lossless=True)
    return file.getvalue()


def test_a_frame_gives_the_levels_and_predictions_that_python_gives(ready: Any) -> None:
    app, panel, page = ready
    for seq in (1, 2, 3):
        show(page, seq, frame(seq), number=seq, seconds=seq / 20, name="camera")
        message, buffers = page.last("tiles")
        image = Image.fromarray(frame(seq))
        run = hookviz.feature_maps(app.model, image, ["conv", "deep.0"])
        assert message["seq"] == seq
        assert (message["name"], message["number"]) == (f"camera frame {seq}", seq)
        assert [card["label"] for card in message["cards"]] == ["conv", "deep.0"]
        for card, activation in zip(message["cards"], run.activations, strict=True):
            subject = Subject(activation, GridOptions())
            low, high = subject.scaling.ends
            values = activation.tensor[0].double().numpy()
            share = np.clip((values - low) / (high - low), 0, 1)
            assert card["scale"] == subject.scaling.sentence
            levels = np.frombuffer(buffers[card["levels"]], np.uint8).reshape(card["tiles"])
            assert levels.shape == values.shape
            assert np.abs(levels - 255 * share).max() <= 0.501
            beyond = values > high + (high - low) * 1e-5
            flags = np.zeros(levels.shape, np.uint8)
            if "flags" in card:
                places = np.frombuffer(buffers[card["flagged"]], "<u4")
                flags.ravel()[places] = np.frombuffer(buffers[card["flags"]], np.uint8)
            assert np.array_equal(flags == 2, beyond)
            table = color_table("RdBu_r" if low < 0 else "viridis")
            assert buffers[card["colors"]][:768] == table.rgb.tobytes()
        assert app.predictions["items"] == [
            [label, share] for _, label, share in run.predictions.items
        ]
    assert panel.run.image.number == 3


def test_a_png_is_the_same_frame_as_raw_pixels(ready: Any) -> None:
    _, _, page = ready
    show(page, 1, frame(3))
    raw = page.last("tiles")
    file = io.BytesIO()
    Image.fromarray(frame(3)).save(file, "PNG")
    page.say("frame", file.getvalue(), seq=2, width=40, height=30, png=True)
    assert page.widget.wait(30)
    assert page.last("tiles")[1] == raw[1]


def test_no_frame_is_of_an_edited_model(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _, page = ready
    show(page, 1, frame(1))
    true = page.last("tiles")[1]
    edited, go_on = threading.Event(), threading.Event()
    what_if = sys.modules[type(app.what_if).__module__]
    answer = what_if._answer

    def slow(model: LoadedModel, *rest: Any) -> Any:
        with edit(model.module, zero_channels("conv", [0, 1, 2])):
            edited.set()
            assert go_on.wait(30)
        return answer(model, *rest)

    monkeypatch.setattr(what_if, "_answer", slow)
    app.image = hookviz.sample_image("chelsea.png")
    app.what_if._add("zero", "conv", channels="0")
    assert edited.wait(30)
    page.say("frame", frame(1).tobytes(), seq=2, width=40, height=30)
    assert page.widget.wait(30)
    assert page.types()[-1] == "busy"
    go_on.set()
    assert app.wait(30)
    show(page, 3, frame(1))
    assert page.last("tiles")[1] == true


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"width": 40, "height": 31}, "sent 3600 bytes for 40×31 pixels"),
        ({"width": 0, "height": 30}, "a frame of 0×30 pixels"),
        ({"width": 4000, "height": 30}, "a frame of 4000×30 pixels"),
        ({"width": "40", "height": 30}, "sent width='40'; it must be a whole number"),
    ],
)
def test_a_frame_that_is_none_is_one_sentence_and_the_next_one_is_answered(
    ready: Any, content: dict[str, Any], words: str
) -> None:
    app, _, page = ready
    page.say("frame", frame().tobytes(), seq=1, **content)
    assert page.widget.wait(30)
    assert words in app.alert["message"]
    show(page, 2, frame())
    assert page.last("tiles")[0]["seq"] == 2


@contextlib.contextmanager
def under_way(page: Any, number: int, seq: int) -> Iterator[None]:
    """A frame that the model has begun with; it is answered at the end of the block."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        begun.set()
        go_on.wait(20)

    handle = page.widget.app.model.module.conv.register_forward_pre_hook(hold)
    page.say("frame", frame(number).tobytes(), seq=seq, width=40, height=30)
    assert begun.wait(20)
    try:
        yield
    finally:
        go_on.set()
        handle.remove()
    assert page.widget.wait(30)


def test_of_frames_that_come_meanwhile_the_newest_alone_is_answered(ready: Any) -> None:
    _, _, page = ready
    with under_way(page, 0, seq=1):
        for seq in (2, 3, 4):
            page.say("frame", frame(seq).tobytes(), seq=seq, width=40, height=30)
    assert [m["seq"] for m, _ in page.heard if m["type"] == "tiles"] == [1, 4]


def test_on_a_thread_that_is_not_the_main_one_the_handler_itself_answers(ready: Any) -> None:
    _, _, page = ready
    threads: list[str] = []
    page.widget.app.model.module.conv.register_forward_pre_hook(
        lambda *_: threads.append(threading.current_thread().name)
    )

    def subshell() -> None:
        page.say("frame", frame().tobytes(), seq=1, width=40, height=30)
        assert page.last("tiles")[0]["seq"] == 1

    thread = threading.Thread(target=subshell, name="a subshell")
    thread.start()
    thread.join()
    assert threads
    assert set(threads) == {"a subshell"}


def test_a_forward_that_fails_says_so_and_the_page_is_told(ready: Any) -> None:
    app, _, page = ready

    def fail(*_: Any) -> None:
        raise ValueError("no such luck")

    handle = app.model.module.deep.register_forward_pre_hook(fail)
    show(page, 1, frame())
    handle.remove()
    assert page.last("failed")[0]["seq"] == 1
    assert "no such luck" in app.alert["message"]
    show(page, 2, frame())
    assert page.last("tiles")[0]["seq"] == 2


def test_while_a_job_is_going_the_page_is_told_to_come_again(ready: Any) -> None:
    app, _, page = ready
    go_on = threading.Event()
    assert app.begin("running", "…", lambda _cancelled: go_on.wait(20))
    show(page, 1, frame())
    assert page.types()[-1] == "busy"
    go_on.set()
    assert app.jobs.wait(20)
    show(page, 2, frame())
    assert page.last("tiles")[0]["seq"] == 2


def test_freezing_makes_the_frame_the_image_of_all_panels_and_exports(
    ready: Any, tmp_path: Path
) -> None:
    app, panel, page = ready
    page.say("freeze")
    assert "no frame to freeze" in app.alert["message"]
    show(page, 1, frame(2), number=7)
    live = panel.run
    page.say("freeze")
    page.say("stop")
    assert app.wait(30)
    assert app.alert == {}
    assert app.run is live
    assert app.image is live.image is app.image_input.value
    assert np.array_equal(np.asarray(app.image.image), frame(2))
    assert (app.image.name, app.image.number) == ("camera frame 7", 7)
    assert list(app.figures) == ["conv", "deep.0"]
    assert app.predictions["items"]
    result = app.export(tmp_path, what={"grids"})
    grid = next(p for p in result.files if "conv" in p.name)
    again = hookviz.reproduce(grid, app.model, hookviz.read_image(app.image, name="camera frame 7"))
    assert again.identical, again.differences


def test_stopping_puts_the_predictions_of_the_last_run_back(model: LoadedModel, make_page: Any):
    app = explore(model, hookviz.sample_image(), ["conv"])
    panel = next(part for part in app.parts if type(part).__name__ == "LiveView")
    assert app.wait(30)
    before = app.predictions
    page = make_page(panel)
    show(page, 1, frame())
    assert app.predictions != before
    page.say("stop")
    assert app.predictions == before
    assert panel.run is None
    app.close()


@pytest.mark.parametrize("end", ["stop", "freeze"])
def test_a_frame_that_is_under_way_when_its_source_ends_changes_nothing(
    ready: Any, end: str
) -> None:
    app, panel, page = ready
    show(page, 1, frame(1))
    with under_way(page, 3, seq=2):
        if end == "freeze":
            page.say("freeze")
        page.say("stop")
        before = app.predictions
    assert panel.run is None
    assert app.predictions == before
    assert bool(before) == (end == "freeze")


def test_an_animation_is_gone_through_by_number_as_pillow_composes_it(ready: Any) -> None:
    app, panel, page = ready
    app.image = clip()
    assert app.wait(30)
    assert panel.wait(30)
    assert panel.clip == {"name": "image", "count": 5}
    for seq, number in enumerate((0, 3, 1, 4), 1):
        page.say("clip-frame", seq=seq, number=number)
        assert panel.wait(30)
        message, buffers = page.last("tiles")
        assert (message["seq"], message["number"]) == (seq, number)
        assert message["lasts"] == pytest.approx(0.07)
        shown = Image.open(io.BytesIO(buffers[message["preview"]]))
        assert np.array_equal(np.asarray(shown.convert("RGB")), frame(number))
        assert np.array_equal(np.asarray(panel.run.image.image), frame(number))
    page.say("clip-frame", seq=9, number=5)
    assert "Frame 5 was asked for; there are 0 to 4." in app.alert["message"]
    page.say("freeze")
    assert app.image.number == 4
    assert panel.clip["count"] == 5  # its other frames are still there
    app.image = Image.new("RGB", (20, 20))
    assert panel.clip == {}
    page.say("clip-frame", seq=10, number=0)
    assert "no animation" in app.alert["message"]


def test_the_sample_clip_serves_where_there_is_no_camera(ready: Any) -> None:
    _, panel, page = ready
    page.say("sample-clip")
    assert panel.clip == {"name": "clip.webp", "count": 36}
    page.say("clip-frame", seq=1, number=20)
    assert panel.wait(30)
    assert page.last("tiles")[0]["size"] == [192, 144]


def test_figures_come_where_the_source_stands_and_not_while_it_runs(ready: Any) -> None:
    _, panel, page = ready
    page.say("look", width=500, ratio=2, style="dark")
    show(page, 1, frame())
    assert "figures" not in page.types()
    show(page, 2, frame(), paused=True)
    until_drawn(panel, page)
    message, pictures = page.last("figures")
    assert (message["seq"], message["keys"]) == (2, ["conv#1", "deep.0#1"])
    with Image.open(io.BytesIO(pictures[0])) as figure:
        assert figure.width == 500
    assert page.types().count("figures") == 1


def test_colors_are_those_of_the_theme_and_recordings_are_light(ready: Any, tmp_path: Path) -> None:
    _, panel, page = ready
    page.say("look", width=500, ratio=1, style="dark")
    page.say("record", frames=1, folder=str(tmp_path))
    show(page, 1, frame())
    message, buffers = page.last("tiles")
    card = message["cards"][0]
    assert buffers[card["colors"]][:768] == color_table("hookviz_dark").rgb.tobytes()
    (grid, *_) = sorted(Path(panel.recording["path"]).glob("*.png"))
    assert read_png_facts(grid)["style"] == "light"
    assert read_png_facts(grid)["cmap"] == "RdBu_r"


def until_drawn(panel: Any, page: Any) -> None:
    """Waits for the task of a later time that draws."""
    done = threading.Event()
    # Tasks of a later time come in their order.
    panel._worker.later("after", lambda _cancelled: done.set(), 1.1)
    assert done.wait(30)
    assert "figures" in page.types()


def test_a_scale_that_is_held_is_said_and_spans_what_came_before(ready: Any) -> None:
    _, panel, page = ready
    page.say("hold", how="running")
    assert panel.hold == "running"
    widest = [0.0, 0.0]
    for seq, shade in enumerate((0, 5, 2), 1):
        show(page, seq, frame(shade))
        card = page.last("tiles")[0]["cards"][0]
        assert card["scale"].startswith("running scale: ")
        options = panel._tiles.options["conv"]
        low, high = options.vmin, options.vmax
        assert low <= widest[0]
        assert high >= widest[1]
        widest = [low, high]
    page.say("hold", how="wide")
    assert "hold" in page.widget.app.alert["message"]
    assert panel.hold == "running"


@pytest.mark.parametrize("form", ["files", "webp"])
def test_a_recording_keeps_the_next_frames_as_they_are_shown(
    ready: Any, tmp_path: Path, form: str
) -> None:
    app, panel, page = ready
    page.say("record", frames=2, form=form, folder=str(tmp_path))
    assert panel.recording == {"done": 0, "total": 2}
    for seq in (1, 2, 3):
        show(page, seq, frame(seq))
    assert app.alert == {}
    assert panel.recording["done"] == 2
    folder = Path(panel.recording["path"])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert [one["number"] for one in manifest["frames"]] == [0, 1]
    names = [layer["file"] for one in manifest["frames"] for layer in one["layers"]]
    if form == "files":
        assert len(names) == 4
        shown = hookviz.read_image(frame(2), name="camera frame 0")
        again = hookviz.reproduce(folder / names[2], app.model, shown)
        assert again.identical, again.differences
    else:
        with Image.open(folder / names[0]) as animation:
            assert animation.n_frames == 2


def test_a_recording_that_is_stopped_or_refused(ready: Any, tmp_path: Path) -> None:
    app, panel, page = ready
    page.say("record", frames=5, folder=str(tmp_path))
    show(page, 1, frame())
    page.say("stop")
    manifest = json.loads((Path(panel.recording["path"]) / "manifest.json").read_text())
    assert manifest["stopped"] == "Stopped after 1 of 5 frames."
    for content, words in (
        ({"frames": 0}, "0 frames were asked for"),
        ({"frames": 2, "form": "mp4"}, "form='mp4'"),
    ):
        page.say("record", folder=str(tmp_path), **content)
        assert words in app.alert["message"]
    (tmp_path / "taken").write_text("")
    page.say("record", frames=2, folder=str(tmp_path / "taken"))
    show(page, 2, frame())
    assert "Nothing can be written" in app.alert["message"]
    assert panel.recording == {}
    show(page, 3, frame())
    assert page.last("tiles")[0]["seq"] == 3


def test_why_there_can_be_no_frames_is_said(ready: Any) -> None:
    app, panel, page = ready
    app.layers = []
    assert panel.why_not == "Tick at least one layer."
    show(page, 1, frame())
    assert page.last("failed")[0]["text"] == "Tick at least one layer."


def test_memory_stays_flat_as_one_run_alone_is_kept(ready: Any) -> None:
    import weakref

    _, panel, page = ready
    tensors = []
    for seq in range(1, 12):
        show(page, seq, frame(seq % 5))
        tensors.append(weakref.ref(panel.run.activations[0].tensor))
        page.heard.clear()
    assert [ref() is not None for ref in tensors] == [False] * 10 + [True]
    assert torch.is_tensor(tensors[-1]())


def test_the_side_that_the_page_sends_follows_the_models_input(
    make_page: Callable[[Any], Any],
) -> None:
    from hookviz.images import Preprocessing

    net = torch.nn.Conv2d(3, 2, 3)
    for crop, side in (((24, 24), 256), ((448, 300), 448)):
        model = LoadedModel(net, "net", "", True, preprocess=Preprocessing(crop=crop, fit="squash"))
        app = explore(model, layers=[""])
        panel = next(part for part in app.parts if type(part).__name__ == "LiveView")
        assert panel.side == side
        app.close()
