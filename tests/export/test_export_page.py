"""The page: one file with the values of all maps, which nothing from outside can enter."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from hookviz.activation import Activation
from hookviz.cli import cli
from hookviz.errors import RenderError
from hookviz.export import RunFacts, page_size, write_export
from hookviz.render import GridOptions

Make = Callable[..., Activation]
INF, NAN = float("inf"), float("nan")


class Reader(HTMLParser):
    """Reads a page as a browser does: tags with their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []  # of scripts and styles, in order
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.texts[-1] += data

    def block(self, name: str) -> str:
        """The text of the script with this id."""
        scripts = [tag for tag in self.tags if tag[0] in ("script", "style")]
        (text,) = [
            text
            for (_, attributes), text in zip(scripts, self.texts, strict=True)
            if attributes.get("id") == name
        ]
        return text


def read(path: Path) -> dict[str, Any]:
    """What a page says; the values of each layer with maps as (channels, planes, rows, columns)."""
    reader = Reader(path.read_text(encoding="utf-8"))
    page = json.loads(reader.block("page"))
    for number, layer in enumerate(page["layers"]):
        if maps := layer.get("maps"):
            data = zlib.decompress(base64.b64decode(reader.block(f"values-{number}")))
            halves = np.frombuffer(data, np.uint8).reshape(2, -1).astype(np.uint16)
            codes = halves[0] | (halves[1] << 8)
            layer["values"] = decoded(codes, maps).reshape(
                len(maps["channels"]), maps["planes"], maps["height"], maps["width"]
            )
    return page


def decoded(codes: NDArray[np.uint16], maps: dict[str, Any]) -> NDArray[np.float64]:
    values = maps["base"] + (codes.astype(np.float64) - maps["zero"]) * maps["step"]
    values = values.clip(maps["low"], maps["high"])
    for code, value in ((65533, -INF), (65534, INF), (65535, NAN)):
        values[codes == code] = value
    return values


def written(folder: Path, facts: RunFacts, *records: Activation, **choices: Any) -> dict[str, Any]:
    result = write_export(facts, records, folder, what="page", **choices)
    (path,) = result.files
    assert path.name == "page.html"
    size = page_size(
        facts,
        records,
        options=choices.get("options"),
        all_pages=choices.get("all_pages", True),
    )
    assert path.stat().st_size <= size
    return read(path)


def assert_close(found: NDArray[np.float64], right: torch.Tensor, step: float) -> None:
    """Within half a step, and the same where a value is not finite, or zero."""
    wanted = right.double().numpy()
    odd = ~np.isfinite(wanted) | (wanted == 0)
    assert np.array_equal(found[odd], wanted[odd], equal_nan=True)
    size = np.abs(wanted[~odd]).max(initial=0.0)
    assert np.abs(found[~odd] - wanted[~odd]).max(initial=0.0) <= step / 2 + 1e-12 * size


@pytest.fixture(scope="module")
def vgg() -> Any:
    import hookviz

    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    layers = ["features.0", "features.10", "features.28"]
    return hookviz.feature_maps(model, hookviz.sample_image("chelsea.png"), layers)


def test_three_layers_of_vgg16_are_one_file_below_8_mb(vgg: Any, tmp_path: Path) -> None:
    said = vgg.page_size()
    (path,) = vgg.export(tmp_path, what="page").files
    assert path.stat().st_size <= said <= 8e6
    first, second, third = read(path)["layers"]
    whole = [activation.tensor[0] for activation in vgg.activations]
    for layer, tensor in ((second, whole[1]), (third, whole[2])):
        assert layer["maps"]["channels"] == list(range(len(tensor)))
        assert_close(layer["values"][:, 0], tensor, layer["maps"]["step"])
    mean = whole[0].double().reshape(64, 112, 2, 112, 2).mean((2, 4))
    assert_close(first["values"][:, 0], mean, first["maps"]["step"])
    assert "each value is the mean of 2 × 2" in " ".join(first["facts"])
    assert not any("reduced" in fact for fact in [*second["facts"], *third["facts"]])


def test_the_page_says_the_step_and_the_facts_of_the_run(vgg: Any, tmp_path: Path) -> None:
    (path,) = vgg.export(tmp_path, what="page", layers="features.28").files
    page = read(path)
    (layer,) = page["layers"]
    step = layer["maps"]["step"]
    assert step == pytest.approx(
        float(vgg.activations[2].tensor.max() - vgg.activations[2].tensor.min()) / 65531
    )
    assert any(f"16 bits, steps of {step:.3g}" in fact for fact in layer["facts"])
    assert vgg.drawing("features.28").scale in layer["facts"]
    facts = dict(page["facts"])
    assert facts["Model"] == "vgg16"
    assert facts["Image"] == "chelsea.png"
    assert facts["Preprocessing"] == vgg.input.description
    assert torch.__version__ in facts["Versions"]
    assert facts["Device"] == "cpu, float32"
    assert page["photo"].startswith("data:image/png;base64,")


finite = st.floats(-1e300, 1e300) | st.floats(-10, 10) | st.just(0.0)


@given(st.lists(finite | st.sampled_from([NAN, INF, -INF]), min_size=4, max_size=12))
@example([0.0, 0.0, 0.0, -2.2e-311])
@example([0.0, -3.7, -1e-17, -0.1])
def test_every_value_is_within_half_a_step(values: list[float]) -> None:
    from hookviz.export._page import quantised

    tensor = torch.tensor(values, dtype=torch.float64)
    found = quantised(tensor.numpy())
    said = {name: getattr(found, name) for name in ("base", "zero", "step", "low", "high")}
    assert_close(decoded(found.codes, said), tensor, found.step)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.bool, torch.int64])
def test_whole_numbers_are_exact(
    tmp_path: Path, facts: RunFacts, record: Make, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    low, high = (0, 2) if dtype in (torch.bool, torch.uint8) else (-900, 900)
    tensor = torch.randint(low, high, (1, 3, 5, 6)).to(dtype)
    (layer,) = written(tmp_path, facts, record(tensor=tensor))["layers"]
    assert np.array_equal(layer["values"][:, 0], tensor[0].double().numpy())
    assert any("exactly" in fact for fact in layer["facts"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_values_of_every_dtype_are_within_half_a_step(
    tmp_path: Path, facts: RunFacts, record: Make, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1, 3, 5, 6, dtype=dtype)
    (layer,) = written(tmp_path, facts, record(tensor=tensor))["layers"]
    right = tensor[0].abs() if dtype.is_complex else tensor[0]
    assert_close(layer["values"][:, 0], right, layer["maps"]["step"])


def test_what_is_not_finite_clipped_or_dead_is_marked(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.linspace(-9, 9, 100).reshape(1, 4, 5, 5).clone()
    tensor[0, 0, 0, :3] = torch.tensor([NAN, INF, -INF])
    tensor[0, 1] = 0
    tensor[0, 2] = 4
    options = GridOptions(vmin=-5, vmax=5)
    (layer,) = written(tmp_path, facts, record(tensor=tensor), options=options)["layers"]
    assert_close(layer["values"][:, 0], tensor[0], layer["maps"]["step"])
    assert layer["maps"]["marks"] == ["", "dead", "= 4", ""]
    texts = [text for _, _, text in layer["legend"]]
    known = tensor[tensor.isfinite()]
    below, above = int((known < -5).sum()), int((known > 5).sum())
    beyond = [f"below the scale: {below} values", f"above the scale: {above} values"]
    assert texts == ["NaN: 1 value", "+Inf: 1 value", "−Inf: 1 value", *beyond]
    assert layer["maps"]["clipped"]


def test_nothing_that_is_not_finite_vanishes_where_maps_are_reduced(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.rand(1, 64, 301, 299) - 0.5
    tensor[0, 0, 3, 3], tensor[0, 0, 100, 100], tensor[0, 0, 300, 298] = NAN, INF, -INF
    (layer,) = written(tmp_path, facts, record(tensor=tensor))["layers"]
    maps, values = layer["maps"], layer["values"][:, 0]
    factor = maps["factor"]
    assert factor > 1
    assert maps["full"] == [301, 299]
    assert values.shape == (64, -(-301 // factor), -(-299 // factor))
    assert np.isnan(values[0]).sum() == np.isposinf(values[0]).sum() == 1
    assert np.isnan(values[0, 3 // factor, 3 // factor])
    assert np.isneginf(values[0, -1, -1])
    # The last rows and columns may be fewer than the factor: their mean is of what is there.
    rest = tensor[0, 1, 300 // factor * factor :, 298 // factor * factor :].double().mean()
    assert abs(values[1, -1, -1] - float(rest)) <= maps["step"] / 2


def test_the_nearest_value_is_one_of_the_layer(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.rand(1, 64, 300, 300)
    options = GridOptions(shrink="nearest")
    (layer,) = written(tmp_path, facts, record(tensor=tensor), options=options)["layers"]
    factor = layer["maps"]["factor"]
    right = tensor[0, :, factor // 2 :: factor, factor // 2 :: factor]
    assert_close(layer["values"][:, 0], right, layer["maps"]["step"])
    assert "each value is one of" in " ".join(layer["facts"])


def test_channels_that_do_not_fit_are_left_out_and_said_those_of_the_page_first(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.rand(1, 4096, 33, 33)
    options = GridOptions(page=40)
    (layer,) = written(tmp_path, facts, record(tensor=tensor), options=options)["layers"]
    channels = layer["maps"]["channels"]
    assert 64 <= len(channels) < 4096
    assert set(range(40 * 64, 41 * 64)) <= set(channels)
    span = f"maps {channels[0] + 1}–{channels[-1] + 1} of them alone"
    assert any(span in fact for fact in layer["facts"])
    assert_close(layer["values"][:, 0], tensor[0, channels], layer["maps"]["step"])


def test_a_page_of_many_layers_stays_bounded(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    tensor = torch.rand(1, 64, 112, 112)
    records = [record(f"layer.{number}", tensor, order=number) for number in range(80)]
    assert page_size(facts, records) < 80 * 160_000 + 600_000
    assert len(written(tmp_path, facts, *records)["layers"]) == 80


def test_the_order_and_the_page_of_the_grid_are_followed(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.arange(100.0).reshape(1, 100, 1, 1).expand(1, 100, 3, 3)
    options = GridOptions(order="mean", per_page=8, page=1)
    shown = written(tmp_path, facts, record(tensor=tensor), options=options)
    assert shown["layers"][0]["maps"]["channels"] == list(range(99, -1, -1))
    shown = written(tmp_path, facts, record(tensor=tensor), options=options, all_pages=False)
    assert shown["layers"][0]["maps"]["channels"] == list(range(91, 83, -1))
    assert shown["layers"][0]["facts"][0] == "maps 9–16 of 100, by mean, largest first"


def test_each_map_may_have_a_scale_of_its_own(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.stack([torch.rand(5, 6) * 10**power for power in range(4)])[None]
    options = GridOptions(scale="channel")
    (layer,) = written(tmp_path, facts, record(tensor=tensor), options=options)["layers"]
    assert layer["maps"]["first"] == tensor[0].amin((1, 2)).tolist()
    assert layer["maps"]["last"] == tensor[0].amax((1, 2)).tolist()


def test_patches_are_maps_and_vectors_and_statistics_are_figures_in_both_themes(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(input_image=Image.new("RGB", (56, 56)))
    tokens = record("blocks.0", torch.rand(1, 17, 12), module_type="Block")
    vector = record("head", torch.rand(1, 1000), module_type="Linear")
    options = GridOptions(grid=(4, 4))
    first, second = written(tmp_path, facts, tokens, vector, options=options)["layers"]
    right = tokens.tensor[0, 1:].T.reshape(12, 4, 4)
    assert_close(first["values"][:, 0], right, first["maps"]["step"])
    assert first["onPhoto"]
    assert set(second["figure"]) == {"light", "dark", "alt"}
    assert second["figure"]["light"] != second["figure"]["dark"]
    assert "head" in second["figure"]["alt"]
    options = GridOptions(figure="statistics")
    for layer in written(tmp_path, facts, tokens, options=options)["layers"]:
        assert layer["figure"]["light"].startswith("data:image/png;base64,")


def test_the_size_said_before_holds_for_large_figures_and_long_names(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    torch.manual_seed(0)
    many = record("x" * 20_000, torch.randn(1, 2048, 6, 6))
    vector = record("<" * 20_000, torch.randn(1, 4096), order=4)
    options = GridOptions(figure="statistics", width=4000, dpi=200)
    written(tmp_path, facts, many, options=options)
    written(tmp_path, facts, many, vector, options=GridOptions(width=4000, dpi=200))


def test_color_filters_hold_three_values_at_each_place(vgg: Any, tmp_path: Path) -> None:
    (path,) = vgg.export(tmp_path, what="page", layers="features.0", filters=True).files
    layer = read(path)["layers"][1]
    assert layer["maps"]["planes"] == 3
    weight = vgg.model.module.get_submodule("features.0").weight.detach()
    assert_close(layer["values"], weight, layer["maps"]["step"])


def test_what_cannot_be_drawn_is_said_on_the_page(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(missing={"classifier": "the forward ended early"}, trained=False)
    empty = record("gone", torch.zeros(1, 2, 2, 2, device="meta"))
    page = written(tmp_path, facts, record(), empty)
    assert len(page["layers"]) == 1
    assert any(note.startswith("gone: ") for note in page["notes"])
    assert "classifier: the forward ended early" in page["notes"]
    assert page["untrained"].startswith("UNTRAINED")
    with pytest.raises(RenderError):
        write_export(facts, [empty], tmp_path / "none", what="page")
    assert not (tmp_path / "none").exists()


HOSTILE = "</script><!--<script><img src=x onerror=alert(1)>&amp;\u2028\ud800'\"`${1}$script"


def test_hostile_names_open_no_tag(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    def tags(folder: str, text: str) -> list[tuple[str, dict[str, str | None]]]:
        facts = make_facts(
            model=text,
            image_name=text,
            weights=text,
            preprocessing=text,
            device=text,
            missing={text: text},
        )
        vector = record(text, torch.rand(1, 8), leaf=text, order=4, module_type=text)
        one = record(text, leaf=text, module_type=text)
        result = write_export(facts, [one, vector], tmp_path / folder, what="page")
        page = read(result.files[0])
        assert text in page["layers"][0]["name"]
        assert text in dict(page["facts"])["Weights"]
        return Reader(result.files[0].read_text(encoding="utf-8")).tags

    assert tags("hostile", HOSTILE) == tags("plain", "plain")


def test_the_policy_admits_the_script_and_the_style_of_the_page_and_nothing_else(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    result = write_export(facts, [record()], tmp_path, what="page")
    reader = Reader(result.files[0].read_text(encoding="utf-8"))
    (policy,) = [
        tag[1]["content"]
        for tag in reader.tags
        if tag[1].get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in reader.texts
    }
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] in hashes
    assert rules["style-src"] in hashes
    assert set(rules) == {
        "default-src",
        "script-src",
        "style-src",
        "img-src",
        "base-uri",
        "form-action",
    }
    assert rules["img-src"] == "data:"
    for tag, attributes in reader.tags:
        for name in ("src", "href", "srcset", "style", "onload", "onerror"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)


def test_the_script_sets_texts_and_no_markup(root: Path) -> None:
    script = (root / "hookviz" / "export" / "page" / "page.js").read_text(encoding="utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in script
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|WebSocket|setAttribute\(\"on)\b", script)


def test_the_command_line_writes_a_page_and_says_its_size_before(tmp_path: Path) -> None:
    command = ["maps", "chelsea.png", "--weights", "bundled", "-l", "features.28"]
    command += ["--device", "cpu", "--out", str(tmp_path), "--what", "page"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert re.search(r"page\.html will have [\d.]+ [kM]B at most", done.stderr)
    names = sorted(path.name for path in Path(done.stdout.strip()).iterdir())
    assert names == ["manifest.json", "page.html"]
    both = CliRunner().invoke(cli, [*command, "--format", "svg", "--channels", "0"])
    endings = sorted(path.suffix for path in Path(both.stdout.strip()).iterdir())
    assert endings == [".html", ".json", ".png", *[".svg"] * 8]
    wrong = CliRunner().invoke(cli, [*command[:-1], "pages"])
    assert wrong.exit_code == 2
    assert "Did you mean 'page'?" in wrong.output
