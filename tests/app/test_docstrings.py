"""What docstrings say holds: arguments, attributes and errors are as they name them.

Their examples run as doctests (see ``addopts`` in pyproject.toml).
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import hookviz
from hookviz import capture, errors, export, images, models, render, run
from hookviz.errors import (
    CaptureError,
    DeviceError,
    ExportError,
    ImageError,
    LayerError,
    ModelError,
    RenderError,
    RunCancelled,
    WeightsError,
)
from hookviz.render import GridOptions

ROOT = Path(hookviz.__file__).parent
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def documented() -> Iterator[tuple[str, ast.AST, str]]:
    """Every function and class of the package with a docstring."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (*FUNCTION, ast.ClassDef)) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(ROOT)}:{node.name}", node, text


DOCUMENTED = list(documented())


def entries(text: str, section: str) -> list[str]:
    """The names that begin the entries of a docstring's section."""
    match = re.search(rf"^{section}:\n((?:    .*\n|\n)*)", text + "\n", flags=re.MULTILINE)
    return re.findall(r"^    \*{0,2}(\w+)(?= ?[(:])", match[1], flags=re.MULTILINE) if match else []


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    found = function.args
    named = (*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg)
    return {argument.arg for argument in named if argument}


def members(node: ast.ClassDef) -> set[str]:
    """Fields, methods and attributes set in a class or its bases, and what __init__ takes."""
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    names: set[str] = set()
    for _, other, _ in DOCUMENTED:
        if isinstance(other, ast.ClassDef) and other.name in bases - {node.name}:
            names |= members(other)
    for part in ast.walk(node):
        if isinstance(part, FUNCTION):
            names.add(part.name)
            if part.name == "__init__":
                names |= parameters(part)
        elif isinstance(part, ast.Name):
            names.add(part.id)
        elif isinstance(part, ast.Attribute):
            names.add(part.attr)
    return names


def test_every_argument_that_is_described_exists() -> None:
    wrong = []
    for place, node, text in DOCUMENTED:
        if isinstance(node, FUNCTION):
            wrong += [
                (place, name) for name in entries(text, "Args") if name not in parameters(node)
            ]
    assert wrong == []


def test_every_attribute_that_is_described_exists() -> None:
    wrong = []
    for place, node, text in DOCUMENTED:
        if isinstance(node, ast.ClassDef):
            there = members(node)
            wrong += [(place, name) for name in entries(text, "Attributes") if name not in there]
    assert wrong == []


def test_every_error_that_is_described_exists() -> None:
    known = set(dir(builtins)) | set(errors.__all__)
    known |= {node.name for _, node, _ in DOCUMENTED if isinstance(node, ast.ClassDef)}
    wrong = []
    for place, _, text in DOCUMENTED:
        wrong += [(place, name) for name in entries(text, "Raises") if name not in known]
    assert wrong == []


def test_the_three_tests_above_look_at_something() -> None:
    for section in ("Args", "Attributes", "Raises"):
        assert sum(len(entries(text, section)) for _, _, text in DOCUMENTED) > 100
    assert entries("Does.\n\nArgs:\n    a: One.\n        more: no.\n    **b: Two.\n", "Args") == [
        "a", "b",
    ]  # fmt: skip


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()
        self.spare = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.relu(self.conv(x)))


@pytest.fixture(scope="module")
def net() -> models.LoadedModel:
    return models.load_model(Twice())


@pytest.fixture(scope="module")
def once(net: models.LoadedModel) -> run.Run:
    return run.feature_maps(net, images.sample_image(), ["conv", "relu", "spare"])


Case = tuple[Callable[[models.LoadedModel, run.Run, Path], Any], type[Exception], str]
MAPS = torch.rand(1, 3, 4, 4)
RAISED: dict[str, Case] = {
    "feature_maps: unknown layer": (
        lambda net, once, tmp: run.feature_maps(net, images.sample_image(), "cov"),
        LayerError, "'conv'"),
    "feature_maps: unknown model": (
        lambda net, once, tmp: run.feature_maps("vgg17", images.sample_image(), "*"),
        ModelError, "'vgg16'"),
    "feature_maps: unknown device": (
        lambda net, once, tmp: run.feature_maps("vgg16", images.sample_image(), "*", device="x"),
        DeviceError, "'cpu'"),
    "feature_maps: unreadable image": (
        lambda net, once, tmp: run.feature_maps(net, tmp / "no.png", "conv"),
        ImageError, "no.png"),
    "run_model: cancelled": (
        lambda net, once, tmp: run.run_model(
            net, images.sample_image(), "conv", cancelled=lambda: True),
        RunCancelled, ""),
    "Run.select: several calls": (
        lambda net, once, tmp: once.select("relu"), LayerError, "call 1"),
    "Run.select: not captured": (
        lambda net, once, tmp: once.select("cov"), LayerError, "'conv'"),
    "Run.select: did not run": (
        lambda net, once, tmp: once.select("spare"), LayerError, "not called"),
    "Run.select: a call that was not": (
        lambda net, once, tmp: once.select("relu", call=3), LayerError, "call 3"),
    "Run.select: a kind that was not kept": (
        lambda net, once, tmp: once.select("conv", kind="input"), LayerError, "'output'"),
    "Run.select: no kind": (
        lambda net, once, tmp: once.select("conv", kind="outputs"), LayerError, "'output'"),
    "Run.select: no name": (
        lambda net, once, tmp: once.select(3), LayerError, "3"),
    "Run.drawing: not drawable so": (
        lambda net, once, tmp: once.drawing("conv", options=GridOptions(page=9)),
        RenderError, "page"),
    "Run.figure: unknown option": (
        lambda net, once, tmp: once.figure("conv", pge=9), RenderError, "'page'"),
    "Run.export: the folder exists": (
        lambda net, once, tmp: [once.export(tmp, name="x", what="input") for _ in range(2)],
        ExportError, "exists already"),
    "reproduce: no PNG": (
        lambda net, once, tmp: run.reproduce(b"x"), ExportError, "not a PNG"),
    "GridOptions: not legal": (
        lambda net, once, tmp: GridOptions(scale="x"), RenderError, "'channel'"),
    "feature_grid: not drawable": (
        lambda net, once, tmp: render.feature_grid(torch.zeros(1, 1, 1, 1, 1, 1)),
        RenderError, ""),
    "SingleChannels.images: no such channel": (
        lambda net, once, tmp: list(render.SingleChannels(MAPS, GridOptions()).images([3])),
        RenderError, "3"),
    "read_png_facts: not hookviz's": (
        lambda net, once, tmp: export.read_png_facts(b"\x89PNG"), ExportError, ""),
    "zip_export: no folder": (
        lambda net, once, tmp: export.zip_export(tmp / "no"), ExportError, "not a folder"),
    "load_model: weights missing": (
        lambda net, once, tmp: models.load_model("resnet18", weights=tmp / "no.pth"),
        WeightsError, "no.pth"),
    "read_image: empty": (
        lambda net, once, tmp: images.read_image(b""), ImageError, "empty"),
    "Capture: unknown layer": (
        lambda net, once, tmp: capture.Capture(Twice(), "cov").open(), LayerError, "'conv'"),
    "Capture.output: several calls": (
        lambda net, once, tmp: two_calls().output("relu"), LayerError, "call"),
    "clip_gradients: two limits": (
        lambda net, once, tmp: capture.clip_gradients(Twice(), value=1, norm=1), CaptureError, ""),
    "Activation.sample: no such sample": (
        lambda net, once, tmp: once.select("conv").sample(5), LayerError, "5"),
}  # fmt: skip


def two_calls() -> capture.Capture:
    net = Twice()
    with capture.Capture(net, "relu") as captured:
        net(torch.rand(1, 3, 8, 8))
    return captured


@pytest.mark.parametrize("case", RAISED)
def test_what_is_said_to_be_raised_is_raised(
    case: str, net: models.LoadedModel, once: run.Run, tmp_path: Path
) -> None:
    call, kind, part = RAISED[case]
    with pytest.raises(kind) as caught:
        call(net, once, tmp_path)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_face_describes_all_that_it_offers() -> None:
    bare = [
        f"{face.__name__}.{name}"
        for face in (capture, export, images, models, render, run)
        for name in face.__all__
        if isinstance(value := getattr(face, name), type | FunctionType)
        and not inspect.getdoc(value)
    ]
    assert bare == []
