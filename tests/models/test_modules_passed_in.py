"""A module of the user's is left as it was: its mode, device, values and gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookviz.errors import DeviceError, ModelError, WeightsError
from hookviz.models import _modules, choose_device, load_model, out_of_memory


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.drop = nn.Dropout()
        self.fc = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(self.norm(self.conv(x))).mean((2, 3)))


def snapshot(net: nn.Module) -> Any:
    return (
        {n: v.clone() for n, v in net.state_dict().items()},
        {n: part.training for n, part in net.named_modules()},
        {
            n: (p.requires_grad, None if p.grad is None else p.grad.clone(), p.data_ptr())
            for n, p in net.named_parameters()
        },
        {n: len(part._forward_hooks) for n, part in net.named_modules()},
        set(vars(net)),
    )


def assert_same(one: Any, other: Any) -> None:
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(one[0][n], other[0][n]) for n in one[0])
    assert one[1] == other[1]
    for name, (wanted, grad, where) in one[2].items():
        assert other[2][name][0] == wanted
        assert other[2][name][2] == where
        assert grad is None or torch.equal(grad, other[2][name][1])
    assert one[3:] == other[3:]


@pytest.fixture
def net() -> Net:
    net = Net()
    net.train()
    net.norm.eval()  # a mixed mode
    net.conv.weight.requires_grad_(False)
    net(torch.rand(2, 3, 8, 8)).sum().backward()
    return net


def test_the_very_object_is_used(net: Net) -> None:
    before = snapshot(net)
    model = load_model(net)
    assert model.module is net
    assert model.passed_in
    assert model.name == "Net"
    assert model.weights == "as passed in"
    assert model.trained
    assert model.device == torch.device("cpu")
    assert len(model.weights_hash) == 12
    assert_same(before, snapshot(net))


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float16"},
        {"dtype": torch.float64},
        {"weights": Net(7).state_dict()},
        {"device": "cpu"},
    ],
)
def test_it_stays_as_it_was_whatever_is_asked(net: Net, options: Any) -> None:
    before = snapshot(net)
    model = load_model(net, **options)
    assert_same(before, snapshot(net))
    if "device" not in options:
        assert model.module is not net
        assert not model.passed_in


def test_a_checkpoint_goes_into_a_copy_with_its_number_of_classes(net: Net, tmp_path: Path) -> None:
    other = Net(7)
    torch.save(
        {"state_dict": {f"module.{n}": v for n, v in other.state_dict().items()}}, tmp_path / "a.pt"
    )
    model = load_model(net, weights=tmp_path / "a.pt")
    assert model.module.fc.out_features == 7
    assert torch.equal(model.module.fc.weight, other.fc.weight)
    assert model.weights == "file a.pt"
    assert model.report.classes == 7
    assert net.fc.out_features == 4
    assert model.module(torch.rand(1, 3, 8, 8)).shape == (1, 7)


def test_a_checkpoint_that_does_not_fit_a_module(net: Net) -> None:
    with pytest.raises(WeightsError, match=r"does not fit 'Net'.*conv\.weight is \(6, 3, 3, 3\)"):
        load_model(net, weights={**net.state_dict(), "conv.weight": torch.zeros(6, 3, 3, 3)})


def test_a_plain_checkpoint_into_a_wrapped_module(net: Net) -> None:
    state = Net().state_dict()
    for wrapped in (nn.DataParallel(net), torch.compile(net)):
        model = load_model(wrapped, weights=state)
        assert torch.equal(
            model.module.state_dict()[next(iter(wrapped.state_dict()))], state["conv.weight"]
        )


def test_weights_that_are_neither_path_nor_dict(net: Net) -> None:
    with pytest.raises(WeightsError, match="a path to a file or a state dict"):
        load_model(net, weights="DEFAULT")


def test_a_module_that_cannot_be_copied(net: Net) -> None:
    net.cache = torch.rand(2, requires_grad=True) * 2  # no leaf: deepcopy refuses
    with pytest.raises(ModelError, match="cannot be copied"):
        load_model(net, dtype="float64")


def test_torchscript_is_refused() -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch.jit knows builtins by id() alone, also of ones long gone: now and then it takes a
        # convolution's list of paddings for one. A linear layer has no such attribute.
        script = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(ModelError, match="TorchScript"):
        load_model(script)


@pytest.mark.parametrize("module", [nn.Identity(), nn.Sequential()])
def test_a_module_without_weights(module: nn.Module) -> None:
    model = load_model(module)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert len(model.weights_hash) == 12


def test_the_hash_follows_the_values_and_not_the_place(net: Net) -> None:
    model = load_model(net)
    first = model.weights_hash
    assert load_model(copy.deepcopy(net)).weights_hash == first
    with torch.no_grad():
        net.fc.weight[0, 0] += 1
    assert model.weights_hash != first


def test_names_and_preprocessing_of_the_users() -> None:
    def mine(image: Any) -> Any:
        return image

    model = load_model(Net(), name="mine", categories=["a", "b", "c", "d"], preprocess=mine)
    assert (model.name, model.categories, model.preprocess) == ("mine", ("a", "b", "c", "d"), mine)
    with pytest.raises(ModelError, match="is an int; legal are a callable"):
        load_model(Net(), preprocess=3)


def test_a_loaded_model_is_taken_as_it_is(net: Net) -> None:
    model = load_model(net)
    assert load_model(model) is model


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["gpu", "cuda:x", "", "tpu", "meta", "cuda:-1", "cpu:3", "xpu"])
def test_an_unknown_device(asked: str) -> None:
    with pytest.raises(DeviceError, match="Unknown device"):
        choose_device(asked)


def test_an_absent_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_modules, "_cuda_devices", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for asked in ("cuda", "cuda:1", "mps", 0, torch.device("cuda")):
        with pytest.raises(DeviceError, match=r"This machine has no .*Use device='cpu'"):
            choose_device(asked)
    assert choose_device("auto") == torch.device("cpu")


def test_a_device_beyond_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_modules, "_cuda_devices", lambda: 2)
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("CUDA") == torch.device("cuda", 0)
    assert choose_device(1) == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match="the last CUDA device is 'cuda:1'"):
        choose_device("cuda:2")


def test_a_device_is_checked_before_anything_is_downloaded(
    torch_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError):
        load_model("resnet18", device="nonsense")
    assert not torch_cache.exists()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("MPS backend out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_full_memory_offers_the_cpu(error: BaseException) -> None:
    with (
        pytest.raises(
            DeviceError, match=r"Out of memory on 'cuda:0' while running net\. Use device='cpu'"
        ),
        out_of_memory("running net", torch.device("cuda", 0)),
    ):
        raise error


def test_other_errors_pass_through_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory("x", torch.device("cpu")):
        raise RuntimeError("shapes do not match")


def test_a_full_memory_lets_go_of_the_tensors() -> None:
    import gc
    import weakref

    class Big:
        pass

    def fail() -> Any:
        big = Big()
        seen.append(weakref.ref(big))
        raise torch.OutOfMemoryError("CUDA out of memory")

    seen: list[Any] = []
    with pytest.raises(DeviceError), out_of_memory("x", torch.device("cpu")):
        fail()
    gc.collect()
    assert seen[0]() is None


@pytest.mark.parametrize("dtype", ["int8", "float8", "nonsense", torch.int32])
def test_a_dtype_that_models_do_not_run_in(dtype: Any) -> None:
    with pytest.raises(ModelError, match="Unknown dtype"):
        load_model("resnet18", weights=None, dtype=dtype)


@pytest.mark.cuda
def test_to_cuda_and_back() -> None:
    net = Net()
    model = load_model(net).to("cuda")
    assert model.device.type == "cuda"
    assert net.conv.weight.device.type == "cpu"
    assert model.weights_hash == load_model(net).weights_hash
    named = load_model("squeezenet1_1", weights=None, device="cuda")
    assert named.device.type == "cuda"
    assert named.to("cpu").device.type == "cpu"
