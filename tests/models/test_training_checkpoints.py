"""Checkpoints of real training scripts: harmless values are read, others refused truthfully."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import enum
import functools
import io
import os
import pathlib
import pickle
import re
import sys
import threading
import types
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.transforms import InterpolationMode

from hookviz.errors import WeightsError
from hookviz.models import load_model

STATE = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2)}

HARMLESS: dict[str, Any] = {
    "arguments": argparse.Namespace(lr=0.1, out=pathlib.Path("runs/1"), sizes=[1, 2], sub=None),
    "a namespace": types.SimpleNamespace(arch="mine"),
    "numpy numbers": [np.float64(0.7), np.float32(1), np.int64(3), np.bool_(True), np.complex64(1)],
    "numpy texts": [np.str_("cat"), np.bytes_(b"cat")],
    "numpy arrays": [np.arange(3), np.ones((2, 2), order="F"), np.array(["a", "bc"]), np.zeros(0)],
    "another byte order": np.arange(3, dtype=">i4"),
    "class names as objects": np.array(["cat", "dog"], dtype=object),
    "a numpy dtype": np.dtype("float32"),
    "numpy's generator": np.random.RandomState(0).get_state(),
    "Python's generator": __import__("random").getstate(),
    "torch's generator": torch.get_rng_state(),
    "paths": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("a\\b"), Path("a")],
    "times": [
        dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.date(2026, 1, 2),
        dt.timedelta(seconds=90),
        dt.time(12),
    ],
    "collections": [
        collections.defaultdict(list, loss=[0.5, 0.4]),
        collections.defaultdict(float, top1=0.7),
        collections.Counter("aab"),
        collections.OrderedDict(a=1),
        collections.deque([1, 2], maxlen=4),
        frozenset({1, 2}),
        {1, 2},
        slice(1, 2),
    ],
    "torch's own": [torch.__version__, torch.Size([1, 2]), torch.device("cpu"), torch.float16],
    "an id": [uuid.UUID(int=7), decimal.Decimal("0.1")],
    "types as values": [int, float, str, list],
}


def save(tmp_path: Path, value: Any, **options: Any) -> Path:
    path = tmp_path / "last.pth"
    torch.save({"model": STATE, "extra": value, "epoch": 9}, path, **options)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load_model(nn.Linear(3, 2), weights=path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", HARMLESS)
def test_weights_beside_harmless_values_are_read(tmp_path: Path, kind: str, zipped: bool) -> None:
    path = save(tmp_path, HARMLESS[kind], _use_new_zipfile_serialization=zipped)
    before = set(torch.serialization.get_safe_globals())
    model = load_model(nn.Linear(3, 2), weights=path)
    assert torch.equal(model.module.weight, STATE["weight"])
    assert model.report.wrapping == "model"
    assert set(torch.serialization.get_safe_globals()) == before


class Renaming(pickle._Pickler):
    """Writes other names for classes, as other systems and versions do."""

    names: dict[str, str] = {}  # noqa: RUF012 - set by each test

    def save_global(self, obj: Any, name: str | None = None) -> None:
        full = f"{obj.__module__}.{obj.__qualname__}"
        if full in self.names:
            module, _, name = self.names[full].rpartition(".")
            self.write(b"c" + module.encode() + b"\n" + name.encode() + b"\n")
            self.memoize(obj)
            return
        super().save_global(obj, name)

    dispatch = {**pickle._Pickler.dispatch, type: save_global, types.FunctionType: save_global}  # noqa: RUF012 - as in pickle


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (np.float64(1), {"numpy._core.multiarray.scalar": "numpy.core.multiarray.scalar"}),
        (
            np.arange(3),
            {"numpy._core.multiarray._reconstruct": "numpy.core.multiarray._reconstruct"},
        ),
        (Path("x"), {f"{type(Path()).__module__}.PosixPath": "pathlib.WindowsPath"}),
        (Path("x"), {f"{type(Path()).__module__}.PosixPath": "pathlib._local.PosixPath"}),
        (
            types.SimpleNamespace(lr=1),
            {"types.SimpleNamespace": "argparse.Namespace"},
        ),
        (
            collections.defaultdict(int, lr=0.1),
            {"collections.defaultdict": "pytorch_lightning.utilities.parsing.AttributeDict"},
        ),
    ],
    ids=["numpy 1 scalar", "numpy 1 array", "Windows", "Python 3.13", "namespace", "Lightning"],
)
def test_names_of_other_systems_and_versions(
    tmp_path: Path, value: Any, names: dict[str, str]
) -> None:
    class Module:
        Unpickler = pickle.Unpickler
        Pickler = type("Pickler", (Renaming,), {"names": names})
        load, dumps, dump = pickle.load, pickle.dumps, pickle.dump

    path = tmp_path / "last.pth"
    torch.save({"model": STATE, "extra": value}, path, pickle_module=Module)
    with zipfile.ZipFile(path) as archive:
        pickled = archive.read("last/data.pkl")
    assert next(iter(names.values())).rpartition(".")[2].encode() in pickled
    model = load_model(nn.Linear(3, 2), weights=path)
    assert torch.equal(model.module.weight, STATE["weight"])


# --- what is refused ----------------------------------------------------------------------------


class Config:
    def __init__(self) -> None:
        self.lr = 0.1


ENUMS = pytest.mark.skipif(
    sys.version_info < (3, 11, 4), reason="this Python saves members of enums as calls of getattr"
)


class Phase(enum.Enum):
    TRAIN = 1


def a_function() -> None: ...


class Runs:
    """Unpickling it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Config(), r"holds an object of the class .*Config; only"),
        pytest.param(Phase.TRAIN, r"calls .*Phase; only", marks=ENUMS),
        (a_function, r"refers to .*a_function; only"),
        (nn.functional.relu, r"refers to torch\.nn\.functional\.relu; only"),
        (nn.Linear(2, 2), r"(class|refers to) torch\.nn\.modules\.linear\.Linear; only"),
        (functools.partial(int), r"calls functools\.partial; only"),
        pytest.param(
            InterpolationMode.BILINEAR, r"calls torchvision\..*InterpolationMode; only", marks=ENUMS
        ),
        (np.zeros(2, dtype=[("a", "f4")]), r"holds numpy values of type 'V4'; only"),
        (np.datetime64("2026-01-01"), r"holds numpy values of type 'M8'; only"),
        (range(3), r"range; only"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_others_are_refused_in_a_true_sentence(
    tmp_path: Path, value: Any, said: str, zipped: bool
) -> None:
    text = refusal(save(tmp_path, value, _use_new_zipfile_serialization=zipped))
    assert re.search(said, text)
    assert "would run code" not in text
    assert "last.pth" in text


@pytest.mark.parametrize("zipped", [True, False])
def test_a_call_of_a_function_is_named_as_code(tmp_path: Path, zipped: bool) -> None:
    made = tmp_path / "made"
    text = refusal(save(tmp_path, Runs(made), _use_new_zipfile_serialization=zipped))
    assert "calls the function posix.mkdir: reading it would run code" in text
    assert not made.exists()


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_pickle_protocols_are_one_sentence_and_no_warning(
    tmp_path: Path, protocol: int
) -> None:
    text = refusal(save(tmp_path, 1, pickle_protocol=protocol))
    assert f"pickle's protocol {protocol}" in text
    assert "would run code" not in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "content",
    [
        {"model": STATE, "config": Config()},
        {"model": STATE, "optimizer": {"lr": Phase.TRAIN}, "epoch": 3},
        {"state_dict": nn.Linear(3, 2), "args": Config()},
        nn.Linear(3, 2),
    ],
    ids=["a class beside", "a class inside", "a module beside", "a module"],
)
def test_the_snippet_gets_the_weights_out(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(content, "last.pth")
    text = refusal(Path("last.pth"))
    exec(text[text.index("import torch") :], {})  # noqa: S102 - what the sentence says to run
    model = load_model(nn.Linear(3, 2), weights="weights.pth")
    kept = content if isinstance(content, nn.Module) else content.get("state_dict")
    state = STATE if kept is None else kept.state_dict()
    assert torch.equal(model.module.weight, state["weight"])


# --- hostile values of harmless types -----------------------------------------------------------


class Says:
    """Pickled as whatever is given."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


_SCALAR: Callable[..., Any] = np.float64(0).__reduce__()[0]
_ARRAY: Callable[..., Any] = np.zeros(1).__reduce__()[0]
FIELDS = (3, "<", None, ("a",), {"a": (np.dtype("f4"), 10**9)}, 8, 1, 16)


@pytest.mark.parametrize(
    "value",
    [
        Says(_SCALAR, (Says(np.dtype, ("f8", False, True), FIELDS), b"12345678")),
        Says(_SCALAR, (np.dtype("f8"), b"123")),
        Says(_ARRAY, (np.ndarray, (0,), b"b"), (1, (10**6,), np.dtype("f8"), False, b"1")),
        Says(_ARRAY, (np.ndarray, (0,), b"b"), (1, (10**6,), np.dtype("O"), False, [1])),
        Says(_ARRAY, (np.ndarray, (10**12,), b"b"), (1, (1,), np.dtype("u1"), False, b"1")),
        Says(np.dtype, ("f8", False, True), (3, "|", (np.dtype("f4"), (9,)), None, None, 4, 1, 0)),
        Says(np.dtype, ("V8", False, True), FIELDS),
        Says(np.dtype, ("U999999999",)),
    ],
)
def test_numpy_values_that_lie_are_read_as_plain_ones_or_refused(
    tmp_path: Path, value: Any
) -> None:
    path = save(tmp_path, value)
    try:
        model = load_model(nn.Linear(3, 2), weights=path)
    except WeightsError:
        refusal(path)
    else:
        assert torch.equal(model.module.weight, STATE["weight"])


def test_an_enum_of_a_library_is_not_changed(tmp_path: Path) -> None:
    evil = Says(InterpolationMode, ("bilinear",), {"_value_": "evil"})
    refusal(save(tmp_path, evil))
    assert InterpolationMode.BILINEAR.value == "bilinear"


def test_types_that_the_user_has_allowed_stay_allowed(tmp_path: Path) -> None:
    path = save(tmp_path, [np.float64(1), argparse.Namespace(a=1), Config()])
    theirs = [argparse.Namespace, np.dtype, type(np.dtype("f8")), Config]
    with torch.serialization.safe_globals(theirs):
        before = set(torch.serialization.get_safe_globals())
        load_model(nn.Linear(3, 2), weights=path)
        assert set(torch.serialization.get_safe_globals()) == before
    assert "Config" in refusal(path)


def test_several_threads_read_at_once(tmp_path: Path) -> None:
    path = save(tmp_path, argparse.Namespace(lr=np.float64(0.1)))
    before = set(torch.serialization.get_safe_globals())
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(20):
                load_model(nn.Linear(3, 2), weights=path)
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(torch.serialization.get_safe_globals()) == before


def test_class_names_in_the_arguments(tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}
    net = nn.Sequential(collections.OrderedDict(fc=nn.Linear(3, 2)))
    buffer = io.BytesIO()
    torch.save({"model": state, "args": argparse.Namespace(classes=["cat", "dog"])}, buffer)
    (tmp_path / "a.pth").write_bytes(buffer.getvalue())
    assert load_model(net, weights=tmp_path / "a.pth").categories == ("cat", "dog")
