"""Attributions of the input: captum's where it is right, drawn and kept with what they rest on."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import Tensor, nn

import hookviz
from hookviz.explanation._attributions import Completeness, baseline_of, fitting_batch
from hookviz.export import read_png_facts
from hookviz.images import Preprocessing, network_input
from hookviz.render import value

SIZE = 64
SEVERAL = ["integrated_gradients", "smoothgrad", "occlusion"]
GRADIENTS = ["saliency", "input_x_gradient", "guided_backprop", *SEVERAL[:2]]
QUICK: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 6},
    "smoothgrad": {"samples": 4},
    "occlusion": {"window": 16},
}


@pytest.fixture(scope="module")
def image() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torchvision.models.resnet18(weights=None).eval()
    return hookviz.load_model(net, preprocess=Preprocessing.for_size(SIZE), name="net")


@pytest.fixture(scope="module")
def given(model: hookviz.LoadedModel, image: Image.Image) -> Tensor:
    return network_input(image, model.preprocess).tensor


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def gradient(net: Callable[[Tensor], Tensor], tensor: Tensor, target: int) -> Tensor:
    x = leaf(tensor)
    return torch.autograd.grad(net(x)[0, target], x)[0]


def values(model: Any, image: Any, method: str, target: Any = 7, **options: Any) -> Tensor:
    found = hookviz.explain(model, image, target=target, method=method, **options)
    return found.activations[0].tensor


class Net(nn.Module):
    """Small, with a ReLU used twice, one in place and one as a function."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.a, self.b = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3)
            self.norm, self.drop = nn.BatchNorm2d(8), nn.Dropout(0.5)
            self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.a(x)))
        x = F.relu(self.b(x))
        return self.fc(self.drop(self.relu(x - 0.1)).mean((2, 3)))


@pytest.fixture
def small() -> hookviz.LoadedModel:
    net = Net().train()
    return hookviz.load_model(net, preprocess=Preprocessing.for_size(32), categories=[*"abcde"])


def test_saliency_is_the_gradient(model: Any, image: Any, given: Tensor) -> None:
    assert torch.equal(values(model, image, "saliency"), gradient(model.module, given, 7))


def test_input_x_gradient_is_their_product(model: Any, image: Any, given: Tensor) -> None:
    found = values(model, image, "input_x_gradient")
    assert torch.equal(found, given * gradient(model.module, given, 7))


def test_guided_backpropagation_is_captums(model: Any, image: Any, given: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = captum.attr.GuidedBackprop(model.module).attribute(given.clone(), target=7)
    assert torch.equal(values(model, image, "guided_backprop"), expected)


def test_integrated_gradients_are_captums(model: Any, image: Any, given: Tensor) -> None:
    options = {"steps": 10, "batch": 4}
    found = hookviz.explain(model, image, target=7, method="integrated_gradients", **options)
    how = model.preprocess
    black = np.float32([-mean / std for mean, std in zip(how.mean, how.std, strict=True)])
    baseline = torch.tensor(black)[None, :, None, None].expand_as(given).contiguous()
    expected = captum.attr.IntegratedGradients(model.module).attribute(
        leaf(given), baselines=baseline, target=7, n_steps=10, internal_batch_size=4
    )
    assert torch.equal(found.activations[0].tensor, expected)
    complete = found.details["completeness"][0]
    with torch.no_grad():
        ends = [float(model.module(x)[0, 7]) for x in (given, baseline)]
    assert complete.difference == pytest.approx(ends[0] - ends[1], rel=1e-6)
    assert complete.total == pytest.approx(float(expected.detach().double().sum()), rel=1e-9)
    assert complete.ratio == pytest.approx(complete.total / complete.difference)
    assert torch.equal(found.details["baseline"][0], baseline)


def test_smoothgrad_is_captums(model: Any, image: Any, given: Tensor) -> None:
    found = values(model, image, "smoothgrad", samples=3, noise=0.2, seed=5, batch=1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = captum.attr.NoiseTunnel(captum.attr.Saliency(model.module)).attribute(
            leaf(given),
            nt_type="smoothgrad",
            nt_samples=3,
            nt_samples_batch_size=1,
            stdevs=0.2 * float(given.max() - given.min()),
            target=7,
            abs=False,
        )
    assert torch.equal(found, expected)


def test_occlusion_is_captums_and_is_that_of_a_loop(model: Any, image: Any, given: Tensor) -> None:
    found = values(model, image, "occlusion", window=(20, 16), stride=(12, 16), batch=5)
    expected = captum.attr.Occlusion(model.module).attribute(
        given,
        sliding_window_shapes=(3, 20, 16),
        strides=(3, 12, 16),
        baselines=0,
        target=7,
        perturbations_per_eval=5,
    )
    assert torch.equal(found, expected[:, :1])
    total, covered = np.zeros((SIZE, SIZE)), np.zeros((SIZE, SIZE))
    with torch.no_grad():
        whole = model.module(given)[0, 7]
        for top in range(0, 60, 12):
            for left in range(0, SIZE, 16):
                there = np.s_[top : top + 20, left : left + 16]
                changed = given.clone()
                changed[(..., *there)] = 0
                total[there] += float(whole - model.module(changed)[0, 7])
                covered[there] += 1
    assert np.allclose(found[0, 0], total / covered, atol=2e-6)


@pytest.mark.parametrize("method", GRADIENTS)
def test_the_batch_changes_nothing_but_rounding(model: Any, image: Any, method: str) -> None:
    if method not in SEVERAL:
        with pytest.raises(hookviz.HookvizError, match="has no option 'batch'; it has none"):
            values(model, image, method, batch=2)
        return
    one, three = (values(model, image, method, **QUICK[method], batch=b) for b in (1, 3))
    assert float((one - three).abs().max()) <= 1e-5 * float(one.abs().max())


def test_steps_are_raised_until_the_sum_holds(small: Any, image: Any) -> None:
    found = hookviz.explain(small, image, target="b", method="integrated_gradients")
    complete = found.details["completeness"][0]
    assert complete.holds
    assert complete.steps in (32, 64, 128)
    assert f"ratio {value(complete.ratio, 4)} ({complete.steps} steps)" in found.drawing().notes[-2]


def test_sums_that_do_not_hold_are_marked_on_the_figure_and_in_the_file(tmp_path: Any) -> None:
    """A step function: its gradient is zero almost everywhere, so nothing can add up."""

    class Steps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.mean((2, 3)) * 0.01) + (x.mean((2, 3)) > 0.25).float()

    net = hookviz.load_model(
        Steps(), preprocess=Preprocessing.for_size(16, mean=0.0, std=1.0), categories=[*"rgb"]
    )
    seen: list[int] = []
    found = hookviz.explain(
        net,
        Image.new("RGB", (16, 16), "white"),
        target="r",
        method="integrated_gradients",
        progress=lambda done, total, left: seen.append(total),
    )
    complete = found.details["completeness"][0]
    assert (complete.steps, complete.holds) == (128, False)
    assert complete.ratio == pytest.approx(0.01 / 1.01, rel=1e-3)
    assert seen[-1] == 2 + 32 + 64 + 128
    sentence = "NOT COMPLETE, off by more than 5 %"
    assert any(note.startswith(sentence) for note in found.drawing().notes)
    (png,) = found.export(tmp_path, what="grids").files[:1]
    assert sentence in read_png_facts(png)["layout"]


def test_completeness_says_what_it_is() -> None:
    assert Completeness(0.951, 1.0, 8).holds
    assert not Completeness(0.949, 1.0, 8).holds
    assert Completeness(-1.049, -1.0, 8).holds
    nothing = Completeness(0.1, 0.0, 8)
    assert np.isnan(nothing.ratio)
    assert str(nothing).startswith("NOT COMPLETE")
    assert "ratio" not in str(nothing)


def test_baselines_are_what_they_are_called(image: Any) -> None:
    how = Preprocessing.for_size(SIZE)
    given = network_input(image, how)

    def shown(choice: Any) -> set[tuple[int, ...]]:
        tensor, _ = baseline_of(given, choice)
        assert tensor.shape == given.tensor.shape
        pixels = tensor[0] * torch.tensor(how.std)[:, None, None]
        levels = (pixels + torch.tensor(how.mean)[:, None, None]).mul(255).round()
        return {tuple(map(int, color)) for color in levels.flatten(1).T}

    assert shown("black") == {(0, 0, 0)}
    assert shown("white") == {(255, 255, 255)}
    assert shown(0.2) == {(51, 51, 51)}
    assert shown("mean") == {tuple(round(255 * m) for m in how.mean)}
    blurred, words = baseline_of(given, "blur")
    assert words == "the input blurred, sigma 4 pixels"
    assert 0 < float(blurred.std()) < 0.2 * float(given.tensor.std())
    own = torch.rand_like(given.tensor)
    assert torch.equal(baseline_of(given, own)[0], own)


def test_the_baseline_decides(small: Any, image: Any) -> None:
    found = [
        values(small, image, "integrated_gradients", "a", steps=4, baseline=choice)
        for choice in ("black", "white", torch.full((1, 3, 32, 32), 0.3))
    ]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_several_targets_are_several_maps(small: Any, image: Any) -> None:
    found = hookviz.explain(small, image, target=["a", "d"], method="saliency")
    assert found.activations[0].shape == (2, 3, 32, 32)
    for at, target in enumerate("ad"):
        assert torch.equal(found.activations[0].tensor[at : at + 1],
                           values(small, image, "saliency", target))  # fmt: skip


def test_a_target_may_be_a_channel_of_a_later_layer(model: Any, image: Any, given: Tensor) -> None:
    found = values(model, image, "saliency", "channel 3 of layer1")
    x = leaf(given)
    net = model.module
    out = net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x)))))
    (expected,) = torch.autograd.grad(out[0, 3].mean(), x)
    assert torch.allclose(found, expected, atol=1e-9)


def test_a_net_that_begins_in_place_is_explained(image: Any) -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3), nn.Flatten(2), Mean())
    loaded = hookviz.load_model(net, preprocess=Preprocessing.for_size(16), categories=[*"abcd"])
    for method in ("saliency", "guided_backprop", "integrated_gradients"):
        assert values(loaded, image, method, "a").abs().max() > 0


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(-1)


def state(net: nn.Module) -> list[Any]:
    return [
        [(n, m.training, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks),
          sorted(m.__dict__)) for n, m in net.named_modules()],
        [(n, p.requires_grad, p.grad is None, p.sum().item()) for n, p in net.named_parameters()],
        [(n, b.double().sum().item()) for n, b in net.named_buffers()],
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),
        torch.is_grad_enabled(),
        torch.overrides._get_current_function_mode_stack(),
    ]  # fmt: skip


@pytest.fixture
def unchanged(small: hookviz.LoadedModel) -> Iterator[None]:
    small.module.a.requires_grad_(False)
    before = state(small.module)
    yield
    assert state(small.module) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("method", [*GRADIENTS, "occlusion"])
def test_the_model_and_torch_are_as_before(small: Any, image: Any, method: str) -> None:
    with torch.no_grad():
        values(small, image, method, "b", **QUICK.get(method, {}))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("method", SEVERAL)
def test_cancelling_leaves_nothing_behind(small: Any, image: Any, method: str) -> None:
    seen: list[tuple[int, int, float]] = []
    with pytest.raises(hookviz.errors.RunCancelled):
        hookviz.explain(
            small, image, target="b", method=method, **QUICK[method] | {"batch": 1},
            progress=lambda *steps: seen.append(steps), cancelled=lambda: len(seen) >= 2,
        )  # fmt: skip
    assert len(seen) == 2
    assert seen[1][0] == 2 < seen[1][1]
    assert seen[1][2] > 0


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("method", [*GRADIENTS, "occlusion"])
def test_an_error_leaves_nothing_behind(small: Any, image: Any, method: str) -> None:
    calls: list[int] = []

    def fails(output: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ArithmeticError("no")
        return output[0, 0]

    with pytest.raises(ArithmeticError, match=r"^no$"):
        values(small, image, method, fails, **QUICK.get(method, {}))


def test_the_same_seed_gives_the_same_noise_and_another_seed_another(
    small: Any, image: Any
) -> None:
    def found(seed: int) -> Tensor:
        torch.rand(3)
        return values(small, image, "smoothgrad", "b", samples=4, seed=seed)

    with torch.random.fork_rng():
        assert torch.equal(found(1), found(1))
        assert not torch.equal(found(1), found(2))


def test_progress_ends_with_everything_done(small: Any, image: Any) -> None:
    for method in SEVERAL:
        seen: list[tuple[int, int, float]] = []
        hookviz.explain(
            small, image, target="b", method=method, **QUICK[method],
            progress=lambda *steps, to=seen: to.append(steps),
        )  # fmt: skip
        assert seen[-1][0] == seen[-1][1]
        assert seen[-1][2] == 0
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)


def test_batches_fit_into_the_memory_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 10, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(1000, 2))
    x = torch.rand(1, 3, 10, 10)

    def score(x: Tensor) -> Tensor:
        return net(x)[:, 0]

    # Kept for the backward: the input for the convolution and the sigmoid's output, both float32.
    each = 2 * 4 * (300 + 1000)
    for room, expected in ((5 * each, 5), (5 * each - 1, 4), (1, 1), (10**9, 16)):
        monkeypatch.setattr("hookviz.explanation._attributions._MEMORY", room)
        assert fitting_batch(net, score, x) == expected


class WithGELU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)).mean((2, 3)))


class Rounded(WithGELU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach().round()


@pytest.mark.parametrize(
    ("net", "method", "options", "sentence"),
    [
        (
            WithGELU,
            "guided_backprop",
            {},
            "at ReLUs, and none lies between the .* method='saliency'",
        ),
        (Rounded, "saliency", {}, "No gradient leads from the target .* method='occlusion'"),
        (Rounded, "integrated_gradients", {}, "No gradient leads from the target"),
        (WithGELU, "saliency", {"steps": 3}, "Saliency has no option 'steps'; it has none"),
        (WithGELU, "smoothgrad", {"sample": 3}, "Did you mean 'samples'"),
        (WithGELU, "smoothgrad", {"samples": 0}, "samples is 0; .* whole number from 1"),
        (WithGELU, "smoothgrad", {"samples": None}, "samples is None; .* whole number from 1"),
        (WithGELU, "smoothgrad", {"seed": None}, "seed is None; .* whole number from 0"),
        (WithGELU, "smoothgrad", {"noise": -1}, "noise is -1; .* above 0"),
        (WithGELU, "integrated_gradients", {"steps": 2.5}, "steps is 2.5; .* whole number"),
        (WithGELU, "integrated_gradients", {"batch": True}, "batch is True"),
        (WithGELU, "integrated_gradients", {"baseline": "blck"}, "Did you mean 'black'"),
        (WithGELU, "integrated_gradients", {"baseline": 2}, "level from 0 .black. to 1"),
        (WithGELU, "integrated_gradients", {"baseline": torch.zeros(2)}, r"not \(2,\)"),
        (WithGELU, "occlusion", {"window": 65}, "window is 65; .* from 1 to 64"),
        (WithGELU, "occlusion", {"window": 8, "stride": 9}, "stride is 9; .* from 1 to 8"),
        (WithGELU, "occlusion", {"window": "8"}, r"window is '8'; .* \(height, width\)"),
        (WithGELU, "saliency", {"layers": ["a"]}, "explains the network's input and takes no la"),
        (WithGELU, "deeplift", {}, "DeepLIFT is not offered.*integrated_gradients"),
        (WithGELU, "DeepLift", {}, "DeepLIFT is not offered"),
        (WithGELU, "lrp", {}, "LRP is not offered.*integrated_gradients"),
    ],
)
def test_what_does_not_go_is_one_sentence(
    image: Any, net: type[nn.Module], method: str, options: dict[str, Any], sentence: str
) -> None:
    loaded = hookviz.load_model(
        net(), preprocess=Preprocessing.for_size(SIZE), categories=["x", "y", "z"]
    )
    with pytest.raises(hookviz.HookvizError, match=sentence):
        hookviz.explain(loaded, image, target=0, method=method, **options)


def test_occlusion_needs_no_gradient(image: Any) -> None:
    loaded = hookviz.load_model(
        Rounded(), preprocess=Preprocessing.for_size(SIZE), categories=["x", "y", "z"]
    )
    found = hookviz.explain(loaded, image, target=0, method="occlusion", window=32)
    assert found.activations[0].shape == (1, 1, SIZE, SIZE)


def test_without_captum_one_sentence_says_how_to_get_it(
    small: Any, image: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "captum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "captum", None)
    for method in ("saliency", "integrated_gradients", "occlusion", "smoothgrad"):
        with pytest.raises(hookviz.HookvizError, match=r"need captum.*pip install 'hookviz\[exp"):
            values(small, image, method, "b")
    assert values(small, image, "guided_backprop", "b").abs().max() > 0


def test_figures_show_the_sum_the_largest_or_each_color(small: Any, image: Any) -> None:
    found = hookviz.explain(small, image, target=["a", "c"], method="smoothgrad", samples=2)
    tensor = found.activations[0].tensor
    for colors, count in (("sum", 2), ("max", 2), ("each", 6)):
        drawing = found.drawing(options=found.options(colors=colors, scale="full"))
        assert drawing.total == count
        maps = {"sum": tensor.sum(1), "max": tensor.abs().amax(1), "each": tensor.flatten(0, 1)}
        high = float(maps[colors].abs().max())
        assert drawing.vmax == pytest.approx(high)
        assert drawing.vmin == pytest.approx(
            float(maps[colors].min()) if colors == "max" else -high
        )
    names = [note for note in drawing.notes if "class" in note]
    assert [note[:2] for note in names] == ["0 ", "3 "]
    assert "red, green, blue of each target" in drawing.notes
    with pytest.raises(hookviz.HookvizError, match=r"colors is 'all'; legal are 'sum'"):
        found.figure(colors="all")


def test_saliency_is_drawn_as_its_paper_has_it(small: Any, image: Any) -> None:
    found = hookviz.explain(small, image, target="a", method="saliency")
    drawing = found.drawing(options=found.options(scale="full"))
    assert drawing.vmax == pytest.approx(float(found.activations[0].tensor.abs().amax(1).max()))
    assert "the largest magnitude of 3 color channels" in drawing.notes


def test_the_maps_lie_over_what_the_network_saw(small: Any, image: Any) -> None:
    found = hookviz.explain(small, image, target="a", method="smoothgrad", samples=1)
    assert found.input.box == (0.0, 0.0, 64.0, 64.0)
    assert found.drawing().on_image


@pytest.mark.parametrize("method", [*GRADIENTS, "occlusion"])
@pytest.mark.parametrize("target", ["a", ["b", "e"]])
def test_a_file_is_drawn_again_from_what_it_says(
    small: Any, image: Any, method: str, target: Any, tmp_path: Any
) -> None:
    options = QUICK.get(method, {})
    found = hookviz.explain(small, image, target=target, method=method, **options)
    (png,) = (f for f in found.export(tmp_path, what="grids").files if f.suffix == ".png")
    again = hookviz.reproduce(png, small, image)
    assert (again.identical, again.differences) == (True, ())
    said = json.loads(again.facts["explanation"])["options"]
    assert said.items() >= {k: v for k, v in options.items() if k != "window"}.items()
    if method in SEVERAL:
        assert isinstance(said["batch"], int)


def test_a_file_says_that_it_does_not_hold_the_baseline(
    small: Any, image: Any, tmp_path: Any
) -> None:
    own = torch.zeros(1, 3, 32, 32)
    found = hookviz.explain(
        small, image, target="a", method="integrated_gradients", baseline=own, steps=2
    )
    png = next(f for f in found.export(tmp_path, what="grids").files if f.suffix == ".png")
    with pytest.raises(hookviz.HookvizError, match=r"a tensor that it does not hold \(baseline"):
        hookviz.reproduce(png, small, image)
