"""One run: from a model and an image to activations, figures and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import nn

import hookviz
from hookviz.errors import LayerError, RenderError, RunCancelled
from hookviz.export import read_png_facts
from hookviz.models import load_recorded
from hookviz.render import GridOptions, figure_kinds
from hookviz.run import failing_layer, run_model


class Doubling(nn.Module):
    """One ReLU called twice; a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.spare = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.relu(self.conv(x)) - 0.1)


class Broken(nn.Module):
    """The second layer cannot take what the first gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.block = nn.Sequential(nn.ReLU(), nn.Conv2d(5, 4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.first(x))


def hooks(module: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in module.modules()
    )


@pytest.fixture
def small() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    return hookviz.load_model(Doubling())


def test_bundled_vgg_features_0_equals_the_layer_run_alone_bit_for_bit() -> None:
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    run = hookviz.feature_maps(model, hookviz.sample_image("chelsea.png"), ["features.0"])
    captured = run.activations[0].tensor
    with torch.no_grad():
        alone = model.module.get_submodule("features.0")(run.input.tensor)
    assert torch.equal(captured, alone)
    assert captured.min() < 0
    assert isinstance(model.module.get_submodule("features.1"), nn.ReLU)
    assert model.module.get_submodule("features.1").inplace


def test_figure_of_one_call_of_several(small: hookviz.LoadedModel) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv", "relu"])
    assert [(a.layer, a.call, a.calls) for a in run.activations] == [
        ("conv", 1, 1), ("relu", 1, 2), ("relu", 2, 2),
    ]  # fmt: skip
    with pytest.raises(LayerError, match=r"call 1.*call 2"):
        run.figure("relu")
    before = plt.get_fignums()
    assert isinstance(run.figure("relu", 2, cmap="magma", scale="channel"), Figure)
    assert plt.get_fignums() == before


def test_a_layer_that_did_not_run_has_its_reason(small: hookviz.LoadedModel) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv", "spare"])
    assert set(run.missing) == {"spare"}
    with pytest.raises(LayerError, match=r"spare.*not called"):
        run.figure("spare")


def test_an_unknown_layer_is_refused_before_the_forward(small: hookviz.LoadedModel) -> None:
    calls: list[int] = []
    small.module.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(LayerError, match=r"'cnov'.*'conv'"):
        hookviz.feature_maps(small, hookviz.sample_image(), ["cnov"])
    assert calls == []
    assert hooks(small.module) == 1


def test_unknown_option_names_the_closest(small: hookviz.LoadedModel) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv"])
    with pytest.raises(hookviz.HookvizError, match=r"perpage.*per_page"):
        run.figure("conv", perpage=3)


def test_a_module_in_train_mode_runs_in_eval_and_is_left_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    net[1].eval()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    twice = [hookviz.feature_maps(net, hookviz.sample_image(), ["2"]) for _ in range(2)]
    first, second = (r.activations[0].tensor for r in twice)
    assert torch.equal(first, second)
    assert [m.training for m in net.modules()] == [True, True, False, True]
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_the_models_own_exception_comes_through_and_names_its_layer() -> None:
    model = hookviz.load_model(Broken())
    picture = hookviz.sample_image()
    with pytest.raises(RuntimeError, match="channels") as caught:
        hookviz.feature_maps(model, picture, ["first", "block.1"])
    assert failing_layer(model.module, caught.value) == "block.1"
    assert hooks(model.module) == 0
    partial = run_model(model, picture, ["first", "block.1"], keep_partial=True)
    assert isinstance(partial.error, RuntimeError)
    assert partial.layers == ("first",)


def test_cancelled_keeps_what_came(small: hookviz.LoadedModel) -> None:
    seen: list[str] = []
    partial = run_model(
        small,
        hookviz.sample_image(),
        ["conv", "relu"],
        on_activation=lambda a: seen.append(a.layer),
        cancelled=lambda: bool(seen),
        keep_partial=True,
    )
    assert isinstance(partial.error, RunCancelled)
    assert partial.layers == ("conv",)
    assert hooks(small.module) == 0


def test_names_of_ones_own(small: hookviz.LoadedModel) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), {"first": "conv"})
    assert run.layers == ("first",)


def test_export_and_reproduce(small: hookviz.LoadedModel, tmp_path: Path) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv", "relu"])
    result = run.export(tmp_path)
    grids = [f for f in result.files if "_grid_" in f.name]
    assert len(grids) == 3
    for png in grids:
        assert hookviz.reproduce(png, model=small, image=hookviz.sample_image()).identical
    with torch.no_grad():
        small.module.conv.weight[0] += 0.5
    changed = hookviz.reproduce(grids[0], model=small, image=hookviz.sample_image())
    assert not changed.identical
    assert any("weights" in d for d in changed.differences)


@pytest.mark.parametrize("kind", [k.name for k in figure_kinds() if k.by_name])
def test_every_kind_of_figure_that_can_be_asked_for_is_exported_and_drawn_again(
    kind: str, small: hookviz.LoadedModel, tmp_path: Path
) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv", "relu"])
    assert isinstance(run.figure("conv", figure=kind), Figure)
    options = GridOptions(figure=kind)
    result = run.export(tmp_path, what={"grids", "svg"}, options=options)
    pngs = [path for path in result.files if path.suffix == ".png"]
    assert len(pngs) == 3
    for png in pngs:
        assert read_png_facts(png)["layout"].startswith(kind)
        assert hookviz.reproduce(png, model=small).differences == ()
    plain = run.export(tmp_path).files[-1]
    assert read_png_facts(plain)["layout"].startswith("maps")


def test_a_kind_that_is_none_is_one_sentence(small: hookviz.LoadedModel, tmp_path: Path) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv"])
    with pytest.raises(RenderError, match="'statistics'"):
        run.figure("conv", figure="statistic")
    with pytest.raises(RenderError, match="'statistics'"):
        run.export(tmp_path, options=GridOptions(figure="statistic"))
    assert list(tmp_path.iterdir()) == []


def test_stop_early_has_no_output_and_says_so(small: hookviz.LoadedModel) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv"], stop_early=True)
    assert run.layers == ("conv",)
    assert run.output is None
    assert run.predictions.items == ()
    assert run.predictions.reason


def test_reproduce_asks_for_a_model_that_no_name_brings_back(
    small: hookviz.LoadedModel, tmp_path: Path
) -> None:
    run = hookviz.feature_maps(small, hookviz.sample_image(), ["conv"])
    (grid,) = (f for f in run.export(tmp_path).files if "_grid_" in f.name)
    with pytest.raises(hookviz.HookvizError, match=r"Doubling.*not at hand.*Pass the model"):
        hookviz.reproduce(grid)


@pytest.mark.parametrize(
    ("name", "written", "asked"),
    [
        ("resnet18", "none", "none"),
        ("resnet18", "IMAGENET1K_V1", "IMAGENET1K_V1"),
        ("vgg16", "bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)", "bundled"),
        ("timm:resnet18", "none", "none"),
        ("timm:resnet18", "a1_in1k", "DEFAULT"),
    ],
)
def test_reproduce_loads_the_weights_that_the_file_names(
    name: str, written: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[tuple[str, object]] = []
    monkeypatch.setattr(
        "hookviz.models._load.load_model", lambda n, *, weights: loads.append((n, weights))
    )
    load_recorded({"model": name, "weights": written})
    assert loads == [(name, asked)]


@pytest.mark.parametrize("written", ["file my.pth", "state dict", "as passed in"])
def test_reproduce_cannot_bring_back_weights_of_ones_own(written: str) -> None:
    with pytest.raises(hookviz.HookvizError, match=r"resnet18.*not at hand.*Pass the model"):
        load_recorded({"model": "resnet18", "weights": written})
