"""What a monitor says is what a computation of its own gives."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hookviz
from hookviz.errors import LayerError, MonitorError
from hookviz.monitoring import TrainingWarning

from .conftest import Small, batches, train


class Kept:
    """Clones of what layers give in a training forward, made by plain hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.outputs: list[dict[str, list[Tensor]]] = []
        self.now: dict[str, list[Tensor]] = {}
        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(self.hook(name))

    def hook(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            if torch.is_grad_enabled():
                self.now.setdefault(name, []).append(output.detach().clone())

        return keep

    def step(self) -> None:
        self.outputs.append(self.now)
        self.now = {}


def test_outputs_step_by_step_call_by_call(small: Small) -> None:
    kept = Kept(small)
    with hookviz.monitor(small, stats_every=1) as m:

        def after(**numbers: Any) -> None:
            kept.step()
            m.step(**numbers)

        train(small, batches(5), after)
    for layer, call in [("conv1", 1), ("bn", 1), ("relu", 1), ("relu", 2), ("fc", 1)]:
        wanted = [step[layer][call - 1].double().numpy() for step in kept.outputs]
        steps, mean = m.values(layer, "mean", call=call)
        assert steps.tolist() == [1, 2, 3, 4, 5]
        assert mean == pytest.approx([x.mean() for x in wanted], rel=1e-5, abs=1e-7)
        for quantity, by in [
            ("std", np.std), ("min", np.min), ("max", np.max),
            ("zeros", lambda x: (x == 0).mean()),
        ]:  # fmt: skip
            found = m.values(layer, quantity, call=call)[1]
            assert found == pytest.approx([by(x) for x in wanted], rel=1e-5), quantity
    # The ReLU works in place: BatchNorm's output is measured before it.
    assert (m.values("bn", "min")[1] < 0).all()
    assert (m.values("relu", "min")[1] == 0).all()
    assert m.calls("relu") == 2


def test_gradients_weights_and_updates(small: Small) -> None:
    wanted: list[tuple[float, float, float]] = []
    before: list[Tensor] = []

    def ahead(number: int) -> None:
        before[:] = [p.detach().clone() for p in small.conv2.parameters()]

    with hookviz.monitor(small, ["conv2", "fc"], stats_every=2) as m:

        def after(**numbers: Any) -> None:
            parameters = list(small.conv2.parameters())
            flat = [torch.cat([t.double().reshape(-1) for t in ts]) for ts in (
                [p.grad for p in parameters], before, [p.detach() for p in parameters],
            )]  # fmt: skip
            gradient, old, new = flat
            wanted.append(
                (float(gradient.norm()), float(old.norm()), float((new - old).norm() / old.norm()))
            )
            m.step(**numbers)

        train(small, batches(6), after, ahead)
    for at, quantity in enumerate(("gradient", "weight", "update")):
        steps, found = m.values("conv2", quantity)
        assert steps.tolist() == [1, 2, 4, 6]
        assert found == pytest.approx([wanted[s - 1][at] for s in steps], rel=1e-4), quantity
    assert len(m.scalar()[0]) == 6


def test_updates_are_right_where_weights_change_how_they_lie_in_memory(small: Small) -> None:
    steps: list[float] = []
    before: list[Tensor] = []

    def ahead(number: int) -> None:
        weight = small.conv2.weight
        if number in (2, 4):
            lying = torch.contiguous_format if number == 2 else torch.channels_last
            weight.data = weight.data.contiguous(memory_format=lying)
        before[:] = [weight.detach().clone()]

    small.to(memory_format=torch.channels_last)
    with hookviz.monitor(small, ["conv2"], stats_every=1) as m:

        def after(**numbers: Any) -> None:
            old, new = before[0].double(), small.conv2.weight.detach().double()
            steps.append(float((new - old).norm()))
            m.step(**numbers)

        small.conv2.bias.requires_grad_(False)
        train(small, batches(6), after, ahead)
    found = m.values("conv2", "update")[1] * m.values("conv2", "weight")[1]
    assert found == pytest.approx(steps, rel=1e-5)


def test_forwards_of_one_step_are_joined_and_a_validation_is_not_counted(small: Small) -> None:
    parts = batches(3, size=3)
    kept = Kept(small)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    with hookviz.monitor(small, stats_every=1) as m:
        for x, y in parts:
            F.cross_entropy(small(x), y).backward()
        with torch.no_grad():
            small.eval()
            small(parts[0][0] * 100)
            small.train()
        optimizer.step()
        m.step()
        gradient = torch.cat([p.grad.reshape(-1) for p in small.fc.parameters()])
    whole = torch.cat(kept.now["conv2"]).double().numpy()
    assert m.values("conv2", "mean")[1] == pytest.approx(whole.mean(), rel=1e-5)
    assert m.values("conv2", "std")[1] == pytest.approx(whole.std(), rel=1e-5)
    assert np.float32(m.values("conv2", "max")[1]) == whole.max()
    assert m.values("fc", "gradient")[1] == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert m.calls("relu") == 2


def test_a_channel_is_dead_where_it_is_zero_in_all_forwards_of_a_step(small: Small) -> None:
    with hookviz.monitor(small, ["relu"], stats_every=1) as m:
        for shift in (0.0, 1.0):
            with torch.no_grad():
                small.conv2.weight.zero_()
                small.conv2.bias.copy_(torch.tensor([-1.0, shift - 0.5, 1.0, -1.0]))
            small(batches(1)[0][0])
        m.step()
    assert m.values("relu", "dead", call=2)[1].tolist() == [0.5]
    # conv2's channels: two zero always, one half of the time, one never
    assert m.values("relu", "zeros", call=2)[1].tolist() == [2.5 / 4]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_is_not_counted_twice(reentrant: bool) -> None:
    class Checkpointed(Small):
        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            x = checkpoint(lambda t: self.relu(self.bn(self.conv1(t))), x, use_reentrant=reentrant)
            x = self.relu(self.conv2(x))
            return self.fc(self.drop(x.mean((2, 3))))

    found = []
    for kind in (Small, Checkpointed):
        torch.manual_seed(0)
        model = kind()
        with hookviz.monitor(model, stats_every=1) as m:
            train(model, batches(1), m.step)
        assert m.calls("relu") == 2
        found.append([m.values("relu", q, call=c)[1][0] for q in ("mean", "zeros") for c in (1, 2)])
    assert found[0] == found[1]


def test_autocast(small: Small) -> None:
    kept = Kept(small)
    with hookviz.monitor(small, stats_every=1) as m, torch.autocast("cpu", torch.bfloat16):
        train(small, batches(1), m.step)
    output = kept.now["conv1"][0]
    assert output.dtype == torch.bfloat16
    wanted = output.double().numpy()
    assert m.values("conv1", "mean")[1][0] == pytest.approx(wanted.mean(), rel=1e-5)
    assert m.values("conv1", "std")[1][0] == pytest.approx(wanted.std(), rel=1e-5)


def test_a_step_that_a_grad_scaler_skips_is_said_to_be_one(small: Small) -> None:
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    plain: list[float] = []
    with hookviz.monitor(small, stats_every=1, on_alert="record") as m:
        for number, (x, y) in enumerate(batches(3)):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(small(x), y) * (1e3 if number == 0 else 1)).backward()
            scaler.step(optimizer)
            plain.append(torch.cat([p.grad.reshape(-1) for p in small.fc.parameters()]).norm())
            scaler.update(2.0**10)
            m.step()
    assert [(a.step, a.kind) for a in m.alerts] == [(1, "skipped")]
    assert "GradScaler skips it" in m.alerts[0].text
    assert m.values("conv1", "update")[1][0] == 0
    assert m.values("fc", "gradient")[1][1:] == pytest.approx(plain[1:], rel=1e-4)  # unscaled


# ── alerts


class Late(nn.Module):
    """Gives NaN or Inf from a call on."""

    def __init__(self, start: int, value: float = float("nan")) -> None:
        super().__init__()
        self.start, self.value, self.count = start, value, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count < self.start:
            return x
        x = x.clone()
        x[0, 0] = self.value
        return x


def with_a_fault(start: int, value: float = float("nan")) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), Late(start, value), nn.Conv2d(4, 4, 3), nn.Flatten(1),
        nn.Linear(64, 5),
    )  # fmt: skip


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf")])
def test_the_first_nan_is_named_by_layer_and_step(value: float, word: str) -> None:
    model = with_a_fault(7, value)
    with (
        pytest.warns(TrainingWarning, match="Step 7: the output of layer '2'"),
        hookviz.monitor(model, stats_every=1) as m,
    ):
        train(model, batches(9), m.step)
    first = m.alerts[0]
    assert (first.step, first.kind, first.layer, first.call) == (7, "output", "2", 1)
    assert f"has 36 {word} among 576 values; what ran before it was finite." in first.text
    assert [a.kind for a in m.alerts].count("output") == 1


def test_a_nan_between_measurements_is_bounded() -> None:
    model = with_a_fault(7, float("inf"))
    model[3].weight.data.zero_()  # Inf × 0 is NaN: the loss tells at once

    with hookviz.monitor(model, stats_every=5, on_alert="record") as m:
        train(model, batches(9), m.step)
    assert next((a.step, a.kind) for a in m.alerts) == (7, "loss")
    # the loss was NaN in step 7, so step 8 was measured though it was not due
    assert 8 in m.values("0", "mean")[0]
    assert "after step 5" in next(a.text for a in m.alerts if a.kind == "output")


def test_a_nan_that_ends_the_training_is_told() -> None:
    model = with_a_fault(3)
    m = hookviz.monitor(model, stats_every=1, on_alert="record")

    def loop() -> None:
        with m:
            for x, y in batches(5):
                loss = F.cross_entropy(model(x), y)
                if not loss.isfinite():
                    raise RuntimeError("diverged")
                m.step(loss=loss)

    with pytest.raises(RuntimeError):
        loop()
    assert (m.alerts[-1].step, m.alerts[-1].layer) == (3, "2")


def test_a_gradient_that_is_not_finite_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    model[1].weight.register_hook(lambda g: g * float("nan"))
    with hookviz.monitor(model, stats_every=1, on_alert="record") as m:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        m.step()
    (alert,) = m.alerts
    assert (alert.step, alert.kind, alert.layer) == (1, "gradient", "1")
    assert "the gradient of '1.weight' has 16 NaN among 16 values" in alert.text


def test_a_dying_relu_is_named_at_the_step_where_it_died(small: Small) -> None:
    def kill(number: int) -> None:
        if number >= 5:
            small.conv2.bias.data.fill_(-100)

    with pytest.warns(TrainingWarning, match="dead"), hookviz.monitor(small, stats_every=1) as m:
        train(small, batches(9), m.step, kill)
    (alert,) = m.alerts
    assert (alert.step, alert.kind, alert.layer, alert.call) == (5, "dead", "relu", 2)
    assert "4 of 4 channels of layer 'relu' (ReLU), call 2 of 2 are dead" in alert.text
    assert "So it is in 'drop'" in alert.text


def test_alerts_as_errors_and_functions() -> None:
    seen: list[Any] = []
    with hookviz.monitor(with_a_fault(2), stats_every=1, on_alert=seen.append) as m:
        train(m._model, batches(3), m.step)
    assert seen == m.alerts
    with (
        pytest.raises(MonitorError, match="Step 2"),
        hookviz.monitor(with_a_fault(2), stats_every=1, on_alert="raise") as m,
    ):
        train(m._model, batches(3), m.step)
    assert not m._model[0]._forward_hooks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hookviz.monitor(with_a_fault(2), stats_every=1, on_alert="record") as m:
            train(m._model, batches(3), m.step)
    assert m.alerts


# ── what is refused and what is not seen


def test_bad_arguments_are_sentences(small: Small) -> None:
    with pytest.raises(MonitorError, match="stats_every is 0; legal is a whole number from 1"):
        hookviz.monitor(small, stats_every=0)
    with pytest.raises(MonitorError, match="on_alert is 'shout'"):
        hookviz.monitor(small, on_alert="shout")
    with pytest.raises(LayerError, match="no layer 'conv3'"):
        hookviz.monitor(small, ["conv3"])
    with pytest.raises(MonitorError, match="module itself"):
        hookviz.monitor("resnet18")
    with hookviz.monitor(small) as m:
        with pytest.raises(MonitorError, match="loss has 3 values"):
            m.step(loss=torch.ones(3))
        with pytest.raises(MonitorError, match="lr is no number"):
            m.step(lr="fast")
        assert m.step_number == 0


def test_questions_that_have_no_answer(small: Small) -> None:
    with hookviz.monitor(small, stats_every=1) as m:
        train(small, batches(1), m.step)
    with pytest.raises(LayerError, match=r"'conv' is not watched.*Did you mean 'conv2' or 'conv1'"):
        m.values("conv", "mean")
    with pytest.raises(MonitorError, match=r"no quantity 'zero'.*Did you mean 'zeros'"):
        m.values("conv1", "zero")
    with pytest.raises(MonitorError, match=r"'relu' \(call 3\) is known: known are relu call 1"):
        m.values("relu", "mean", call=3)
    with pytest.raises(MonitorError, match="no 'lr'; known: loss"):
        m.scalar("lr")
    with pytest.raises(MonitorError, match="no maps of 'conv1'"):
        m.picture("conv1")
    with pytest.raises(MonitorError, match="step 7; the nearest is 1"):
        m.rows(7)


def test_what_is_not_seen_has_a_reason() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
            self.wave = Wave()

        def forward(self, x: Tensor) -> Tensor:
            return self.wave(self.used(x)).real

    class Wave(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.complex(x, x)

    model = Odd()
    with hookviz.monitor(model, stats_every=1) as m:
        model(torch.ones(2, 2)).sum().backward()
        model.zero_grad()
        m.step()
    assert "no forward with gradients called it" in m.notes["unused"]
    assert "its values are complex" in m.notes["wave"]
    assert "before optimizer.zero_grad()" in m.notes[""]
    assert m.values("used", "mean")[0].tolist() == [1]


def test_nested_outputs(small: Small) -> None:
    model = nn.LSTM(3, 4, batch_first=True)
    with hookviz.monitor(model, stats_every=1) as m:
        output, _ = model(torch.randn(2, 5, 3))
        output.sum().backward()
        m.step()
    assert {p.leaf for p in m.places("") if p.call} == {"0", "1.0", "1.1"}
    assert m.values("", "mean", leaf="0")[1][0] == pytest.approx(output.mean().item(), rel=1e-5)


# ── tables, figures, pictures


def test_tables_and_figures(small: Small) -> None:
    with hookviz.monitor(small, stats_every=1) as m:
        train(small, batches(4), m.step)
    rows = m.rows()
    assert [row["layer"] for row in rows] == [
        "conv1", "bn", "conv2", "relu", "relu", "drop", "fc",
    ]  # fmt: skip
    assert rows[0]["mean"] == m.values("conv1", "mean")[1][-1]
    assert rows[0]["gradient"] == m.values("conv1", "gradient")[1][-1]
    assert "relu call 2" in m.table()
    frame = m.to_pandas()
    chosen = frame[(frame.layer == "relu") & (frame.call == 2) & (frame.quantity == "zeros")]
    assert chosen.value.tolist() == m.values("relu", "zeros", call=2)[1].tolist()
    figure = m.figure("relu", "zeros")
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert lines.keys() == {"relu call 1", "relu call 2"}
    assert lines["relu call 2"].get_ydata().tolist() == chosen.value.tolist()
    assert m.figure(None, "loss").axes[0].lines[0].get_ydata().tolist() == m.scalar()[1].tolist()
    assert m.figure(None, "update", style="dark", width=400).canvas.get_width_height()[0] == 400


def test_pictures_are_those_of_feature_maps(small: Small) -> None:
    image = hookviz.sample_image()
    with hookviz.monitor(small, ["conv1"], every=2, probe=image, width=300) as m:
        train(small, batches(2), m.step)
    small.eval()
    wanted = hookviz.feature_maps(small, image, ["conv1"]).figure("conv1", width=300, style="light")
    wanted.canvas.draw()
    shown = np.asarray(m.picture("conv1").convert("RGB"))
    assert np.array_equal(shown, np.asarray(wanted.canvas.buffer_rgba())[..., :3])
    assert not np.array_equal(shown, np.asarray(m.picture("conv1", step=0).convert("RGB")))
    assert m.picture("conv1", kind="filters").width == 300


def test_a_notebook_shows_the_curve_up_to_now(small: Small) -> None:
    with hookviz.monitor(small, stats_every=1) as m:
        assert m._repr_png_() is None
        train(small, batches(2), m.step)
        shown = m._repr_png_()
    assert shown is not None
    assert shown.startswith(b"\x89PNG")
