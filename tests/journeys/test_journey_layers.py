"""A model with hundreds of layers, and the view's controls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

RESNET_152 = """import hookviz
model = hookviz.load_model("resnet152", weights=None)
app = hookviz.explore(model)
app"""

COUNTING = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], run=False)
forwards = []
app.model.module.register_forward_pre_hook(lambda module, args: forwards.append(1))
app"""


def test_resnet_152_search_and_tick_a_group(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(RESNET_152)
    expect(app.part("untrained")).to_contain_text("UNTRAINED")
    layers = lab.value("[layer.name for layer in hookviz.list_layers(app.model.module)]")
    assert len(layers) == 423
    expect(app.rows()).to_have_count(423)
    expect(app.part("summary")).to_contain_text(f"0 of {len(layers)}")
    lab.screenshot("layers_1_resnet152")
    # search by name, by type, by /regex/
    app.search("layer4.2.conv")
    expect(app.row("layer4.2.conv3")).to_be_visible()
    expect(app.row("layer4.1.conv3")).to_have_count(0)
    app.search("MaxPool2d")
    expect(app.row("maxpool")).to_be_visible()
    app.search("/^layer[12]\\.0\\.downsample\\.0$/")
    expect(app.row("layer1.0.downsample.0")).to_be_visible()
    expect(app.row("layer2.0.downsample.0")).to_be_visible()
    expect(app.row("layer3.0.downsample.0")).to_have_count(0)
    lab.screenshot("layers_2_regex", app.part("tree"))
    app.search("/(/")  # half typed: no alert, no empty page for ever
    app.search("")
    expect(app.row("layer1")).to_be_visible()
    # a group and its parts
    app.tick("layer1.0")
    lab.expect_value("bool(app.layers)", True)
    ticked = lab.value("app.layers")
    assert all(name == "layer1.0" or name.startswith("layer1.0.") for name in ticked)
    expect(app.row("layer1")).to_have_attribute("aria-checked", "mixed")
    lab.screenshot("layers_3_group", app.part("tree"))
    app.tick("layer1.0", "false")
    lab.expect_value("app.layers", [])
    # chips and the four buttons
    app.root.locator('[data-chip="conv"]').click()
    expect(app.row("conv1")).to_be_visible()
    expect(app.row("maxpool")).to_have_count(0)
    app.button("Tick all shown").click()
    expect(app.row("conv1")).to_have_attribute("aria-checked", "true")
    convolutions = sum("conv" in n or n.endswith("downsample.0") for n in layers)
    lab.expect_value("len(app.layers)", convolutions)
    app.button("Untick all shown").click()
    expect(app.row("conv1")).to_have_attribute("aria-checked", "false")
    lab.expect_value("app.layers", [])


def test_a_layer_called_three_times(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(
        "import hookviz\n"
        'photo = hookviz.sample_image("chelsea.png")\n'
        'app = hookviz.explore(hookviz.load_model("resnet50", weights=None), photo,\n'
        '                      ["layer1.0.relu", "fc"], run=False)\napp'
    )
    app.run("layer1.0.relu", "fc")
    expect(app.root.locator('[data-hv="card"][data-layer="layer1.0.relu"]')).to_have_count(3)
    expect(app.card("layer1.0.relu", 3)).to_contain_text("256")
    app.painted("layer1.0.relu", call=3)
    app.search("layer1.0.relu")
    # its calls are rows of their own, each with a box
    third = app.root.locator('[data-hv="row"][data-call="3"]')
    expect(third).to_be_visible()
    third.locator('[data-hv="tick"]').click()
    expect(app.root.locator('[data-hv="card"][data-layer="layer1.0.relu"]')).to_have_count(2)
    expect(app.part("predictions").or_(app.part("predictions-reason")).first).to_be_visible()
    lab.screenshot("layers_4_three_calls")


def test_view_controls_change_the_picture_without_a_new_run(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(COUNTING)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    lab.expect_value("len(forwards)", 1)

    def changed(act: Callable[[], None], what: str, layer: str = "features.28") -> None:
        before, version = app.pixels(layer).tobytes(), app.version(layer)
        act()
        app.painted(layer, than=version)
        assert app.pixels(layer).tobytes() != before, what
        app.expect_no_alert()

    changed(lambda: app.choose("Colours", "magma"), "colours")
    changed(lambda: app.choose("Scale", "layer"), "scale layer")
    changed(lambda: app.choose("Scale", "symmetric"), "scale symmetric")
    lab.screenshot("view_1_symmetric")
    changed(lambda: app.choose("Scale", "percentile"), "scale percentile")
    changed(lambda: app.choose("Order", "max"), "order")
    lab.screenshot("view_2_order_max")
    changed(lambda: app.choose("Maps per page", "16"), "tiles")
    expect(app.card("features.28").locator('[data-hv="page-text"]')).to_contain_text("of 32")
    changed(lambda: app.choose("Maps per page", "64"), "tiles back")
    changed(lambda: app.choose("Summary tile", "mean"), "summary")
    changed(lambda: app.labelled("Overlay on the image").check(), "overlay")
    lab.screenshot("view_3_overlay")
    changed(lambda: app.labelled("Overlay on the image").uncheck(), "overlay off")

    def channels(text: str) -> Callable[[], None]:
        def act() -> None:
            box = app.labelled("Channels")
            box.fill(text)
            box.press("Enter")

        return act

    changed(channels("0-15,42"), "channels")
    expect(app.card("features.28").locator('[data-hv="page-text"]')).to_contain_text("1 of 1")
    lab.screenshot("view_4_channels")
    changed(channels(""), "all channels again")

    # fixed limits
    app.choose("Scale", "fixed")
    version = app.version("features.28")
    low, high = app.part("view-vmin"), app.part("view-vmax")
    low.fill("-50")
    low.press("Enter")
    high.fill("50")
    high.press("Enter")
    app.painted("features.28", than=version)

    # through all 512 channels, and back by number
    card = app.card("features.28")
    for page in range(2, 9):
        version = app.version("features.28")
        app.button("Next page of features.28").click()
        expect(card.locator('[data-hv="page-text"]')).to_contain_text(f"{page} of 8")
        app.painted("features.28", than=version)
    expect(app.button("Next page of features.28")).to_have_attribute("aria-disabled", "true")
    app.choose("Maps per page", "16")  # 32 pages: now there is a box for the page's number
    expect(card.locator('[data-hv="page-text"]')).to_contain_text("of 32")
    number = app.root.get_by_label("Page of features.28", exact=True)
    number.fill("30")
    version = app.version("features.28")
    number.press("Enter")
    app.painted("features.28", than=version)
    expect(number).to_have_value("30")
    lab.expect_value("app.gallery.current.page", 29)
    # statistics and folding
    version = app.version("features.28")
    app.button("Statistics of features.28").click()
    app.painted("features.28", than=version)
    lab.screenshot("view_5_statistics")
    # the filters behind the maps, and what the layer is
    version = app.version("features.28")
    app.button("Filters of features.28").click()
    app.painted("features.28", than=version)
    expect(app.card("features.28")).to_contain_text("512×512×3×3")
    lab.screenshot("view_5_filters")
    app.root.get_by_role("tab", name="About", exact=True).click()
    expect(app.part("about")).to_contain_text("kernel_size=(3, 3)")
    expect(app.part("gallery")).to_be_hidden()
    lab.screenshot("view_5_about")
    app.root.get_by_role("tab", name="Gallery", exact=True).click()
    expect(app.grid("features.28")).to_be_visible()
    app.button("Collapse features.0").click()
    expect(app.grid("features.0")).to_be_hidden()
    assert lab.value("len(forwards)") == 1, "a change of the view ran the model"


def test_a_refused_view_value_leaves_the_picture_and_every_control_usable(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(COUNTING)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    app.card("features.0").get_by_text("features.0", exact=True).click()
    before = app.pixels("features.0").tobytes()
    app.expect_refused("Channels", "0-9999,cat", "", "“cat” is not a channel")
    app.expect_refused("Channels", "9999", "", "9999")
    lab.screenshot("view_6_refused")
    app.expect_plain_words()
    assert app.pixels("features.0").tobytes() == before
    # what one layer has and another has not: drawn where it is, said where it is not
    version = app.version("features.28")
    app.type_into("Channels", "64")
    app.painted("features.28", than=version)
    expect(app.card("features.0").locator('[data-hv="card-note"]')).to_contain_text("0 to 63")
    expect(app.grid("features.0")).to_be_visible()
    lab.screenshot("view_7_for_some")
    app.expect_plain_words()
    # and nothing is stuck: clearing, other choices, another photo
    version = app.version("features.0")
    app.type_into("Channels", "")
    app.painted("features.0", than=version)
    version = app.version("features.0")
    app.choose("Colours", "magma")
    app.painted("features.0", than=version)
    lab.expect_value("app.gallery.view['channels']", "")
    lab.expect_value("len(forwards)", 1)
    app.sample("coffee")
    app.run("features.0")
    app.expect_no_alert()


def test_run_takes_the_ticks_before_it_however_quickly(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(COUNTING)
    expect(app.run_button).not_to_have_attribute("aria-disabled", "true")
    # Two ticks and Run in one task of the page: ipywidgets holds the second tick's trait back.
    app.root.evaluate(
        """app => {
          for (const layer of ['features.2', 'features.5'])
            app.querySelector(`[data-hv="row"][data-name="${layer}"] [data-hv="tick"]`).click();
          app.querySelector('[data-hv="run"]').click();
        }"""
    )
    ticked = ["features.0", "features.2", "features.5", "features.28"]
    lab.expect_value("app.run and list(app.run.layers)", ticked)
    lab.expect_value("app.layers", ticked)
