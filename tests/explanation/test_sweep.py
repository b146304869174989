"""Ablation sweeps: each channel's effect on a target, against ablating one by one."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from torch import nn

import hookviz
from hookviz.capture import replace_by_mean, zero
from hookviz.errors import HookvizError, LayerError, RunCancelled
from hookviz.explanation import ChannelTarget, sweep
from hookviz.images import Preprocessing, sample_image
from hookviz.run import feature_maps

SIZE = Preprocessing(crop=(32, 32), fit="squash")


class Joined(nn.Module):
    """Residual, with a classifier that adds what comes from elsewhere, and one ReLU used twice."""

    def __init__(self, *, knows_batch: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3, 2)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)
        self.knows_batch = knows_batch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        y = self.relu(self.stem(x))
        y = self.relu(self.norm(self.conv(y)) + y)
        y = y.mean((2, 3))
        return self.fc(y.reshape(count, 8) if self.knows_batch else y)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch = nn.Conv2d(3, 12, 8, 8)
        self.norm = nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.patch(x).flatten(2).transpose(1, 2))
        return self.fc(self.attention(x, x, x)[0].mean(1))


def loaded(net: nn.Module) -> hookviz.LoadedModel:
    return hookviz.load_model(net, preprocess=SIZE)


def one_by_one(model, layer: str, count: int, index: int, edit, **part) -> torch.Tensor:
    """The scores of a class, each channel ablated in a run of its own."""
    return torch.stack([
        feature_maps(
            model, sample_image(), layer, edits=[edit(layer, channels=c, **part)], find_axes=False
        ).output[0, index]
        for c in range(count)
    ])  # fmt: skip


@pytest.mark.parametrize("by", ["zero", "mean"])
@pytest.mark.parametrize(
    ("net", "layer", "count"),
    [
        (Joined(), "conv", 8),
        (Joined(knows_batch=True), "conv", 8),  # whose batch cannot be multiplied on the way
        (Joined(), "norm", 8),
        (Tokens(), "norm", 12),
        (Tokens(), "patch", 12),
        (Tokens(), "fc", 4),
    ],
)
def test_each_channel_as_if_ablated_in_a_run_of_its_own(net, layer, count, by):
    model = loaded(net)
    found = sweep(model, sample_image(), layer, target=2, by=by, batch=3)
    plain = feature_maps(model, sample_image(), layer).output[0, 2]
    part = {"axis": -1} if layer == "norm" and isinstance(net, Tokens) else {}
    expected = one_by_one(model, layer, count, 2, zero if by == "zero" else replace_by_mean, **part)
    assert found.before == pytest.approx(float(plain), rel=1e-6)
    # Kernels sum larger batches in another order, so the last bits may differ.
    torch.testing.assert_close(found.after.float(), expected, atol=2e-6, rtol=2e-6)
    assert float(found.effects.abs().max()) > 1e-4


class Stem(nn.Conv2d):
    """Notes for how many images it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.__dict__.setdefault("images", []).append(len(x))
        return super().forward(x)


class Changed(Joined):
    """Adds what an in-place module has changed since, which only a whole forward does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        z = self.relu(y) * 2
        return self.fc((self.norm(self.conv(z)) + y).mean((2, 3)))


class Tiring(Joined):
    """Gives something else each time."""

    times = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.times += 1
        return super().forward(x) * self.times


@pytest.mark.parametrize(
    ("kind", "ran"), [(Joined, [1]), (Changed, [1, 4, 4]), (Tiring, [1, 4, 4])]
)
def test_what_lies_before_the_layer_runs_once_where_that_is_the_same(kind, ran):
    net = kind()
    stem = Stem(3, 8, 3, 2)
    stem.load_state_dict(net.stem.state_dict())
    net.stem = stem
    found = sweep(loaded(net), sample_image(), "conv", target=2, batch=4)
    assert stem.images == ran
    if kind is not Tiring:
        expected = one_by_one(loaded(net), "conv", 8, 2, zero)
        torch.testing.assert_close(found.after.float(), expected, atol=2e-6, rtol=2e-6)


def test_channels_of_a_later_layer_as_the_target():
    model = loaded(Joined())
    found = sweep(model, sample_image(), "stem", target="channel 3 of conv", call=1)
    for channel in (0, 5):
        run = feature_maps(
            model, sample_image(), "conv", edits=[zero("stem", channels=channel)], find_axes=False
        )
        expected = run.select("conv").tensor[0, 3].mean()
        assert float(found.after[channel]) == pytest.approx(float(expected), rel=1e-5, abs=1e-6)
    assert found.target == "channel 3 of conv"


def test_one_call_of_a_layer_that_runs_twice():
    model = loaded(Joined())
    found = sweep(model, sample_image(), "relu", target=2, call=1)
    expected = one_by_one(model, "relu", 8, 2, zero, call=1)
    torch.testing.assert_close(found.after.float(), expected, atol=2e-6, rtol=2e-6)
    assert found.layer == "relu call 1 of 2"


def test_order_top_table_and_files():
    model = loaded(Joined())
    found = sweep(model, sample_image(), "conv", target=2)
    effects = dict(enumerate(found.effects.tolist()))
    by_size = sorted(effects, key=lambda c: -abs(effects[c]))
    assert found.order == tuple(by_size)
    assert found.top(2) == [(c, effects[c]) for c in by_size[:2]]
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [int(row["channel"]) for row in rows] == by_size
    assert float(rows[0]["after"]) - found.before == pytest.approx(effects[by_size[0]])
    assert found.to_pandas()["effect"].tolist() == [effects[c] for c in by_size]
    assert str(by_size[0]) in found.table(1).splitlines()[1]
    assert len(found.table(3).splitlines()) == 4
    assert "conv" in str(found)
    figure = found.figure(5, width=500)
    assert figure.canvas.get_width_height()[0] == 500


def test_some_channels_in_their_order():
    model = loaded(Joined())
    found = sweep(model, sample_image(), "conv", target=2, channels=[5, 1, 5])
    everything = sweep(model, sample_image(), "conv", target=2)
    assert found.channels == (5, 1)
    torch.testing.assert_close(found.after, everything.after[[5, 1]], atol=2e-6, rtol=0)
    found.figure(2)


def test_progress_cancel_and_the_model_afterwards():
    net = Joined().train()
    model = loaded(net)
    before = [(m.training, sorted(m.__dict__)) for m in net.modules()]
    statistics = net.norm.running_mean.clone()
    steps: list[tuple[int, int]] = []
    sweep(
        model, sample_image(), "conv", target=2, batch=3,
        progress=lambda done, total, _: steps.append((done, total)),
    )  # fmt: skip
    assert steps == [(3, 8), (6, 8), (8, 8)]
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 40

    with pytest.raises(RunCancelled):
        sweep(model, sample_image(), "conv", target=2, batch=1, cancelled=cancelled)
    with pytest.raises(ZeroDivisionError):
        sweep(model, sample_image(), "conv", target=2, progress=lambda *_: 1 / 0)
    assert [(m.training, sorted(m.__dict__)) for m in net.modules()] == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert torch.equal(net.norm.running_mean, statistics)


@pytest.mark.parametrize(
    ("given", "kind", "part"),
    [
        ({"layer": "cov"}, LayerError, "'conv'"),
        ({"layer": "*"}, LayerError, "a sweep goes through one"),
        ({"by": "noise"}, HookvizError, "by is 'noise'; it must be 'zero' or 'mean'"),
        ({"batch": 0}, HookvizError, "batch is 0"),
        ({"channels": [8]}, LayerError, "its channels are 0 to 7"),
        ({"channels": []}, HookvizError, "channels is empty"),
        ({"target": [1, 2]}, HookvizError, "one target, and 2 were named"),
        ({"target": 9}, HookvizError, "There is no class 9"),
        (
            {"layer": "conv", "target": ChannelTarget("stem", 1)},
            LayerError,
            "runs after the target",
        ),
        ({"call": 3}, LayerError, "call"),
    ],
)
def test_bad_input_is_one_sentence(given, kind, part):
    model = loaded(Joined())
    with pytest.raises(kind) as caught:
        sweep(model, sample_image(), **({"layer": "conv", "target": 2} | given))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
