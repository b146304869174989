"""The page of an export in a real browser, from the disk: values, keys, themes, and no request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

import hookviz
from hookviz.activation import Activation
from hookviz.export import write_export
from hookviz.render import GridOptions

pytestmark = pytest.mark.browser

NUMBER = re.compile(r"· ([−\d.]+(?:e[−+]?\d+)?)(?: \(|$)")
HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"
# What axe-core says of the whole page, one line each.
AXE = """async () => (await axe.run({resultTypes: ['violations']})).violations
  .map(violation => `${violation.id}: ${violation.nodes[0].html}`)"""


@pytest.fixture(scope="module")
def run() -> hookviz.Run:
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    return hookviz.feature_maps(model, hookviz.sample_image(), ["features.0", "features.28"])


@pytest.fixture(scope="module")
def file(run: hookviz.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = run.export(tmp_path_factory.mktemp("page"), what="page").files
    return path


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file; at the end nothing was asked for but the file, and no error was said."""
    asked: list[str] = []
    said: list[str] = []
    opened: list[str] = []
    contexts: list[Any] = []

    def open_page(path: Path, theme: Literal["light", "dark"] = "light", width: int = 1280) -> Page:
        context = browser.new_context(
            color_scheme=theme, viewport={"width": width, "height": 800}, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        opened.append(path.as_uri())
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith("data:")] == opened
    assert said == []


def maps_of(page: Page, layer: str) -> Locator:
    return page.get_by_role("group", name=f"maps of {layer}").get_by_role("application")


def value_shown(page: Page, place: str) -> float:
    status = page.get_by_role("status")
    expect(status).to_contain_text(place)
    expect(status).to_have_text(NUMBER)
    found = NUMBER.search(status.inner_text())
    assert found
    return float(found.group(1).replace("−", "-"))


def step_of(values: torch.Tensor) -> float:
    return float(values.max() - values.min()) / 65531


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_hover_shows_the_value_of_the_tensor_within_the_step(
    open_page: Callable[..., Page], run: hookviz.Run, file: Path, theme: str
) -> None:
    page = open_page(file, theme)
    values = run.select("features.28").tensor[0]
    step = step_of(values)
    expect(page.locator("main")).to_contain_text(f"16 bits, steps of {step:.3g}")
    for channel, y, x in ((0, 0, 0), (17, 3, 12), (60, 13, 13)):
        tile = maps_of(page, "features.28").nth(channel)
        tile.scroll_into_view_if_needed()
        box = tile.bounding_box()
        assert box
        place = {"x": (x + 0.5) * box["width"] / 14, "y": (y + 0.5) * box["height"] / 14}
        tile.hover(position=place)
        shown = value_shown(page, f"features.28 · map {channel} · y {y}, x {x} ·")
        assert abs(shown - run.value("features.28", channel, y, x)) <= step
    first = run.select("features.0").tensor[0]
    tile = maps_of(page, "features.0").nth(5)
    tile.scroll_into_view_if_needed()
    tile.hover(position={"x": 1, "y": 1})
    shown = value_shown(page, "features.0 · map 5 · mean of y 0–1, x 0–1 ·")
    assert abs(shown - float(first[5, :2, :2].mean())) <= step_of(first)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_maps_have_the_colors_of_the_figure(
    open_page: Callable[..., Page], run: hookviz.Run, file: Path, theme: Literal["light", "dark"]
) -> None:
    drawing = run.drawing("features.28", options=GridOptions(style=theme))
    top, left, height, width = drawing.places[17]
    figure = drawing.pixels()[top : top + height, left : left + width, :3]
    page = open_page(file, theme)
    tile = maps_of(page, "features.28").nth(17)
    tile.scroll_into_view_if_needed()
    tile.hover()
    read = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    painted = torch.tensor(tile.evaluate(read)).reshape(14, 14, 4)[..., :3]
    rows = (torch.arange(14) * height + height // 2) // 14
    columns = (torch.arange(14) * width + width // 2) // 14
    wanted = torch.from_numpy(figure.copy()).long()[rows][:, columns]
    # A value close to the boundary of two levels may fall to the other one.
    assert (painted - wanted).abs().max() <= 6
    assert (painted == wanted).all(-1).float().mean() > 0.95


def test_arrow_keys_move_the_place_and_say_its_value(
    open_page: Callable[..., Page], run: hookviz.Run, file: Path
) -> None:
    page = open_page(file)
    step = step_of(run.select("features.28").tensor)
    maps_of(page, "features.28").first.focus()
    for key, channel, y, x in (
        ("ArrowDown", 0, 1, 0),
        ("ArrowRight", 0, 1, 1),
        ("End", 0, 1, 13),
        ("ArrowRight", 0, 1, 13),
        ("PageDown", 1, 1, 13),
        ("ArrowUp", 1, 0, 13),
        ("Home", 1, 0, 0),
        ("PageUp", 0, 0, 0),
    ):
        page.keyboard.press(key)
        shown = value_shown(page, f"map {channel} · y {y}, x {x} ·")
        assert abs(shown - run.value("features.28", channel, y, x)) <= step
    # One stop for all the maps of a layer: Tab leaves them.
    page.keyboard.press("Tab")
    expect(maps_of(page, "features.28").first).not_to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(maps_of(page, "features.28").first).to_be_focused()


@pytest.mark.parametrize("size", [(224, 224), (1200, 150), (60, 640)], ids=str)
def test_the_place_is_marked_on_the_photo_wherever_it_is_shown(
    open_page: Callable[..., Page], run: hookviz.Run, tmp_path: Path, size: tuple[int, int]
) -> None:
    facts = replace(run.facts, input_image=Image.new("RGB", size, "teal"))
    values = torch.rand(1, 2, 9, 5)
    record = Activation("conv", 1, 1, 1, 1, "output", "", "Conv2d", values)
    (path,) = write_export(facts, [record], tmp_path, what="page").files
    page = open_page(path)
    page.get_by_role("application").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    for place in ("header", "footer"):
        expect(page.locator(f"{place} .mark")).to_be_visible()
        photo = page.locator(f"{place} .photo img").bounding_box()
        mark = page.locator(f"{place} .mark").bounding_box()
        assert photo
        assert mark
        assert abs(photo["width"] / photo["height"] - size[0] / size[1]) <= 0.1 * size[0] / size[1]
        assert abs(mark["x"] - photo["x"] - photo["width"] * 4 / 5) <= 1
        assert abs(mark["y"] - photo["y"] - photo["height"] / 9) <= 1
        assert abs(mark["width"] - max(5, photo["width"] / 5)) <= 1
        assert abs(mark["height"] - max(5, photo["height"] / 9)) <= 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 600])
def test_axe_finds_nothing_and_nothing_is_cut_off(
    open_page: Callable[..., Page], file: Path, axe_source: str, theme: str, width: int
) -> None:
    page = open_page(file, theme, width)
    page.evaluate(axe_source)
    assert page.evaluate(AXE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
    assert dark == (theme == "dark")


def test_the_theme_changes_under_an_open_page(open_page: Callable[..., Page], file: Path) -> None:
    page = open_page(file, "light")
    tile = maps_of(page, "features.28").nth(3)
    tile.hover()
    read = "c => c.toDataURL()"
    light = tile.evaluate(read)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "([c, before]) => c.toDataURL() !== before", arg=[tile.element_handle(), light]
    )
    page.emulate_media(color_scheme="light")
    page.wait_for_function(
        "([c, before]) => c.toDataURL() === before", arg=[tile.element_handle(), light]
    )


def test_hostile_names_are_texts(
    open_page: Callable[..., Page], run: hookviz.Run, tmp_path: Path
) -> None:
    facts = replace(run.facts, image_name=f"{HOSTILE}.jpg", model=HOSTILE, weights=HOSTILE)
    values = torch.rand(1, 2, 3, 3)
    values[0, 0, 0] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    values[0, 1] = 0
    named = Activation(HOSTILE, 1, 1, 1, 1, "output", HOSTILE, HOSTILE, values)
    vector = Activation(HOSTILE, 1, 1, 1, 2, "output", "", HOSTILE, torch.rand(1, 9))
    (path,) = write_export(facts, [named, vector], tmp_path, what="page").files
    page = open_page(path)
    expect(page.get_by_role("heading", level=2).first).to_contain_text(HOSTILE)
    expect(page.locator("dd").first).to_have_text(HOSTILE)
    expect(page).to_have_title(re.compile("</script>"))
    assert page.locator("[onerror], main script").count() == 0
    expect(page.locator("main img.figure")).to_have_js_property("complete", True)
    tiles = page.get_by_role("application")
    expect(tiles.nth(1)).to_have_accessible_name("map 1 dead")
    tiles.first.focus()
    for text in ("NaN", "+Inf", "−Inf"):
        expect(page.get_by_role("status")).to_contain_text(f"· {text}")
        page.keyboard.press("ArrowRight")
