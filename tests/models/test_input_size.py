"""The size and channels that a module takes, found by trial on the meta device."""

from __future__ import annotations

import time

import pytest
import torch
import torchvision.models as tv
from torch import Tensor, nn
from torch.nn import functional as F

from hookviz.models import InputSize, find_input_size


class Digits(nn.Module):
    """The network of torch's own MNIST example."""

    def __init__(self, channels: int = 1, side: int = 28) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)


class OldDigits(nn.Module):
    """``view(-1, features)`` takes larger images as a batch of several."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.view(-1, 784))


class Patches(nn.Module):
    """A transformer with a table of positions."""

    def __init__(self, grid: tuple[int, int], patch: int = 8) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, grid[0] * grid[1] + 1, 16))
        self.token = nn.Parameter(torch.zeros(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token, x], dim=1) + self.positions


class Strict(nn.Module):
    """Says itself what it takes."""

    def __init__(self, text: str, size: tuple[int, int]) -> None:
        super().__init__()
        self.conv, self.text, self.size = nn.Conv2d(3, 4, 3), text, size

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != self.size:
            raise ValueError(self.text.format(*x.shape[2:]))
        return self.conv(x)


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 4, 2, 2), nn.ConvTranspose2d(4, 3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.up(self.down(x))], dim=1)


def flat(channels: int, height: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 10))


@pytest.mark.parametrize(
    ("module", "channels", "size"),
    [
        (Digits(), 1, (28, 28)),
        (Digits(3, 32), 3, (32, 32)),
        (Digits(3, 50), 3, (50, 50)),
        (Digits(1, 37), 1, (36, 36)),  # 37 gives the same shapes, its last row is cut off
        (OldDigits(), 1, (28, 28)),
        (flat(3, 32, 32), 3, (32, 32)),
        (flat(1, 64, 64), 1, (64, 64)),
        (flat(3, 61, 61), 3, (61, 61)),
        (flat(1, 31, 62), 1, (31, 62)),
        (Patches((12, 12)), 3, (96, 96)),
        (Patches((9, 9), 11), 3, (100, 100)),  # 99 and 100 give the same shapes, 100 is usual
        (Strict("Expected 299 but got {}", (299, 299)), 3, (299, 299)),
        (Strict("image size ({}*{}) doesn't match model (112*224)", (112, 224)), 3, (112, 224)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 11, 4), nn.Flatten(), nn.Linear(8 * 55 * 55, 2)),
            3,
            (227, 227),
        ),
    ],
)
def test_the_one_size_is_found(module, channels, size):
    assert find_input_size(module) == InputSize(channels, size, only=True)
    with torch.no_grad():
        module.eval()(torch.rand(1, channels, *size))


@pytest.mark.parametrize(
    ("builder", "options", "side"),
    [(tv.vit_b_16, {"image_size": 384}, 384), (tv.maxvit_t, {}, 224), (tv.vit_b_32, {}, 224)],
)
def test_the_size_of_torchvisions_transformers_is_found(builder, options, side):
    with torch.device("meta"):
        module = builder(weights=None, **options)
    found = find_input_size(module)
    assert found == InputSize(3, (side, side), only=True)


@pytest.mark.filterwarnings("ignore:The default weight initialization")
@pytest.mark.parametrize(
    "builder", [tv.resnet18, tv.vgg11, tv.densenet121, tv.swin_t, tv.inception_v3]
)
def test_networks_that_take_any_size(builder):
    with torch.device("meta"):
        module = builder(weights=None)
    assert find_input_size(module) == InputSize(3)


def test_sizes_that_must_be_even():
    assert find_input_size(Unet()) == InputSize(3, (224, 224), only=False)


def test_grey_networks_of_any_size():
    assert find_input_size(nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1))) == InputSize(
        1
    )


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv3d(3, 4, 3),
        nn.Conv2d(7, 4, 3),
        nn.LazyConv2d(4, 3),
        nn.LSTM(4, 5),
        Strict("no", (33, 47)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_found_is_none(module):
    assert find_input_size(module) is None


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
def test_a_part_in_torchscript_takes_no_hooks_and_is_passed_by():
    part = torch.jit.script(nn.ReLU())
    module = nn.Sequential(nn.Conv2d(1, 4, 1), part, nn.Flatten(), nn.Linear(4 * 24 * 24, 10))
    assert find_input_size(module) == InputSize(1, (24, 24), only=True)


def test_a_forward_that_needs_values_or_more_arguments_is_none():
    calls = []

    class Values(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.shape)
            return x * x.sum().item()

    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    assert find_input_size(Values()) is None
    assert len(calls) == 1, "no size helps, so no other one is tried"
    assert find_input_size(Two()) is None


def test_wrapped_modules_are_looked_into():
    found = InputSize(1, (28, 28), only=True)
    assert find_input_size(nn.DataParallel(Digits())) == found
    assert find_input_size(torch.compile(Digits(), backend="eager")) == found


def test_a_check_without_words():
    class Silent(Digits):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1:] != (1, 28, 28):
                raise AssertionError
            return super().forward(x)

    assert find_input_size(Silent()) == InputSize(1, (28, 28), only=True)


def test_nothing_of_the_module_is_touched():
    calls = []

    class Noisy(Digits):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn_like(x) + torch.rand(1))

    module = Noisy().train()
    module.register_buffer("count", torch.zeros(3), persistent=False)
    module.plain = torch.ones(2)
    module.norm = nn.BatchNorm2d(32)
    module.conv1.register_forward_hook(lambda *_: calls.append(1))
    module.fc1.register_full_backward_hook(lambda *_: calls.append(2))
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    generator = torch.get_rng_state()
    assert find_input_size(module) == InputSize(1, (28, 28), only=True)
    assert torch.equal(torch.get_rng_state(), generator)
    assert calls == []
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert module.plain.device.type == module.conv1.weight.device.type == "cpu"
    assert all(m.training for m in module.modules())
    assert module.conv1.weight.requires_grad


@pytest.mark.parametrize(
    "setting",
    [
        torch.inference_mode,
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
)
def test_the_size_does_not_depend_on_what_torch_is_set_to(setting):
    module = Digits()
    with setting():
        assert find_input_size(module) == InputSize(1, (28, 28), only=True)


def test_half_precision_and_shared_weights():
    module = Digits().half()
    module.fc2.weight = nn.Parameter(torch.zeros(10, 128, dtype=torch.float16))
    module.again = module.fc2
    assert find_input_size(module) == InputSize(1, (28, 28), only=True)


def test_it_takes_a_moment_and_no_memory_for_a_large_model():
    with torch.device("meta"):
        module = tv.vit_l_16(weights=None)
    begin = time.perf_counter()
    assert find_input_size(module) == InputSize(3, (224, 224), only=True)
    assert time.perf_counter() - begin < 5


def test_a_slow_forward_ends_the_search_between_two_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            time.sleep(0.01)
            return x

    net = nn.Sequential(nn.Conv2d(3, 4, 3), *(Slow() for _ in range(1000)))
    monkeypatch.setattr("hookviz.models._input_size.SECONDS", 0.05)
    assert find_input_size(net) is None
    assert 0 < len(calls) < 500
