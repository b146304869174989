"""One channel of a layer: its numbers against NumPy, its strongest places, what it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hookviz
from hookviz.errors import LayerError
from hookviz.run import InputSource, Run

PHOTO = hookviz.sample_image("chelsea.png")


class Cast(nn.Module):
    """Gives its input in another dtype or layout."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(x)


def run_of(net: nn.Module, *layers: str, size: int = 24) -> Run:
    return hookviz.feature_maps(net, PHOTO, layers, preprocess=hookviz.Preprocessing.for_size(size))


def casting(change: Any) -> Run:
    torch.manual_seed(0)
    return run_of(nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), Cast(change)), "1")


def odd(x: Tensor) -> Tensor:
    x = x.clone()
    x[0, 2, :3, 5] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return x


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        F.relu,
        odd,
        lambda x: x.half(),
        lambda x: x.bfloat16(),
        lambda x: x.double() * 1e100,
        lambda x: (x * 100).to(torch.int16),
        lambda x: x > 0,
        lambda x: x.permute(0, 2, 3, 1),
    ],
)
def test_the_numbers_of_a_channel_are_those_of_numpy(change: Any) -> None:
    run = casting(change)
    tensor = run.activations[0].tensor[0]
    maps = tensor.movedim(-1, 0) if tensor.shape[-1] == 5 else tensor
    found = run.channel("1", 2, axes="channels-last" if maps is not tensor else "maps")
    assert torch.equal(found.map.nan_to_num(7.0), maps[2].nan_to_num(7.0))
    assert found.map.dtype == tensor.dtype
    assert found.map.data_ptr() != maps[2].data_ptr()
    values = maps.double().numpy()
    finite = [v[np.isfinite(v)] for v in values]
    own = finite[2]
    assert (found.low, found.high) == (own.min(), own.max())
    assert found.mean == pytest.approx(own.mean(), rel=1e-9)
    scale = np.abs(own).max()
    assert found.std == pytest.approx((own / scale).std() * scale, rel=1e-9)
    assert found.zeros == pytest.approx((own == 0).mean())
    odd_ones = values[2][~np.isfinite(values[2])]
    assert (found.nan, found.posinf, found.neginf) == (
        np.isnan(odd_ones).sum(), (odd_ones == np.inf).sum(), (odd_ones == -np.inf).sum(),
    )  # fmt: skip
    for name, numbers in {
        "high": [v.max() for v in finite],
        "mean": [v.mean() for v in finite],
        "std": [(v / scale).std() for v in finite],
        "zeros": [(v == 0).mean() for v in finite],
    }.items():
        assert found.ranks[name] == 1 + sum(n > numbers[2] for n in numbers), name
    counts, edges = found.histogram(10)
    expected, ends = np.histogram(own / scale, 10)
    assert counts.tolist() == expected.tolist()
    assert np.allclose(edges / scale, ends)


def test_numbers_follow_a_tensor_that_is_changed() -> None:
    run = casting(lambda x: x)
    before = run.channel("1", 0)
    run.activations[0].tensor[0, 0, 3, 4] = 1000.0
    assert run.channel("1", 0).high == 1000.0 != before.high
    assert before.map[3, 4] != 1000.0


def test_a_channel_without_a_finite_value_has_no_numbers_and_no_ranks() -> None:
    run = casting(lambda x: x * torch.nan)
    found = run.channel("1", 0)
    assert np.isnan([found.low, found.high, found.mean, found.std, found.zeros]).all()
    assert set(found.ranks.values()) == {None}
    assert [len(part) for part in found.histogram()] == [0, 0]
    assert found.strongest() == []


def test_a_channel_that_is_the_same_everywhere() -> None:
    found = casting(lambda x: x * 0 + 3.0).channel("1", 1)
    assert found.ranks == {"high": 1, "mean": 1, "std": 1, "zeros": 1}
    counts, edges = found.histogram(4)
    assert counts.sum() == 576
    assert (edges[0], edges[-1]) == (2.5, 3.5)
    assert [place[:2] for place in found.strongest(3)] == [(0, 0), (0, 1), (0, 2)]


def test_the_strongest_places_are_those_of_a_full_sort() -> None:
    found = casting(odd).channel("1", 2)
    values = found.map.double().numpy()
    every = sorted(
        (-values[y, x], y, x) for y in range(24) for x in range(24) if not np.isnan(values[y, x])
    )
    assert found.strongest(9) == [(y, x, -negative) for negative, y, x in every[:9]]
    assert found.strongest(9)[0][2] == np.inf
    kept: list[tuple[int, int]] = []
    for _, y, x in every:
        if all(max(abs(y - b), abs(x - a)) >= 4 for b, a in kept):
            kept.append((y, x))
    assert [place[:2] for place in found.strongest(999, apart=4)] == kept


def test_a_vector_and_tokens_have_channels() -> None:
    vector = casting(lambda x: x.mean((2, 3))).channel("1", 3)
    assert (vector.map.shape, vector.channels) == ((1, 1), 5)
    tokens = casting(lambda x: F.pad(x.flatten(2).transpose(1, 2), (0, 0, 1, 0)))
    found = tokens.channel("1", 3, grid=(24, 24))
    assert torch.equal(found.map, tokens.activations[0].tensor[0, 1:, 3].reshape(24, 24))


def test_what_is_no_channel_is_said() -> None:
    run = casting(lambda x: x)
    for wrong in (5, -1, 1.5, True):
        with pytest.raises(LayerError, match="0 to 4"):
            run.channel("1", wrong)  # type: ignore[arg-type]
    with pytest.raises(LayerError, match="bins is 0"):
        run.channel("1", 0).histogram(0)


# ── what a channel reads


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(6, 8, 3),
        nn.Conv2d(6, 8, 1),
        nn.Conv2d(6, 4, 3, groups=2),
        nn.Conv2d(6, 12, 3, groups=6),
        nn.ConvTranspose2d(6, 4, 3, groups=2),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 8, 3)),
    ],
)
def test_input_channels_are_those_whose_change_changes_the_output(conv: nn.Module) -> None:
    """By brute force: an impulse in one input channel gives that channel's kernel."""
    run = run_of(nn.Sequential(nn.Conv2d(3, 6, 3), conv), "1", size=12)
    outputs = (
        conv.weight.shape[1] * 2 if isinstance(conv, nn.ConvTranspose2d) else conv.out_channels
    )  # type: ignore[union-attr,operator]
    for channel in range(int(outputs)):  # type: ignore[call-overload]
        found = run.input_channels("1", channel)
        norms, sums = [], []
        for source in range(6):
            image = torch.zeros(1, 6, 9, 9)
            image[0, source, 4, 4] = 1
            with torch.no_grad():
                answer = (conv(image) - conv(torch.zeros_like(image)))[0, channel].double()
            norms.append(answer.norm().item())
            sums.append(answer.sum().item())
        reads = [c for c in range(6) if norms[c] > 0]
        assert list(found.channels) == reads
        assert found.total == 6
        assert np.allclose(found.norms, [norms[c] for c in reads], atol=1e-6)
        assert np.allclose(found.sums, [sums[c] for c in reads], atol=1e-6)
        order = sorted(reads, key=lambda c: -norms[c])
        assert list(found.order) == order
        assert [c for c, _, _ in found.top(2)] == order[:2]
        assert found.top(1)[0][1] == pytest.approx(norms[order[0]])


def test_a_linear_layer_reads_features() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    found = run_of(net, "3").input_channels("3", 1)
    weight = net[3].weight[1]  # type: ignore[index]
    assert list(found.order) == weight.abs().argsort(descending=True).tolist()
    # Flatten gives that very tensor; it may make many features of one channel, so nothing before.
    assert found.sources == (InputSource("2", 1),)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.relu = nn.ReLU(inplace=True)
        self.one = nn.Conv2d(4, 4, 3, padding=1)
        self.two = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        y = self.two(self.relu(self.one(x)))
        return self.last(self.relu(x + y) * 2)


def test_sources_are_the_layers_whose_tensor_it_is() -> None:
    run = run_of(Residual(), "one", "two", "last")
    assert run.input_channels("one", 0).sources == (
        InputSource("relu", 1),
        InputSource("stem.1", 1, "", ("relu",)),
        InputSource("stem", 1, "", ("relu",)),
        InputSource("stem.0", 1, "", ("relu", "stem.1")),
    )
    assert run.input_channels("two", 0).sources == (
        InputSource("relu", 2),
        InputSource("one", 1, "", ("relu",)),
    )
    assert run.input_channels("last", 0).sources == ()  # computed between layers


def test_channels_of_sources_are_the_channels_that_are_read() -> None:
    """Turning one channel of a source off is turning it off in what the layer is given."""
    net = Residual().eval()
    run = run_of(net, "one")
    for source in run.input_channels("one", 0).sources:
        kept: list[Tensor] = []

        def zero(_m: Any, _i: Any, out: Tensor) -> Tensor:
            return out * torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None, None]

        def keep(_m: Any, inputs: Any, kept: list[Tensor] = kept) -> None:
            kept.append(inputs[0].clone())

        calls = [net.one.register_forward_pre_hook(keep)]
        with torch.no_grad():
            net(run.input.tensor)
            calls.append(net.get_submodule(source.layer).register_forward_hook(zero))
            net(run.input.tensor)
        for handle in calls:
            handle.remove()
        differ = (kept[0] - kept[1]).abs().amax((0, 2, 3)) > 0
        assert differ.tolist() in ([False, False, True, False], [False] * 4)


def test_a_layer_without_weights_has_no_input_channels() -> None:
    run = run_of(Residual(), "relu", "one")
    with pytest.raises(LayerError, match="no filters"):
        run.input_channels("relu", 0)
    with pytest.raises(LayerError, match="0 to 3"):
        run.input_channels("one", 4)
