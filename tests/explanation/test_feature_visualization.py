"""Feature visualization: pictures to which a channel answers; small nets, few steps."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import hookviz
from hookviz import feature_visualization
from hookviz.errors import HookvizError, LayerError, RunCancelled
from hookviz.explanation import FeatureVisualization, visualize_again
from hookviz.explanation._paint import Moves, Spectrum
from hookviz.images import Preprocessing

SMALL = {"size": 24, "steps": 6}
STILL = {"jitter": 0.0, "scale": 0.0, "rotate": 0.0}


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


@pytest.fixture
def model() -> hookviz.LoadedModel:
    names = ("ant", "bee", "cat", "dog", "elk")
    size = Preprocessing(crop=(24, 24), fit="squash", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    return hookviz.load_model(small(), categories=names, preprocess=size)


def looked_at(found: FeatureVisualization, upto: int) -> torch.Tensor:
    """What a layer gives for the picture, computed without hookviz."""
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    with torch.no_grad():
        return small().eval()[: upto + 1]((found.pixels - mean) / std)


# Objectives ------------------------------------------------------------------------------------


def test_the_value_is_what_the_layer_gives_before_the_in_place_relu(model):
    found = feature_visualization(model, "2", 3, **SMALL)
    expected = looked_at(found, 2)[:, 3].mean()
    assert found.activation == pytest.approx(float(expected), rel=1e-5)
    assert found.objective == "channel 3 of 2"


def test_of_a_relu_the_input_is_made_large_unless_told_else(model):
    before = feature_visualization(model, "3", 3, **SMALL)
    assert before.objective == "channel 3 of 3, before the ReLU"
    assert torch.equal(before.pixels, feature_visualization(model, "2", 3, **SMALL).pixels)
    after = feature_visualization(model, "3", 3, before_relu=False, **SMALL)
    expected = looked_at(after, 3)[:, 3].mean()
    assert after.activation == pytest.approx(float(expected), rel=1e-5)
    assert after.objective == "channel 3 of 3"


def test_a_place_several_channels_and_a_class(model):
    found = feature_visualization(model, "2", 3, place=(4, 7), **SMALL)
    assert found.activation == pytest.approx(float(looked_at(found, 2)[0, 3, 4, 7]), rel=1e-5)
    center = feature_visualization(model, "2", 3, place="center", **SMALL)
    assert center.parameters["place"] == (10, 10)

    found = feature_visualization(model, "2", [0, 5], **SMALL)
    expected = looked_at(found, 2)[0, [0, 5]].mean()
    assert found.activation == pytest.approx(float(expected), rel=1e-5)
    found = feature_visualization(model, "2", {0: 1.0, 5: -2.0}, **SMALL)
    means = looked_at(found, 2)[0].mean((1, 2))
    assert found.activation == pytest.approx(float((means[0] - 2 * means[5]) / 2), rel=1e-4)

    for one in ("cat", 2):
        found = feature_visualization(model, None, one, **SMALL)
        assert found.objective == "class 2 (cat)"
        assert found.activation == pytest.approx(float(looked_at(found, 6)[0, 2]), rel=1e-5)


def test_it_grows_and_more_than_noise_does(model):
    found = feature_visualization(model, "2", 3, size=24, steps=40)
    noise = torch.rand((200, 3, 24, 24), generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    with torch.no_grad():
        others = small()[:3]((noise - mean) / std)[:, 3].mean((1, 2))
    assert found.activation > float(others.max())
    assert found.history[-1] > found.history[0]
    assert found.robust[0] > float(others.max())


def test_the_gradient_is_the_right_one(model):
    """One step of plain gradient ascent, written out."""
    found = feature_visualization(model, "2", 3, size=24, steps=1, **STILL)
    generator = torch.Generator().manual_seed(0)
    spectrum = Spectrum((1, 3, 24, 24), 1.0, generator, torch.device("cpu"))
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)))
    net = small().eval()
    value = net[:3]((spectrum.pictures() - mean) / std)[:, 3].mean()
    (gradient,) = torch.autograd.grad(value, [spectrum.values])
    # The first step of Adam is the learning rate times the sign (but for its epsilon).
    step = 0.05 * gradient / (gradient.abs() + 1e-8)
    with torch.no_grad():
        spectrum.values += step
    assert found.history[0] == pytest.approx(value.item(), rel=1e-5)
    torch.testing.assert_close(found.pixels, spectrum.pictures().detach(), atol=1e-5, rtol=0)


def test_several_pictures_differ_the_more_the_more_diversity_counts(model):
    def apart(diversity: float) -> float:
        found = feature_visualization(
            model, "2", 3, count=3, diversity=diversity, size=24, steps=25, **STILL
        )
        maps = looked_at(found, 2).flatten(2)
        gram = F.normalize((maps @ maps.transpose(1, 2)).flatten(1), dim=1)
        return float((gram @ gram.t()).triu(1).sum() / 3)

    assert apart(100.0) < apart(0.0) - 0.01
    found = feature_visualization(model, "2", 3, count=3, **SMALL)
    assert len(found.images) == len(found.activations) == len(found.robust) == 3


# The picture and its moves -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [(16, 24), (17, 23), (8, 9)])
def test_any_size(model, size):
    found = feature_visualization(model, "0", 1, size=size, steps=2)
    assert found.pixels.shape == (1, 3, *size)
    assert found.image.size == size[::-1]
    assert found.image.mode == "RGB"
    assert 0 <= float(found.pixels.min()) <= float(found.pixels.max()) <= 1


def test_the_spectrum_by_its_definition():
    spectrum = Spectrum((1, 1, 6, 5), 1.5, torch.Generator().manual_seed(0), torch.device("cpu"))
    values = spectrum.values.detach().double()
    picture = torch.zeros(6, 5, dtype=torch.float64)
    for u in range(6):
        for v in range(3):
            f = math.hypot(min(u, 6 - u) / 6, v / 5)
            weight = max(f, 1 / 6) ** -1.5
            amplitude = torch.complex(*values[0, 0, u, v]) * weight
            for y in range(6):
                for x in range(5):
                    wave = amplitude * np.exp(2j * math.pi * (u * y / 6 + v * x / 5))
                    # The half that a real picture's spectrum leaves out is its mirror image.
                    picture[y, x] += wave.real if v == 0 else 2 * wave.real
    expected = (picture / math.sqrt(30) / 4).sigmoid()
    torch.testing.assert_close(
        spectrum.pictures()[0, 0].detach().double(), expected, atol=1e-6, rtol=0
    )


def test_a_shift_a_turn_and_a_change_of_size_are_what_they_say():
    x = torch.rand(1, 3, 20, 30)

    class Fixed(Moves):
        pass

    def seen(drawn: list[float], moves: Moves) -> torch.Tensor:
        real, torch.rand = torch.rand, lambda *_, **__: (torch.tensor([drawn]) + 1) / 2
        try:
            return moves.seen(x, torch.Generator())
        finally:
            torch.rand = real

    shifted = seen([0, 0, 0.5, -0.25], Moves(8, 0, 0))
    by_hand = torch.full_like(x, 0.5)
    by_hand[..., 2:, :-4] = x[..., :-2, 4:]
    torch.testing.assert_close(shifted, by_hand, atol=1e-5, rtol=0)
    turned = seen([1, 0, 0, 0], Moves(0, 0, 180))
    torch.testing.assert_close(turned, x.flip(2, 3), atol=1e-5, rtol=0)
    larger = seen([0, 1, 0, 0], Moves(0, 0.5, 0))
    torch.testing.assert_close(
        larger.mean((2, 3)), x[..., 3:17, 5:25].mean((2, 3)), atol=0.05, rtol=0
    )
    assert Moves(0, 0, 0).seen(x, torch.Generator()) is x


def test_a_network_that_takes_gray():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.LazyLinear(2))
    net(torch.zeros(1, 1, 16, 16))
    gray = Preprocessing(crop=(16, 16), fit="squash", mean=(0.5,), std=(0.5,))
    model = hookviz.load_model(net, preprocess=gray)
    found = feature_visualization(model, "0", 1, size=16, steps=3)
    assert found.pixels.shape == (1, 1, 16, 16)
    with torch.no_grad():
        expected = net[0]((found.pixels - 0.5) / 0.5)[:, 1].mean()
    assert found.activation == pytest.approx(float(expected), rel=1e-5)
    assert found.array.shape == (16, 16, 3)
    assert (found.array[..., 0] == found.array[..., 2]).all()
    assert found.figure(width=300).canvas.get_width_height()[0] == 300


def test_channels_last_and_tokens():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 4, 4)
            self.norm = nn.LayerNorm(8)
            self.tokens = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.conv(x).permute(0, 2, 3, 1))
            return self.tokens(x.flatten(1, 2))

    torch.manual_seed(0)
    net = Last().to(memory_format=torch.channels_last)
    model = hookviz.load_model(net, preprocess=Preprocessing(crop=(32, 32), fit="squash"))
    for layer, channel in (("norm", 5), ("tokens", 9)):
        found = feature_visualization(model, layer, channel, size=32, steps=3, count=2)
        with torch.no_grad():
            x = net.norm(net.conv(found.pixels).permute(0, 2, 3, 1))
            x = x if layer == "norm" else net.tokens(x.flatten(1, 2))
        expected = x[..., channel].flatten(1).mean(1)
        torch.testing.assert_close(torch.tensor(found.activations), expected, atol=1e-5, rtol=1e-5)


def test_a_module_that_runs_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.conv(x).tanh())

    torch.manual_seed(0)
    net = Twice()
    model = hookviz.load_model(net, preprocess=Preprocessing(crop=(16, 16), fit="squash"))
    one = feature_visualization(model, "conv", 0, call=1, size=16, steps=3)
    last = feature_visualization(model, "conv", 0, size=16, steps=3)
    with torch.no_grad():
        assert one.activation == pytest.approx(float(net.conv(one.pixels)[0, 0].mean()), rel=1e-5)
        assert last.activation == pytest.approx(float(net(last.pixels)[0, 0].mean()), rel=1e-5)
    assert last.objective == "channel 0 of conv call 2 of 2"


def test_a_size_that_only_the_layers_before_take():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 30 * 30, 4))
    model = hookviz.load_model(net, preprocess=Preprocessing(crop=(32, 32), fit="squash"))
    found = feature_visualization(model, "0", 1, size=20, steps=2)
    with torch.no_grad():
        assert found.activation == pytest.approx(float(net[0](found.pixels)[0, 1].mean()), rel=1e-5)


# What it leaves alone ----------------------------------------------------------------------------


def state(net: nn.Module) -> list[object]:
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training, sorted(m.__dict__))
        for m in net.modules()
    ]
    tensors = [(p.requires_grad, p.grad is None, p.sum().item()) for p in net.parameters()]
    numbers = [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()]
    return [hooks, tensors, numbers, torch.is_grad_enabled()]


@pytest.mark.parametrize("frozen", [True, False])
def test_the_model_and_all_random_numbers_are_as_before(model, frozen):
    net = model.module.train()
    net.requires_grad_(not frozen)
    before = state(net)
    with torch.no_grad():
        feature_visualization(model, "2", 3, **SMALL)
    assert state(net) == before
    with pytest.raises(ZeroDivisionError):
        feature_visualization(model, "2", 3, progress=lambda *_: 1 / 0, **SMALL)
    assert state(net) == before


def test_the_same_parameters_give_the_same_pixels_and_another_seed_others(model):
    one, again, other = (feature_visualization(model, "2", 3, seed=s, **SMALL) for s in (5, 5, 6))
    assert torch.equal(one.pixels, again.pixels)
    assert (one.history, one.robust) == (again.history, again.robust)
    assert not torch.equal(one.pixels, other.pixels)


# Progress and cancelling -------------------------------------------------------------------------


def test_progress_shows_the_picture_growing(model):
    seen: list[tuple[int, float, Image.Image]] = []
    found = feature_visualization(
        model, "2", 3, progress=lambda *given: seen.append(given), **SMALL
    )
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert tuple(value for _, value, _ in seen) == found.history
    assert np.array_equal(np.asarray(seen[-1][2]), found.array)
    assert not np.array_equal(np.asarray(seen[0][2]), found.array)


def test_cancelling_keeps_what_is_there(model):
    done: list[int] = []
    found = feature_visualization(
        model, "2", 3, size=24, steps=50,
        progress=lambda step, *_: done.append(step), cancelled=lambda: len(done) >= 4,
    )  # fmt: skip
    assert (found.steps, found.cancelled, len(found.history)) == (4, True, 4)
    same = feature_visualization(model, "2", 3, size=24, steps=4)
    assert torch.equal(found.pixels, same.pixels)
    assert found.activation == same.activation
    with pytest.raises(RunCancelled):
        feature_visualization(model, "2", 3, cancelled=lambda: True, **SMALL)


# Files -------------------------------------------------------------------------------------------


def test_files_carry_all_parameters_and_the_very_pixels(model, tmp_path: Path):
    found = feature_visualization(model, "2", {3: 1.0, 1: -0.5}, count=2, seed=4, **SMALL)
    found.export(tmp_path, name="x")
    pictures = sorted((tmp_path / "x").glob("*_ch*.png"))
    assert len(pictures) == 2
    for path, image in zip(pictures, found.images, strict=True):
        assert np.array_equal(np.asarray(Image.open(path).convert("RGB")), np.asarray(image))
    (grid,) = (tmp_path / "x").glob("*grid*.png")
    facts = hookviz.export.read_png_facts(grid)
    assert facts["objective"] == found.objective
    assert facts["seed"] == "4"
    recipe = json.loads(facts["visualization"])
    assert recipe["learning_rate"] == 0.05
    again = visualize_again(recipe, model)
    assert torch.equal(again.pixels, found.pixels)
    assert again.robust == found.robust
    for path in (grid, *pictures):
        redrawn = hookviz.reproduce(path, model)
        assert redrawn.identical, redrawn.differences


def test_damaged_parameters_are_a_sentence(model):
    for recipe in ({"layer": "2", "evil": 1}, {"layer": "2", "steps": "9"}, {"size": [1]}):
        with pytest.raises(HookvizError):
            visualize_again(recipe, model)


def test_the_figure_shows_the_picture_and_says_what_it_is(model):
    found = feature_visualization(model, "2", 3, **SMALL)
    assert repr(found).startswith("<Picture of channel 3 of 2")
    assert found.figure().canvas.get_width_height()[0] > 100


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "part"),
    [
        ({"layer": "9"}, LayerError, "'9'"),
        ({"layer": "*"}, LayerError, "a picture is made for one"),
        ({"channel": 6}, LayerError, "its channels are 0 to 5"),
        ({"channel": -1}, HookvizError, "channel is -1"),
        ({"channel": "cat"}, HookvizError, "channel is 'cat'"),
        ({"channel": []}, HookvizError, "at least one"),
        ({"channel": {0: "x"}}, HookvizError, "The weight of channel 0"),
        ({"layer": None, "channel": "cow"}, HookvizError, "No class is called 'cow'"),
        ({"layer": None, "channel": 5}, HookvizError, "There is no class 5"),
        ({"place": (99, 0)}, LayerError, "There is no place 99, 0"),
        ({"place": "left"}, HookvizError, "place is 'left'"),
        ({"size": 7}, HookvizError, "size is 7"),
        ({"size": "big"}, HookvizError, "size is 'big'"),
        ({"steps": 0}, HookvizError, "steps is 0; it must be a whole number from 1"),
        ({"seed": -1}, HookvizError, "seed is -1"),
        ({"learning_rate": 0}, HookvizError, "learning_rate is 0"),
        ({"decay": "x"}, HookvizError, "decay is 'x'"),
        ({"call": 2}, LayerError, "has no call 2; it ran 1 times"),
        ({"progress": 3}, HookvizError, "progress must be a function"),
    ],
)
def test_bad_input_is_one_sentence(model, given, kind, part):
    with pytest.raises(kind) as caught:
        feature_visualization(model, **({"layer": "2", "channel": 3, **SMALL} | given))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_no_gradient_path_and_quantised_models():
    class Cut(nn.Module):
        def __init__(self, how) -> None:
            super().__init__()
            self.how, self.conv = how, nn.Conv2d(3, 3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.how(x))

    for how in (torch.Tensor.detach, lambda x: x.round().long().float()):
        model = hookviz.load_model(Cut(how), preprocess=Preprocessing())
        model.module.requires_grad_(requires_grad=False)
        with pytest.raises(HookvizError, match="No gradient leads from layer 'conv'"):
            feature_visualization(model, "conv", 0, **SMALL)


def test_values_that_leave_the_numbers():
    net = nn.Sequential(nn.Conv2d(3, 2, 3))
    net[0].bias.data.fill_(float("inf"))
    model = hookviz.load_model(net, preprocess=Preprocessing())
    with pytest.raises(HookvizError, match="At step 1 the value or its gradient is not finite"):
        feature_visualization(model, "0", 0, **SMALL)
