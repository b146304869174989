"""A camera, and an animation, frame by frame through the model: the very values of Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journey_app import App
from journey_lab import BROWSER_ARGUMENTS, Lab
from journey_servers import LabServer
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

SIZE = (320, 240)
CODES = 8
READY = """import hookviz, torch
from torch import nn
from hookviz.images import Preprocessing
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 6, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
model = hookviz.load_model(net, preprocess=Preprocessing(resize=64, crop=(64, 64), fit="crop"))
app = hookviz.explore(model, layers=["0", "1"])
live = next(part for part in app.parts if type(part).__name__ == "LiveView")

def checked():
    '''Whether the last frame's values are those of its picture by itself; its bars' levels.'''
    run, picture = live.run, live.run.image
    again = hookviz.feature_maps(model, picture.image, ["0", "1"])
    pairs = zip(run.activations, again.activations, strict=True)
    same = all(torch.equal(one.tensor, other.tensor) for one, other in pairs)
    bars = [picture.image.convert("L").getpixel((40 * bit + 20, 40)) for bit in range(8)]
    return same, picture.number, bars

app"""
TRACKS = """() => window.hvTracks.map(track => track.readyState)"""
ON = "() => window.hvTracks.some(track => track.readyState === 'live')"
OFF = "() => window.hvTracks.every(track => track.readyState === 'ended')"
# What the browser says as another tab comes in front, or the page is left: looked at at once, as
# nothing runs afterwards.
HIDE = """() => {
  Object.defineProperty(document, 'hidden', {value: true, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
  delete document.hidden;
  return window.hvTracks.every(track => track.readyState === 'ended') ? 'off' : 'on';
}"""
LEAVE = """() => {
  window.dispatchEvent(new PageTransitionEvent('pagehide'));
  return window.hvTracks.every(track => track.readyState === 'ended') ? 'off' : 'on';
}"""
WATCH = """const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
window.hvTracks = [];
navigator.mediaDevices.getUserMedia = async (...args) => {
  const stream = await ask(...args);
  window.hvTracks.push(...stream.getTracks());
  return stream;
};"""


def picture(code: int) -> np.ndarray:
    """(H, W) uint8 luma: a gray ramp, and the code as eight bars, black or white."""
    luma = np.tile(np.linspace(60, 190, SIZE[0]).astype(np.uint8), (SIZE[1], 1))
    for bit in range(8):
        luma[:80, 40 * bit : 40 * bit + 40] = 235 if code >> bit & 1 else 16
    luma[100 + 10 * code : 140 + 10 * code, 100:200] = 20 * code + 30
    return luma


def code_of(bars: list[int]) -> int:
    return sum(int(level > 128) << bit for bit, level in enumerate(bars))


@pytest.fixture(scope="module")
def y4m(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of known frames, which Chromium plays as its camera."""
    path = tmp_path_factory.mktemp("camera") / "clip.y4m"
    gray = np.full((SIZE[1] // 2, SIZE[0] // 2), 128, np.uint8).tobytes()
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{SIZE[0]} H{SIZE[1]} F20:1 Ip A1:1 C420mpeg2\n".encode())
        for code in range(1, CODES + 1):
            frame = b"FRAME\n" + picture(code).tobytes() + gray + gray
            file.write(frame * 20)  # a second each
    return path


@contextlib.contextmanager
def filmed(
    playwright: Any, launch: dict[str, Any], server: LabServer, *arguments: str
) -> Iterator[Lab]:
    """JupyterLab in a browser of its own, with these arguments."""
    options = {**launch, "args": [*BROWSER_ARGUMENTS, *arguments]}
    browser = playwright.chromium.launch(**options)
    try:
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.add_init_script(WATCH)
        server.forget_theme()
        lab = Lab(page, server, Path("artefacts/journeys"))
        try:
            yield lab
        except BaseException:
            lab.screenshot("filmed_FAILED")
            raise
        errors = lab.console_errors()
        lab.shutdown()
        assert errors == []
    finally:
        browser.close()


def started(lab: Lab, name: str) -> App:
    lab.open(f"{name}.ipynb", [READY])
    lab.run_all()
    return App(lab.page, lab.output(0)).wait_ready()


def test_a_camera_gives_what_python_gives_and_its_light_goes_out(
    playwright: Any,
    browser_type_launch_args: dict[str, Any],
    lab_server: LabServer,
    y4m: Path,
    axe_source: str,
) -> None:
    fake = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    film = f"--use-file-for-fake-video-capture={y4m}"
    with filmed(playwright, browser_type_launch_args, lab_server, *fake, film) as lab:
        app, page = started(lab, "camera"), lab.page
        app.reach(app.part("camera")).click()
        live = app.part("live")
        expect(live).to_have_attribute("data-kind", "camera")
        codes: set[int] = set()
        while len(codes) < 3:
            page.wait_for_function(
                "([el, than]) => Number(el.dataset.painted) > than",
                arg=[live.element_handle(), int(live.get_attribute("data-painted") or 0)],
            )
            # Three frames of different pictures: the values are those of the frame itself.
            same, _, bars = lab.value("checked()")
            assert same
            code = code_of(bars)
            assert 1 <= code <= CODES
            codes.add(code)
        lab.screenshot("live_camera_light")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
        lab.theme("dark")
        expect(live).to_have_attribute("data-colors", "dark")
        lab.screenshot("live_camera_dark")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
        lab.theme("light")
        # Frozen, the frame is an image like any other, and the camera is off.
        app.part("live-freeze").focus()
        page.keyboard.press("Enter")
        expect(app.card("0")).to_be_visible()
        assert page.evaluate(TRACKS) == ["ended"]
        expect(app.part("image-caption")).to_contain_text("camera frame")
        lab.expect_value("app.run.image is app.image and app.image.size", [320, 240])
        files = lab.value("len(app.export('frozen', what={'grids'}).files)")
        assert files == 2

        def filming() -> None:
            App(page, lab.output(0)).part("tab-live").click()
            App(page, lab.output(0)).part("live-camera").click()
            expect(App(page, lab.output(0)).part("live")).to_have_attribute("data-kind", "camera")
            page.wait_for_function(ON)

        # Off, too, with another tab of JupyterLab in front …
        filming()
        lab.command("launcher:create")
        page.wait_for_function(OFF)
        lab.command("application:activate-previous-tab")
        # … another panel of the app, a browser's tab in the background, a page that goes away …
        filming()
        app.part("tab-gallery").click()
        page.wait_for_function(OFF)
        filming()
        assert page.evaluate(HIDE) == "off"
        expect(app.part("live-note")).to_contain_text("The camera was switched off")
        filming()
        assert page.evaluate(LEAVE) == "off"
        # … the app closed, the cell run again, the kernel restarted, the cell deleted.
        filming()
        lab.python("app.close()")
        page.wait_for_function(OFF)
        lab.run_cell(0)
        App(page, lab.output(0)).wait_ready()
        filming()
        lab.run_cell(0)
        page.wait_for_function(OFF)
        App(page, lab.output(0)).wait_ready()
        filming()
        lab.restart()
        page.wait_for_function(OFF)
        lab.run_cell(0)
        App(page, lab.output(0)).wait_ready()
        filming()
        lab.command("notebook:delete-cell")
        page.wait_for_function(OFF)


def test_without_permission_one_sentence_and_an_animation_is_stepped_by_keys(
    playwright: Any,
    browser_type_launch_args: dict[str, Any],
    lab_server: LabServer,
    tmp_path: Path,
) -> None:
    fake = ("--use-fake-device-for-media-stream", "--deny-permission-prompts")
    frames = [Image.fromarray(picture(code)) for code in range(1, 6)]
    clip = tmp_path / "steps.gif"
    frames[0].save(clip, save_all=True, append_images=frames[1:], duration=80)
    with filmed(playwright, browser_type_launch_args, lab_server, *fake) as lab:
        app, page = started(lab, "steps"), lab.page
        app.part("tab-live").click()
        app.part("live-camera").click()
        expect(app.part("live-note")).to_contain_text("The camera is not allowed")
        expect(app.part("live")).to_have_attribute("data-kind", "")
        app.browse(clip)
        expect(app.part("live-clip")).to_have_text("Play steps.gif (5 frames)")
        app.tab_to(app.part("live-clip"))
        page.keyboard.press("Enter")
        live = app.part("live")
        for key, number in (("", 0), (".", 1), (".", 2), (",", 1)):
            if key:
                page.keyboard.press(key)
            expect(live).to_have_attribute("data-number", str(number))
            same, shown, bars = lab.value("checked()")
            assert (same, shown, code_of(bars)) == (True, number, number + 1)
        expect(app.root.locator(".hv-live-figure").first).to_be_visible()
        lab.screenshot("live_steps")


FILM = Path(__file__).with_name("film.webm")
"""60 frames of `picture(0)` to `picture(59)` without its square, 25 a second: VP9, by PyAV."""


def test_a_video_is_played_and_stepped_and_its_frame_frozen(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path, axe_source: str
) -> None:
    lab, app = open_app(READY)
    page, live, where = lab.page, app.part("live"), app.part("live-number")
    lab.drop(app.part("image"), FILM)
    expect(live).to_have_attribute("data-kind", "video")
    expect(where).to_have_text("frame 0 of 60")
    expect(live).to_have_attribute("data-number", "0")

    def shown(number: int) -> float:
        """The frame that Python ran, as its picture and as its number say; a sum of its values."""
        expect(live).to_have_attribute("data-number", str(number))
        same, found, bars = lab.value("checked()")
        assert (same, found, code_of(bars)) == (True, number, number)
        return float(lab.value("float(live.run.select('0').tensor.double().sum())"))

    # By keys, by the slider, and twice to one frame.
    slider = app.part("live-slider")
    slider.focus()
    values = {}
    for key, number in ((".", 1), (".", 2), (".", 3), (",", 2), ("End", 59), ("Home", 0)):
        page.keyboard.press(key)
        values.setdefault(number, shown(number))
        assert values[number] == shown(number)
    for number in (31, 7, 2):
        slider.fill(str(number))
        assert values.setdefault(number, shown(number)) == shown(number)
    assert len(set(values.values())) == len(values)
    expect(app.root.locator(".hv-live-figure").first).to_be_visible()
    lab.screenshot("live_video_light")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    # While it plays a frame's number is its own, too; at its end it stands.
    slider.fill("0")
    shown(0)
    app.part("live-play").click()
    for than in (0, 10):
        page.wait_for_function(
            "([el, than]) => Number(el.dataset.number) > than", arg=[live.element_handle(), than]
        )
        same, found, bars = lab.value("checked()")
        assert (same, code_of(bars)) == (True, found)
    expect(app.part("live-stats")).to_contain_text("frames a second")
    expect(app.part("live-stats")).to_contain_text("dropped")
    expect(app.part("live-play")).to_have_text("Play")
    shown(59)
    # Frozen, it is an image like any other.
    slider.fill("7")
    assert shown(7) == values[7]
    app.part("live-freeze").click()
    expect(app.card("0")).to_be_visible()
    expect(app.part("image-caption")).to_contain_text("film.webm frame 7")
    total = "float(app.run.select('0').tensor.double().sum())"
    assert lab.value(total) == values[7]
    assert lab.value("len(app.export('frozen', what={'grids'}).files)") == 2
    # No video at all: said.
    broken = tmp_path / "broken.webm"
    broken.write_bytes(b"no video")
    app.part("tab-live").click()
    app.part("live-file").set_input_files(broken)
    expect(app.part("live-note")).to_contain_text("cannot play “broken.webm”")
    expect(live).to_have_attribute("data-kind", "")
