"""Nothing of a training changes because it is watched."""

from __future__ import annotations

import copy
import gc
import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookviz
from hookviz.errors import MonitorError

from .conftest import Small, batches, train


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        **model.state_dict(),
        **{f"momentum {n}": s["momentum_buffer"] for n, s in enumerate(optimizer.state.values())},
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.random.get_state()[1].astype(np.int64)),
        "python": torch.tensor(random.getstate()[1]),
    }


@pytest.mark.parametrize("stats_every", [1, 10])
def test_fifty_steps_give_the_same_bits(stats_every: int, tmp_path: Any) -> None:
    found = []
    for watched in (False, True):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        model = Small()
        model.bn.eval()  # frozen, as in fine-tuning
        if watched:
            with hookviz.monitor(
                model, every=20, stats_every=stats_every, probe=hookviz.sample_image(),
                out=tmp_path / "run", on_alert="record", width=300,
            ) as m:  # fmt: skip
                optimizer = train(model, batches(50), m.step)
            assert {p.step for p in m.pictures} == {0, 20, 40}
            assert m.notes == {}
        else:
            optimizer = train(model, batches(50))
        assert model.drop.training
        assert not model.bn.training
        found.append(everything(model, optimizer))
    one, other = found
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_no_hook_and_no_attribute_is_left(small: Small) -> None:
    before = {name: dict(vars(m)) for name, m in small.named_modules()}
    with hookviz.monitor(small, stats_every=1) as m:
        assert hooks(small) == 8  # six layers, the model's begin and end
        train(small, batches(1), m.step)
    assert hooks(small) == 0
    for name, module in small.named_modules():
        assert vars(module).keys() == before[name].keys(), name
        assert all(not vars(d) for d in (module._forward_hooks, module._forward_pre_hooks))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_hook_is_left_by_an_exception(small: Small, error: type[BaseException]) -> None:
    m = hookviz.monitor(small, stats_every=1)

    def loop() -> None:
        with m:
            train(small, batches(1), m.step)
            raise error

    with pytest.raises(error):
        loop()
    assert hooks(small) == 0
    assert m.ended


def test_hooks_of_others_stay(small: Small) -> None:
    seen: list[int] = []
    handle = small.relu.register_forward_hook(lambda *_: seen.append(1))
    with hookviz.monitor(small, stats_every=1) as m:
        train(small, batches(1), m.step)
    assert len(seen) == 2
    assert hooks(small) == 1
    handle.remove()


def test_copies_and_pickles_have_no_hooks(small: Small) -> None:
    with hookviz.monitor(small, stats_every=1) as m:
        twin = copy.deepcopy(small)
        file = io.BytesIO()
        torch.save(small, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        average = torch.optim.swa_utils.AveragedModel(small)
        for other in (twin, loaded, average.module):
            assert hooks(other) == 0
            other(batches(1)[0][0]).sum().backward()
        train(small, batches(2), m.step)
        average.update_parameters(small)
    # The copies' forwards and gradients counted nowhere.
    assert m.values("conv1", "mean")[0].tolist() == [1, 2]
    assert hooks(small) == 0


def test_the_model_is_let_go() -> None:
    import weakref

    model = Small()
    with hookviz.monitor(model, stats_every=1) as m:
        train(model, batches(1), m.step)
    seen = weakref.ref(model.conv1)
    del model, m
    gc.collect()
    assert seen() is None


def test_a_probe_that_fails_is_a_note(small: Small) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no such picture")

    with hookviz.monitor(small, every=1, probe=hookviz.sample_image(), width=300) as m:
        handle = small.conv2.register_forward_pre_hook(
            lambda module, args: None if torch.is_grad_enabled() else broken()
        )
        train(small, batches(2), m.step)
        handle.remove()
    assert m.step_number == 2
    assert "Step 1: the probe could not be drawn: RuntimeError: no such picture" in m.notes[""] or (
        "Step 2" in m.notes[""]
    )
    assert small.training


def test_step_needs_the_block(small: Small) -> None:
    m = hookviz.monitor(small)
    with pytest.raises(MonitorError, match="outside the block"):
        m.step()
    with m:
        pass
    with pytest.raises(MonitorError, match="watches one training"):
        m.__enter__()
