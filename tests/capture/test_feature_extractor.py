"""FeatureExtractor, extract_features and VerboseExecution."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookviz.capture import FeatureExtractor, VerboseExecution, extract_features
from hookviz.errors import CaptureError, LayerError


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 4, 3), relu=nn.ReLU(inplace=True), head=nn.AdaptiveAvgPool2d(1)
        )
    ).eval()


def hook_count(net: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    count = sum(len(getattr(m, kind)) for m in net.modules() for kind in kinds)
    return count + sum("_compiled_call_impl" in m.__dict__ for m in net.modules())


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU(inplace=True)
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        return self.act(self.act(x) - 1)


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


# FeatureExtractor ------------------------------------------------------------------------------


def test_features_are_the_layer_s_own_and_not_what_came_after():
    net = small()
    features = FeatureExtractor(net, ["conv", "head"])(X)
    assert list(features) == ["conv", "head"]
    assert torch.equal(features["conv"], net.conv(X))
    assert float(features["conv"].min()) < 0
    assert not features["conv"].requires_grad
    assert hook_count(net) == 0


def test_names_of_one_s_own_and_the_model_s_output():
    net = small()
    extract = FeatureExtractor(net, {"edges": "conv", "all": ""})
    features = extract(X)
    assert list(features) == ["edges", "all"]
    assert torch.equal(features["all"], net(X))
    assert "edges=conv" in repr(extract)


def test_unknown_layers_at_once():
    with pytest.raises(LayerError, match="'conw'"):
        FeatureExtractor(small(), ["conw"])


def test_policies_for_several_calls():
    net = Twice()
    x = torch.tensor([3.0, 0.5])
    with pytest.raises(LayerError) as caught:
        FeatureExtractor(net, "act")(x.clone())
    assert "ran 2 times" in str(caught.value)
    assert "1: [2], 2: [2]" in str(caught.value)
    assert hook_count(net) == 0
    read = {c: FeatureExtractor(net, "act", calls=c)(x.clone())["act"] for c in ("first", "last")}
    assert read["first"].tolist() == [3.0, 0.5]
    assert read["last"].tolist() == [2.0, 0.0]
    both = FeatureExtractor(net, ["act", ""], calls="all")(x.clone())
    assert [t.tolist() for t in both["act"]] == [[3.0, 0.5], [2.0, 0.0]]
    assert [t.tolist() for t in both[""]] == [[2.0, 0.0]]
    with pytest.raises(
        CaptureError, match="calls must be 'error', 'first', 'last' or 'all', not 'none'"
    ):
        FeatureExtractor(net, "act", calls="none")


def test_layer_that_does_not_run():
    with pytest.raises(LayerError, match="no features of layer 'unused': not called"):
        FeatureExtractor(Twice(), "unused")(torch.ones(1))


def test_nested_outputs_give_one_entry_per_tensor():
    net = nn.Sequential(OrderedDict(lstm=nn.LSTM(3, 4, 2, bidirectional=True)))
    features = FeatureExtractor(net, "lstm")(torch.zeros(2, 5, 3))
    assert {name: tuple(t.shape) for name, t in features.items()} == {
        "lstm[0]": (2, 5, 8),
        "lstm[1.0]": (4, 5, 4),
        "lstm[1.1]": (4, 5, 4),
    }


def test_gradients_reach_parameters_and_input():
    net = small()
    x = X.clone().requires_grad_()
    FeatureExtractor(net, "conv", gradients=True)(x)["conv"].square().sum().backward()
    twin, y = small(), X.clone().requires_grad_()
    twin.conv(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(net.conv.weight.grad, twin.conv.weight.grad)


def test_early_stop_gives_the_same():
    net = small()
    ran = []
    handle = net.head.register_forward_hook(lambda *_: ran.append(1))
    features = FeatureExtractor(net, "conv", stop_early=True)(X)
    handle.remove()
    assert torch.equal(features["conv"], net.conv(X))
    assert ran == []


def test_it_is_a_module():
    net = small()
    extract = FeatureExtractor(net, "conv")
    assert [name for name, _ in extract.named_parameters()] == [
        "model.conv.weight",
        "model.conv.bias",
    ]
    assert extract.train().model.relu.training
    extract.eval()
    assert not net.relu.training
    for twin in (copy.deepcopy(extract), pickle.loads(pickle.dumps(extract))):  # noqa: S301
        assert torch.equal(twin(X)["conv"], extract(X)["conv"])
        assert twin.model is not net
    assert extract.double()(X.double())["conv"].dtype is torch.float64


def test_forward_that_fails_comes_through():
    net = small()
    with pytest.raises(RuntimeError, match="channels"):
        FeatureExtractor(net, "conv")(torch.zeros(1, 5, 8, 8))
    assert hook_count(net) == 0


# extract_features ------------------------------------------------------------------------------


class Samples(Dataset):
    """Image i is filled with i; its label is 100 + i."""

    def __init__(self, count=10, sizes=(6,), kind="tuple") -> None:
        self.count, self.sizes, self.kind = count, sizes, kind

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        size = self.sizes[i % len(self.sizes)]
        image, label = torch.full((1, size, size), float(i)), 100 + i
        by_kind = {
            "tuple": (image, label),
            "image": image,
            "dict": {"label": label, "image": image},
            "other": {"label": label, "pixels": image},
        }
        return by_kind[self.kind]


class Fed(nn.Module):
    """Remembers what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.fed = []

    def forward(self, *args):
        self.fed.append([tuple(arg.shape) for arg in args])
        return self.layer(args[0])


@pytest.mark.parametrize("kind", ["tuple", "image", "dict"])
def test_rows_in_order_and_labels_not_fed(kind):
    net = Fed().train()
    seen = []
    rows = extract_features(
        net,
        {"x": "layer"},
        DataLoader(Samples(kind=kind), batch_size=4),
        progress=lambda done, total: seen.append((done, total)),
    )["x"]
    assert rows.shape == (10, 1, 6, 6)
    assert rows[:, 0, 0, 0].tolist() == list(range(10))
    assert net.fed == [[(4, 1, 6, 6)], [(4, 1, 6, 6)], [(2, 1, 6, 6)]]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert net.training
    assert hook_count(net) == 0


def test_keys_of_dict_batches():
    loader = DataLoader(Samples(kind="other"), batch_size=4)
    assert extract_features(Fed(), "layer", loader, key="pixels")["layer"].shape[0] == 10
    read = extract_features(Fed(), "layer", loader, key=lambda batch: batch["pixels"] * 2)
    assert read["layer"][:, 0, 0, 0].tolist() == [2.0 * i for i in range(10)]
    with pytest.raises(CaptureError) as caught:
        extract_features(Fed(), "layer", loader)
    assert "mapping without 'image'; it has 'label', 'pixels'" in str(caught.value)
    assert "key=" in str(caught.value)
    assert (
        extract_features(Fed(), "layer", [(torch.zeros(2), torch.ones(3, 1))], key=1)[
            "layer"
        ].tolist()
        == [[1.0]] * 3
    )
    with pytest.raises(CaptureError, match="has 2 entries and no entry 2"):
        extract_features(Fed(), "layer", [(torch.zeros(2), torch.ones(3))], key=2)


def test_images_of_two_sizes():
    # One by one, as a loader without a collate function of its own has to give them.
    rows = extract_features(Fed(), "layer", DataLoader(Samples(sizes=(6, 8)), batch_size=1))
    assert isinstance(rows["layer"], list)
    assert [tuple(row.shape) for row in rows["layer"][:2]] == [(1, 6, 6), (1, 8, 8)]
    assert [float(row[0, 0, 0]) for row in rows["layer"]] == list(range(10))

    def collate(samples):
        return [image for image, _ in samples], torch.tensor([label for _, label in samples])

    loader = DataLoader(Samples(sizes=(6, 8)), batch_size=4, collate_fn=collate)
    again = extract_features(Fed(), "layer", loader)["layer"]
    assert [tuple(row.shape) for row in again] == [tuple(row.shape) for row in rows["layer"]]
    assert [float(row[0, 0, 0]) for row in again] == list(range(10))
    # A reduction brings them to one size.
    reduced = extract_features(Fed(), "layer", loader, reduction="mean")["layer"]
    assert reduced.tolist() == [[float(i)] for i in range(10)]


def test_rows_of_a_list_do_not_carry_their_batch():
    loader = [torch.zeros(8, 4, 4, 4), torch.zeros(8, 4, 5, 5)]
    rows = extract_features(Fed(), "layer", loader)["layer"]
    file = io.BytesIO()
    torch.save(rows[0], file)
    assert rows[0].untyped_storage().nbytes() == 4 * 4 * 4 * 4
    assert len(file.getvalue()) < 4096


def test_batches_that_cannot_be_understood():
    images = [torch.zeros(3, 4, 4), torch.zeros(3, 4, 4)]
    with pytest.raises(CaptureError, match="list of 2 images"):
        extract_features(Fed(), "layer", [images])
    assert extract_features(Fed(), "layer", [images], key=list)["layer"].shape == (2, 3, 4, 4)
    with pytest.raises(CaptureError, match="Batch 2 is a str"):
        extract_features(Fed(), "layer", [torch.zeros(1, 1), "x"])
    with pytest.raises(CaptureError, match="input of batch 1 is a str"):
        extract_features(Fed(), "layer", [("path.png", 3)])
    with pytest.raises(CaptureError, match="gave no batch"):
        extract_features(Fed(), "layer", [])
    with pytest.raises(CaptureError, match="is a tensor and has no entry 'image'"):
        extract_features(Fed(), "layer", [torch.zeros(1)], key="image")


def test_max_batches_and_iterables_without_length():
    rows = extract_features(Fed(), "layer", DataLoader(Samples(), batch_size=4), max_batches=2)[
        "layer"
    ]
    assert rows[:, 0, 0, 0].tolist() == list(range(8))
    pulled = []

    class Stream(IterableDataset):
        def __iter__(self):
            for i in range(10):
                pulled.append(i)
                yield torch.full((1,), float(i))

    seen = []
    rows = extract_features(
        Fed(),
        "layer",
        DataLoader(Stream(), batch_size=2),
        max_batches=3,
        progress=lambda *done: seen.append(done),
    )["layer"]
    assert rows.flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert seen == [(1, None), (2, None), (3, None)]
    assert len(pulled) == 6
    for bad in (0, -1, True):
        with pytest.raises(CaptureError, match="max_batches must be a whole number from 1"):
            extract_features(Fed(), "layer", [], max_batches=bad)


def test_reductions():
    x = torch.arange(16.0).view(2, 2, 2, 2)
    for reduction, expected in (
        ("mean", x.mean((2, 3))),
        ("max", x.amax((2, 3))),
        (lambda t: t[:, :1], x[:, :1]),
    ):
        rows = extract_features(Fed(), "layer", [x], reduction=reduction)["layer"]
        assert torch.equal(rows, expected)
    assert extract_features(Fed(), "layer", [x.int()], reduction="mean")[
        "layer"
    ].is_floating_point()
    with pytest.raises(CaptureError, match="reduction='sum' is unknown"):
        extract_features(Fed(), "layer", [x], reduction="sum")


def test_shuffled_loaders_are_refused():
    loader = DataLoader(Samples(), batch_size=4, shuffle=True)
    with pytest.raises(CaptureError, match="shuffle=False"):
        extract_features(Fed(), "layer", loader)
    rows = extract_features(Fed(), "layer", loader, shuffled=True)["layer"]
    assert sorted(rows[:, 0, 0, 0].tolist()) == list(range(10))


def test_output_without_a_row_per_sample():
    net = nn.Sequential(nn.Flatten(0))
    with pytest.raises(CaptureError) as caught:
        extract_features(net, "0", [torch.zeros(2, 3)])
    assert "Layer '0' gives [6] for a batch of 2 samples" in str(caught.value)
    rows = extract_features(net, "0", [torch.zeros(2, 3)], reduction=lambda t: t.view(2, 3))
    assert rows["0"].shape == (2, 3)


def test_several_calls_per_forward():
    loader = [torch.full((2, 1), 3.0)]
    with pytest.raises(LayerError, match="ran 2 times"):
        extract_features(Twice(), "act", loader)
    assert extract_features(Twice(), "act", loader, calls="last")["act"].tolist() == [[2.0]] * 2
    with pytest.raises(CaptureError, match="calls must be 'error', 'first' or 'last', not 'all'"):
        extract_features(Twice(), "act", loader, calls="all")


def test_eval_mode_and_statistics():
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5)).train()
    net[1].eval()
    before = net[0].running_mean.clone()
    first = extract_features(net, "1", DataLoader(Samples(), batch_size=4))["1"]
    again = extract_features(net, "1", DataLoader(Samples(), batch_size=3))["1"]
    torch.testing.assert_close(first, again)
    assert torch.equal(net[0].running_mean, before)
    assert [m.training for m in net.modules()] == [True, True, False]


def test_error_in_the_middle_leaves_no_hooks():
    net = small().train()
    with pytest.raises(RuntimeError, match="channels"):
        extract_features(net, "conv", [torch.zeros(1, 3, 8, 8), torch.zeros(1, 4, 8, 8)])
    assert hook_count(net) == 0
    assert net.training


# VerboseExecution ------------------------------------------------------------------------------


def test_table_of_children_and_output_unchanged():
    net = small()
    stream = io.StringIO()
    verbose = VerboseExecution(net, stream=stream)
    out = verbose(X)
    assert torch.equal(out, net(X))
    assert [(r.layer, r.type, r.call, r.output, r.dtype, r.device) for r in verbose.rows] == [
        ("conv", "Conv2d", 1, "[2, 4, 6, 6]", "float32", "cpu"),
        ("relu", "ReLU", 1, "[2, 4, 6, 6]", "float32", "cpu"),
        ("head", "AdaptiveAvgPool2d", 1, "[2, 4, 1, 1]", "float32", "cpu"),
    ]
    assert [r.bytes for r in verbose.rows] == [1152, 1152, 32]
    assert all(r.milliseconds > 0 for r in verbose.rows)
    lines = stream.getvalue().splitlines()
    assert lines[0].split() == ["layer", "type", "call", "output", "dtype", "device", "ms", "bytes"]
    assert lines[1].startswith("conv")
    assert "[2, 4, 6, 6]" in lines[1]
    assert lines[-1] == "3 calls, outputs 2.3 KiB"
    assert hook_count(net) == 0


def test_nested_shapes():
    net = nn.Sequential(OrderedDict(lstm=nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)))
    verbose = VerboseExecution(net, live=False)
    verbose(torch.zeros(2, 5, 3))
    assert verbose.rows[0].output == "([2, 5, 8], ([4, 2, 4], [4, 2, 4]))"
    assert verbose.rows[0].bytes == (80 + 32 + 32) * 4


def test_outputs_that_are_no_tensors():
    class Odd(nn.Module):
        def forward(self, x):
            return {"out": x, "n": 3, "none": None}

    verbose = VerboseExecution(nn.Sequential(Odd()), live=False)
    verbose(torch.zeros(1, 2))
    assert verbose.rows[0].output == "{out: [1, 2], n: int, none: None}"

    class Nothing(nn.Module):
        def forward(self, x):
            return None

    verbose = VerboseExecution(nn.Sequential(Nothing()), live=False)
    verbose(torch.zeros(1, 2))
    assert (verbose.rows[0].output, verbose.rows[0].dtype, verbose.rows[0].bytes) == (
        "None",
        "–",
        0,
    )


def test_depth_layers_and_order():
    net = nn.Sequential(OrderedDict(block=small(), act=nn.ReLU()))
    verbose = VerboseExecution(net, depth=None, live=False)
    assert verbose.table().splitlines()[0].split()[:2] == ["layer", "type"]
    verbose(X)
    assert [r.layer for r in verbose.rows] == [
        "block.conv", "block.relu", "block.head", "block", "act",
    ]  # fmt: skip
    begun = [line.split()[0] for line in verbose.table().splitlines()[2:]]
    assert begun == ["block", "block.conv", "block.relu", "block.head", "act"]
    root = VerboseExecution(net, depth=0, live=False)
    root(X)
    assert [r.layer for r in root.rows] == ["(model)"]
    chosen = VerboseExecution(net, layers={"first": "block.conv"}, live=False)
    chosen(X)
    assert [r.layer for r in chosen.rows] == ["first"]
    with pytest.raises(LayerError, match="'blok'"):
        VerboseExecution(net, layers="blok")
    with pytest.raises(CaptureError, match="depth must be a whole number from 0, not -1"):
        VerboseExecution(net, depth=-1)


def test_calls_are_counted():
    verbose = VerboseExecution(Twice(), live=False)
    for _ in range(2):
        verbose(torch.ones(1))
        assert [(r.layer, r.call) for r in verbose.rows] == [("act", 1), ("act", 2)]


def test_failed_forward_keeps_the_rows_and_names_the_layer():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 5))
    stream = io.StringIO()
    verbose = VerboseExecution(net, stream=stream)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        verbose(torch.zeros(1, 2))
    assert [r.layer for r in verbose.rows] == ["0"]
    assert "1  ended by RuntimeError" in stream.getvalue()
    assert hook_count(net) == 0
    with pytest.raises(RuntimeError):
        verbose(torch.zeros(1, 3))
    assert verbose.rows == ()


def test_verbose_leaves_modes_gradients_and_hooks_of_others():
    net = small().train()
    seen = []
    net.conv.register_forward_hook(lambda *_: seen.append(1))
    verbose = VerboseExecution(net, live=False)
    verbose(X).sum().backward()
    assert net.conv.weight.grad is not None
    assert net.training
    assert seen == [1]
    assert hook_count(net) == 1


def test_verbose_on_a_compiled_model():
    net = small()
    compiled = torch.compile(net, backend="eager")
    compiled(X)
    verbose = VerboseExecution(compiled, live=False)
    verbose(X)
    assert [r.layer for r in verbose.rows] == ["conv", "relu", "head"]
