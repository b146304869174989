"""Hooks of hookviz belong to the modules they were set on: no copy has them or uses them."""

import contextlib
import copy
import gc
import io
import pickle
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hookviz import Capture, FeatureExtractor, VerboseExecution, clip_gradients
from hookviz.capture import edit, replace_gradient, replace_input, replace_output

HOOKS = [k for k in vars(nn.Module()) if "ward" in k and isinstance(vars(nn.Module())[k], dict)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3, bias=False)
        self.second = nn.Sequential(nn.ReLU(), nn.Linear(3, 2, bias=False))

    def forward(self, x, scale=1.0):
        return self.second(self.first(x)) * scale


class DeepcopiesItself(Net):
    def __deepcopy__(self, memo):
        twin = type(self)()
        twin.__dict__.update(self.__dict__)
        twin._modules = {k: copy.deepcopy(m, memo) for k, m in self._modules.items()}
        return twin


class GivesEverything(Net):
    def __getstate__(self):
        return self.__dict__.copy()


def capturing(net):
    return Capture(
        net, "*", inputs=True, gradients=True, input_gradients=True, eval_mode=False,
        cancelled=lambda: False, on_activation=lambda a: None,
    )  # fmt: skip


def stopping(net):
    return Capture(net, ["", "first"], stop_early={"first": 1}, eval_mode=False)


def editing(net):
    return edit(
        net,
        replace_output("first", lambda t: t * 100),
        replace_input("second.1", lambda t: t * 100),
        replace_gradient("second", lambda g: g * 100),
        replace_gradient("first", lambda g: g * 100, of="input"),
    )


def clipping(net):
    stack = contextlib.ExitStack()
    stack.enter_context(clip_gradients(net, value=1))
    stack.enter_context(clip_gradients(net, norm=1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    stack.enter_context(clip_gradients(net, norm=1, when="step", optimizer=optimizer))
    return stack


HOLDERS = [capturing, stopping, editing, clipping]


def pickled(net):
    return pickle.loads(pickle.dumps(net))  # noqa: S301


def saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def averaged(net):
    return AveragedModel(net).module


COPIES = [copy.deepcopy, pickled, saved, averaged]


def hooks_of(net):
    return [
        (name, key, hook)
        for name, module in net.named_modules()
        for key in HOOKS
        for hook in vars(module)[key]
    ] + [name for name, m in net.named_modules() if vars(m).get("_compiled_call_impl")]


@pytest.mark.parametrize("kind", [Net, DeepcopiesItself, GivesEverything])
@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize("hold", HOLDERS)
def test_a_copy_has_no_hooks_of_ours(hold, make, kind):
    net, x = kind(), torch.ones(1, 2)
    expected = net(x)
    with hold(net):
        assert hooks_of(net)
        twin = make(net)
        again = make(twin)
        if kind is not DeepcopiesItself:  # which shares its own dicts of hooks, as it says
            assert not hooks_of(twin)
        assert not hooks_of(again.second)
        assert torch.equal(twin(x), expected)
    assert not hooks_of(net)
    assert not hooks_of(twin)
    assert torch.equal(twin(x), expected)
    assert not any(vars(vars(m)[key]) for m in net.modules() for key in HOOKS)


@pytest.mark.parametrize("make", [*COPIES, copy.copy])
def test_a_copy_is_not_recorded(make):
    net, x = Net(), torch.ones(1, 2)
    # A shallow copy is another model, but has the very same layers.
    layers = [""] if make is copy.copy else ["", "first"]
    with Capture(net, layers, inputs=True, eval_mode=False) as capture:
        kept = net(x)
        twin = make(net)
        twin(x * 0)
        assert capture.runs == 1
        assert torch.equal(capture.output(""), kept)


def test_a_shallow_copy_of_a_layer_is_not_the_layer():
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    with Capture(layer, "", inputs=True, eval_mode=False) as capture, editing_of(layer):
        twin = copy.copy(layer)
        assert torch.equal(twin(x), nn.functional.linear(x, layer.weight, layer.bias))
        assert capture.runs == 0
        assert not torch.equal(layer(x), twin(x))
        assert capture.runs == 1


def editing_of(layer):
    return edit(layer, replace_output("", lambda t: t + 1))


@pytest.mark.parametrize("make", COPIES)
def test_a_mean_teacher_does_not_take_the_clipping_off(make):
    student = nn.Linear(2, 1, bias=False)
    clipping = clip_gradients(student, value=1)
    teacher = make(student)
    x = torch.full((1, 2), 100.0)
    loss = (student(x) - teacher(x).detach()).abs().sum() + student(x).sum()
    teacher(x).sum().backward()
    assert teacher.weight.grad.tolist() == [[100.0, 100.0]]
    loss.backward()
    assert student.weight.grad.tolist() == [[1.0, 1.0]]
    with torch.no_grad():  # an exponential moving average, as training loops write it
        for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
            own.mul_(0.9).add_(other, alpha=0.1)
    student.zero_grad()
    student(x).sum().backward()
    assert student.weight.grad.tolist() == [[1.0, 1.0]]
    clipping.remove()
    assert not hooks_of(student)


def test_the_test_above_can_fail():
    student = nn.Linear(2, 1, bias=False)
    student(torch.full((1, 2), 100.0)).sum().backward()
    assert student.weight.grad.tolist() == [[100.0, 100.0]]


def test_what_is_saved_loads_where_hookviz_is_not(tmp_path):
    holders = {
        "capture": lambda net: Capture(net, "*", inputs=True, gradients=True, eval_mode=False),
        "edit": lambda net: edit(net, replace_output("0", abs), replace_input("1", abs)),
        "clip value": lambda net: clip_gradients(net, value=1),
        "clip norm": lambda net: clip_gradients(net, norm=1),
    }
    for name, hold in holders.items():
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        with hold(net) as handle:
            net.handle = handle  # whoever keeps the handle on the model can save it all the same
            torch.save(net, tmp_path / f"{name}.pt")
            (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(net))
        assert b"hookviz" not in (tmp_path / f"{name}.pickle").read_bytes()
    code = f"""
import pathlib, pickle, sys
sys.modules["hookviz"] = None
import torch
nets = [torch.load(f, weights_only=False) for f in sorted(pathlib.Path().glob("*.pt"))]
nets += [pickle.loads(f.read_bytes()) for f in sorted(pathlib.Path().glob("*.pickle"))]
assert len(nets) == 8
for net in nets:
    for module in net.modules():
        assert not any(vars(module)[key] for key in {HOOKS!r}), vars(module)
        assert module._compiled_call_impl is None
    assert net.handle is None
    net(torch.ones(1, 2))
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_the_hooks_of_others_travel_as_torch_has_them():
    net, seen = Net(), []
    handle = net.first.register_forward_hook(lambda *_: seen.append("user"))
    net.first.register_forward_pre_hook(lambda *_: seen.append("before"), with_kwargs=True)
    with capturing(net), editing(net):
        twin = copy.deepcopy(net)
        later = net.first.register_forward_hook(lambda *_: seen.append("later"))
    twin(torch.ones(1, 2))
    assert seen == ["before", "user"]
    assert [key for _, key, _ in hooks_of(twin)] == [
        "_forward_hooks", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    ]  # fmt: skip
    handle.remove()
    later.remove()
    assert not net.first._forward_hooks
    assert len(twin.first._forward_hooks) == 1


def test_a_copy_made_inside_a_forward():
    # FeatureExtractor and VerboseExecution have hooks on the model for one forward.
    net, copies = Net(), []
    net.second.register_forward_hook(lambda m, *_: copies.append(copy.deepcopy(net.first)))
    FeatureExtractor(net, ["first", ""])(torch.ones(1, 2))
    VerboseExecution(net, live=False, depth=None)(torch.ones(1, 2))
    assert len(copies) == 2
    assert not any(hooks_of(twin) for twin in copies)


@pytest.mark.parametrize("wrap", [
    lambda net: FeatureExtractor(net, "first"),
    lambda net: VerboseExecution(net, stream=sys.stdout, live=False),
])  # fmt: skip
@pytest.mark.parametrize("make", [copy.deepcopy, pickled, saved])
def test_wrappers_are_copied_with_their_model_and_without_hooks(wrap, make):
    net, x = Net(), torch.ones(1, 2)
    wrapper = wrap(net)
    with Capture(net, "first", eval_mode=False) as capture:
        twin = make(wrapper)
        assert not hooks_of(twin)
        twin(x)
        assert capture.runs == 0
        wrapper(x)
    assert capture.runs == 1


def test_parametrized_and_traced_models_are_copied_without_hooks():
    # These bring a __deepcopy__ of their own, which copies all attributes.
    plain = Net()
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    graph = torch.fx.symbolic_trace(plain)
    x = torch.ones(1, 2)
    for net in (normed, graph):
        expected = net(x)
        with (
            Capture(net, "", inputs=True, eval_mode=False) as capture,
            edit(net, replace_output("", lambda t: t + 1)),
        ):
            twin = copy.deepcopy(net)
            assert not hooks_of(twin)
            assert torch.equal(twin(x), expected)
            assert capture.runs == 0
        assert torch.equal(net(x), expected)


def test_hooks_that_others_move_to_another_module_do_nothing_there():
    # As torch.ao.quantization does where it swaps a module for a quantised one.
    net, swapped = nn.Linear(2, 2), nn.Linear(2, 2)
    with Capture(net, "", inputs=True, eval_mode=False) as capture, editing_of(net):
        for hook in net._forward_pre_hooks.values():
            swapped.register_forward_pre_hook(hook)
        for hook in net._forward_hooks.values():
            swapped.register_forward_hook(hook)
        swapped(torch.ones(1, 2))
        assert capture.runs == 0
        for twin in (copy.deepcopy(swapped), pickled(swapped)):
            assert torch.equal(twin(torch.ones(1, 2)), swapped(torch.ones(1, 2)))
    assert b"hookviz" not in pickle.dumps(swapped)


def test_a_wrapper_around_the_model_leaves_the_hooks_at_work():
    class Sharded(nn.Module):
        """As FullyShardedDataParallel and CheckpointWrapper do."""

        def __init__(self, inner):
            super().__init__()
            self._wrapped = inner

        def forward(self, x):
            return self._wrapped(x)

    net = Net()
    with Capture(net, "first", eval_mode=False) as capture, clip_gradients(net, value=1):
        wrapped = Sharded(net)
        net.__class__ = type("ShardedNet", (Net,), {})  # as fully_shard does
        wrapped(torch.full((1, 2), 100.0)).sum().backward()
    assert capture.runs == 1
    assert net.first.weight.grad.abs().max() <= 1


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_has_no_trace_of_ours(strict):
    net, x = Net(), torch.ones(1, 2)
    bare = torch.export.export(net, (x,), strict=strict)
    with capturing(net) as capture, editing(net), clipping(net):
        program = torch.export.export(net, (x,), strict=strict)
        assert capture.runs == 0
    assert program.graph_module.code == bare.graph_module.code
    assert torch.equal(program.module()(x), net(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_programs_of_fx_and_torchscript_have_no_trace_of_ours():
    net, x = Net(), torch.ones(1, 2)
    bare = torch.fx.symbolic_trace(net)
    with capturing(net), editing(net):
        traced = torch.fx.symbolic_trace(net)
        script = torch.jit.trace(net, (x,), check_trace=False)
    assert traced.code == bare.code
    assert torch.equal(script(x), net(x))


def test_a_feature_extractor_can_be_exported():
    # Its hooks are part of what it computes, also while another capture is open.
    net, x = Net(), torch.ones(1, 2)
    extract = FeatureExtractor(net, "first")
    with Capture(net, "first", eval_mode=False):
        program = torch.export.export(extract, (x,))
    assert torch.equal(program.module()(x)["first"], extract(x)["first"])


def test_saving_a_tensor_that_we_listen_to_warns_of_nothing():
    net = Net()
    with capturing(net), editing(net), warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = net(torch.ones(1, 2))
        torch.save(kept, io.BytesIO())
        torch.save(net.state_dict(), io.BytesIO())
        pickle.dumps(list(net.parameters()))


class Data(torch.utils.data.Dataset):
    """Runs a model on each item, as some data sets do."""

    def __init__(self, net):
        self.net = net

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with torch.no_grad():
            return self.net(torch.full((2,), float(index)))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_worker_processes(start):
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    expected = net(torch.ones(2)).detach()
    with Capture(net, "0", eval_mode=False) as capture, clip_gradients(net, value=1):
        loader = torch.utils.data.DataLoader(
            Data(net), batch_size=None, num_workers=1, multiprocessing_context=start
        )
        rows = list(loader)
        assert capture.runs == 0
    torch.testing.assert_close(rows[1], expected)


def test_the_model_dies_without_the_collector_while_clipped():
    gc.disable()
    try:
        net = Net()
        clip_gradients(net, value=1)
        gone = (
            weakref.ref(net),
            weakref.ref(net.first._forward_hooks),
            weakref.ref(net._forward_hooks),
        )
        net(torch.ones(1, 2))
        del net
        assert [ref() for ref in gone] == [None, None, None]
    finally:
        gc.enable()


def test_replicas_of_dataparallel_are_no_copies():
    net, x = Net(), torch.full((1, 2), 100.0)
    act = net.second[0]
    clipping = clip_gradients(net, value=1)
    with Capture(net, "second.0", eval_mode=False) as capture, editing_of(act):
        net._replicate_for_data_parallel()(x)  # it has the very layers
        part = act._replicate_for_data_parallel()
        assert torch.equal(part(x), act(x))  # edited alike
    assert len(capture.activations) == 3
    assert clipping.hooked == ("first.weight", "second.1.weight")
    net(x).sum().backward()
    assert net.first.weight.grad.abs().max() <= 1
