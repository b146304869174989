"""What a capture leaves as it was, on every way out, alone and beside others."""

from __future__ import annotations

import copy
import gc
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookviz.capture import Capture
from hookviz.errors import CaptureError, LayerError, RunCancelled

Traces = Callable[[nn.Module], int]


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return x


def network() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        Raises(),
        nn.Flatten(),
        nn.Linear(36, 5),
    )
    net[0].weight.requires_grad_(False)
    net[1].eval()
    return net.train()


def state_of(net: nn.Module) -> dict[str, Any]:
    return {
        "training": [m.training for m in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "grads": [p.grad for p in net.parameters()],
        "attributes": [sorted(m.__dict__) for m in net.modules()],
        "hooks": [
            (list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks))
            for m in net.modules()
        ],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "threads": threading.active_count(),
    }


OPTIONS: list[dict[str, Any]] = [
    {"eval_mode": True},
    {"eval_mode": False, "inputs": True},
    {"eval_mode": False, "gradients": True, "input_gradients": True, "inputs": True},
    {"eval_mode": True, "stop_early": True},
    {"eval_mode": True, "cancelled": lambda: False, "on_activation": lambda a: None},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o))
@pytest.mark.parametrize("end", ["success", "error", "interrupt", "cancel", "callback", "limit"])
def test_everything_is_as_before(options: dict[str, Any], end: str) -> None:
    net = network()
    seen: list[str] = []
    net[0].register_forward_hook(lambda m, i, o: seen.append("own hook"))
    net[0].register_forward_pre_hook(lambda m, i: seen.append("own pre-hook"))
    before, weights = state_of(net), copy.deepcopy(net.state_dict())
    layers: Any = ["0", "2"] if options.get("stop_early") else "*"
    x = torch.randn(2, 3, 5, 5)
    rng = torch.get_rng_state()
    expected: type[BaseException] | None = None
    options = dict(options)
    if end in ("error", "interrupt") and not options.get("stop_early"):
        expected = ValueError if end == "error" else KeyboardInterrupt
        net[4].error = expected("no")
    elif end == "cancel":
        expected, options["cancelled"] = RunCancelled, lambda: True
    elif end == "callback":
        expected = ZeroDivisionError
        options["on_activation"] = lambda a: 1 / 0
    elif end == "limit":
        expected, options["memory_limit"] = CaptureError, 10
    cap = Capture(net, layers, **options)
    if expected is None:
        with cap:
            net(x)
    else:
        with pytest.raises(expected), cap:
            net(x)
    assert state_of(net) == before
    if options["eval_mode"]:
        assert torch.equal(torch.get_rng_state(), rng)
        for key, value in net.state_dict().items():
            assert torch.equal(value, weights[key])
    net[4].error = None
    seen.clear()
    net(x)
    assert seen == ["own pre-hook", "own hook"]


def test_a_captured_forward_draws_the_same_random_numbers() -> None:
    net = network()
    twin = copy.deepcopy(net)
    x = torch.randn(2, 3, 5, 5)
    torch.manual_seed(3)
    expected = twin(x)
    torch.manual_seed(3)
    with Capture(net, "*", inputs=True, gradients=True, eval_mode=False):
        got = net(x)
    assert torch.equal(got, expected)
    for key, value in net.state_dict().items():
        assert torch.equal(value, twin.state_dict()[key])


def test_cancelling_keeps_what_was_captured() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 4  # the model, 0, 1, then 2

    cap = Capture(net, "*", cancelled=cancelled)
    with pytest.raises(RunCancelled, match="cancelled"), cap:
        cap.run(torch.ones(1, 3))
    assert [a.layer for a in cap.activations] == ["0", "1"]
    assert "RunCancelled" in cap.missing["2"]


def test_on_activation_is_told_of_each_record_as_it_comes() -> None:
    act = nn.ReLU()
    net = nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act)
    told: list[tuple[Any, ...]] = []
    with Capture(
        net,
        ["1", "2"],
        inputs=True,
        gradients=True,
        on_activation=lambda a: told.append((a.layer, a.call, a.calls, a.kind, a.order)),
    ) as cap:
        y = net(torch.ones(1, 3))
        assert told == [
            ("1", 1, 1, "input", 1),
            ("1", 1, 1, "output", 1),
            ("2", 1, 1, "input", 2),
            ("2", 1, 1, "output", 2),
            ("1", 2, 2, "input", 3),
            ("1", 2, 2, "output", 3),
        ]
        assert len(cap.activations) == 6
        y.sum().backward()
    assert [(t[0], t[1]) for t in told if t[3] == "output_gradient"] == [
        ("1", 2),
        ("2", 1),
        ("1", 1),
    ]


def test_activations_can_be_read_during_a_forward() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    counts: list[int] = []
    cap = Capture(net, "*", on_activation=lambda a: counts.append(len(cap.activations)))
    with cap:
        net(torch.ones(1, 3))
    assert counts == [1, 2, 3]


def test_nested_captures_do_not_disturb_each_other(traces: Traces) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    x = torch.randn(2, 3)
    with Capture(net, "*", inputs=True) as outer:
        with Capture(net, ["0", "1"], gradients=True) as inner:
            net(x).sum().backward()
        with Capture(net[0], "") as part:
            net(x)
    assert [a.run for a in outer.activations if a.layer == "2" and a.kind == "output"] == [1, 2]
    assert torch.equal(inner.output("0"), outer.output("0", run=1))
    assert len([a for a in inner.activations if a.kind == "output_gradient"]) == 2
    assert [(a.layer, a.run) for a in part.activations] == [("", 1)]
    assert traces(net) == 0


def test_captures_may_be_closed_in_any_order(traces: Traces) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    first, second = Capture(net, "0").open(), Capture(net, "1").open()
    first.close()
    net(torch.ones(1, 3))
    assert (len(first.activations), len(second.activations)) == (0, 1)
    second.close()
    assert traces(net) == 0
    with pytest.raises(CaptureError, match="open already"), first:
        first.open()
    assert traces(net) == 0


def test_captures_in_threads_keep_to_their_own_forwards(traces: Traces) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))
    wrong: list[str] = []
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            alone = net[0](x)
        gate.wait()
        for _ in range(25):
            with Capture(net, "*", inputs=True, gradients=True) as cap:
                net(x).sum().backward()
                time.sleep(0)
            if not torch.equal(cap.output("0"), alone.detach()) or cap.runs != 1:
                wrong.append(f"{seed}: {cap}")
            if len(cap.activations) != 9:
                wrong.append(f"{seed}: {cap.activations}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert traces(net) == 0


def test_forwards_of_other_threads_are_runs_of_their_own() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    xs = [torch.randn(2, 3) for _ in range(4)]
    with torch.no_grad(), Capture(net, "*") as cap:
        for x in xs:  # threads one after another: the system gives them one number
            thread = threading.Thread(target=lambda x=x: net(x))
            thread.start()
            thread.join()
    assert cap.runs == 4
    for i, x in enumerate(xs, start=1):
        with torch.no_grad():
            assert torch.equal(cap.output("0", run=i), net[0](x))


def test_layers_called_on_their_own_are_kept() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with Capture(net, "*", gradients=True) as cap:
        net[1](net[0](torch.ones(1, 3))).sum().backward()
        net(torch.ones(1, 3))
        net[0](torch.ones(1, 3))
    assert [(a.layer, a.run) for a in cap.activations if a.kind == "output"] == [
        ("0", 1),
        ("1", 1),
        ("0", 2),
        ("1", 2),
        ("0", 3),
    ]
    assert cap.gradient("0", run=1).shape == (1, 3)


def test_a_model_that_calls_itself() -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = nn.Linear(3, 3)

        def forward(self, x: Tensor, depth: int = 0) -> Tensor:
            if depth == 2:
                return self.leaf(x)
            return self(x, depth + 1) + self(x, depth=depth + 1)

    net = Tree()
    with Capture(net, ["", "leaf"], inputs=True) as cap:
        net(torch.ones(1, 3))
    assert cap.runs == 1
    assert len(cap.output("leaf", call="all")) == 4
    assert len(cap.output("", call="all")) == 7
    assert [a.order for a in cap.activations if a.kind == "output"] == list(range(1, 12))


def test_kept_tensors_are_ordinary_ones_under_inference_mode() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Identity())
    for options in ({}, {"transform": lambda t: t * 1}, {"dtype": torch.float64}):
        with torch.inference_mode(), Capture(net, "*", inputs=True, **options) as cap:
            net(torch.ones(1, 3))
        for a in cap.activations:
            assert not a.tensor.is_inference()
            a.tensor.requires_grad_().sum().backward()


def test_memory_stays_flat_over_many_captures() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    x = torch.randn(4, 8)

    def once() -> None:
        with Capture(net, "*", inputs=True, gradients=True) as cap:
            net(x).sum().backward()
        assert cap.activations

    for _ in range(20):
        once()
    gc.collect()
    count = len(gc.get_objects())
    tracemalloc.start()
    gc.disable()
    try:
        start = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            once()
        grown = tracemalloc.get_traced_memory()[0] - start
        objects = len(gc.get_objects()) - count
    finally:
        gc.enable()
        tracemalloc.stop()
    # Nine tensors a run would be 4,500; what is left is torch's and Python's own.
    assert objects < 100
    # Python keeps up to 2,000 freed tuples of each size for later; a lost record would be more.
    assert grown < 250_000


def test_a_copy_of_a_captured_model_records_nothing_after_the_end() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    with Capture(net, "0") as cap:
        copied = copy.deepcopy(net)
        assert "_compiled_call_impl" not in copied.__dict__
    copied(torch.ones(1, 3))
    assert cap.activations == ()


def test_user_hooks_that_replace_outputs_go_on_working() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net[0].register_forward_hook(lambda m, i, o: o * 0)
    with Capture(net, "*", gradients=True) as cap:
        y = net(torch.ones(1, 3))
    assert torch.equal(y, torch.zeros(1, 3))
    assert torch.equal(cap.output("0"), torch.zeros(1, 3))


def test_nothing_to_keep_and_clashing_options() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(CaptureError, match="Nothing is to be kept"):
        Capture(net, "0", outputs=False)
    with pytest.raises(CaptureError, match=r"no gradients.*keep_graph=True"):
        Capture(net, "0", gradients=True, stop_early=True)
    with pytest.raises(LayerError, match="No layer of Sequential was chosen"):
        Capture(net, [])
    with Capture(net, "0", gradients=True, stop_early=True, keep_graph=True) as cap:
        net(torch.ones(1, 3))
        cap.output("0").sum().backward()
    assert net[0].weight.grad is not None
