"""The session file: the same choices again, and nothing that a stranger's file could do."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import ExportError, HookvizError, ImageError, LayerError
from hookviz.images import read_image
from hookviz.models import LoadedModel
from hookviz.widget import Explorer


def pixels(app: Explorer) -> dict[str, bytes]:
    found = {}
    for label, figure in app.figures.items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        found[label] = bytes(canvas.buffer_rgba())
    return found


@pytest.fixture
def explore() -> Iterator[Callable[..., Explorer]]:
    apps: list[Explorer] = []

    def explore(*given: Any, **more: Any) -> Explorer:
        apps.append(hookviz.explore(*given, device="cpu", **more))
        assert apps[-1].wait(60)
        return apps[-1]

    yield explore
    for app in apps:
        app.close()


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 6, 3), nn.ReLU()


def noise(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.effect_noise((90, 60), 80).convert("RGB").save(file, kind)
    return file.getvalue()


def test_all_choices_come_back(
    explore: Callable[..., Explorer], make_page: Any, tmp_path: Path
) -> None:
    app = explore("vgg16", hookviz.sample_image("coffee.png"), ["features.0", "features.5"])
    app.options = app.options.replace(cmap="magma", order="mean", per_page=16, channels="0-40")
    page = make_page(app.gallery)
    page.say("page", key="features.5#1", page=2)
    page.say("filters", key="features.0#1", on=True)
    app.image_input.own = {**app.image_input.own, "size": "64 × 96", "std": "0.25"}
    app.image_input.choice = "own"
    assert app.start_run()
    assert app.wait(60)
    file = app.save(tmp_path / "x.hookviz.json")
    assert [p.name for p in tmp_path.iterdir()] == ["x.hookviz.json"]
    again = explore(file)
    assert again.run is not None  # there are image and layers, so it runs
    assert again.options == app.options
    assert again.image_input.own == app.image_input.own
    assert again.layers == app.layers
    assert again.image.sha256 == app.image.sha256
    assert again.as_python() == app.as_python()
    assert pixels(again) == pixels(app)
    waiting = explore(str(file), run=False)
    assert waiting.run is None
    twice = waiting.save(tmp_path / "y.hookviz.json")  # what is not shown yet is not lost
    assert json.loads(twice.read_text("utf-8")) == json.loads(file.read_text("utf-8"))


@pytest.mark.parametrize(
    "give",
    [
        pytest.param(lambda folder: folder / "photo.jpg", id="a path"),
        pytest.param(lambda folder: (folder / "photo.jpg").read_bytes(), id="an upload"),
        pytest.param(lambda folder: np.array(Image.open(folder / "photo.jpg")), id="an array"),
    ],
)
def test_the_image_comes_back_whatever_it_came_from(
    explore: Callable[..., Explorer], tmp_path: Path, give: Callable[[Path], Any]
) -> None:
    (tmp_path / "photo.jpg").write_bytes(noise("JPEG"))
    image = read_image(give(tmp_path), name="mine")
    app = explore(Net(), image, run=False)
    file = app.save(tmp_path / "x.hookviz.json")
    by_path = bool(image.path)
    assert (str(tmp_path) in file.read_text("utf-8")) == by_path
    again = explore(Net(), session=file)
    assert again.image.name == "mine"
    assert again.image.sha256 == image.sha256
    assert again.image.image.tobytes() == image.image.tobytes()
    if by_path:
        (tmp_path / "photo.jpg").write_bytes(noise("JPEG"))
        with pytest.raises(ImageError, match=r"has changed since\. Pass it"):
            explore(Net(), session=file)
        (tmp_path / "photo.jpg").unlink()
        with pytest.raises(ImageError, match=r"There is no file 'photo\.jpg'"):
            explore(Net(), session=file)
        other = explore(Net(), hookviz.sample_image(), session=file)
        assert other.image.name == "chelsea.png"


def test_models_by_checkpoint_and_with_values_of_ones_own(
    explore: Callable[..., Explorer], tmp_path: Path
) -> None:
    torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), tmp_path / "best.pth")
    how = hookviz.Preprocessing.for_size((40, 48), "pad", mean=0.5, std=0.25)
    model = hookviz.load_model(
        "resnet18",
        tmp_path / "best.pth",
        device="cpu",
        name="flowers",
        preprocess=how,
        categories=list("abcd"),
        dtype="float64",
    )
    file = explore(model).save(tmp_path / "x.hookviz.json")
    again = explore(file).model
    assert again.weights_hash == model.weights_hash
    assert (again.name, again.preprocess, again.dtype) == ("flowers", how, torch.float64)
    assert again.categories == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: Net(), id="a module"),
        pytest.param(
            lambda: hookviz.load_model(
                "resnet18", torchvision.models.resnet18().state_dict(), device="cpu"
            ),
            id="a state dict",
        ),
        pytest.param(
            lambda: hookviz.load_model(
                "resnet18", None, device="cpu", preprocess=torchvision.transforms.ToTensor()
            ),
            id="a function",
        ),
    ],
)
def test_a_model_that_no_file_holds_has_to_be_passed(
    explore: Callable[..., Explorer], tmp_path: Path, model: Callable[[], Any]
) -> None:
    given = model()
    file = explore(given, None, [""]).save(tmp_path / "x.hookviz.json")
    with pytest.raises(ExportError, match=r"own, which no file|own Net, which no file") as caught:
        explore(file)
    assert caught.value.remedy == "Pass it: explore(model, session=…)."
    assert explore(given, session=file).layers == [""]


def test_a_size_of_ones_own_is_not_looked_for_again(
    explore: Callable[..., Explorer], tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 3))
    model = LoadedModel(net, "digits", "as passed in", True, task="unknown", passed_in=True)
    app = explore(model, hookviz.sample_image(), ["0"])
    assert app.image_input.own["size"] == "28 × 28"
    app.image_input.own = {**app.image_input.own, "mean": "0.13"}
    file = app.save(tmp_path / "x.hookviz.json")
    again = explore(model, session=file)
    assert again.image_input.own == app.image_input.own
    assert again.run is not None


# ── what may be wrong with a file

CARD = {"page": 0}
FAULTS: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("no table", lambda s: [s], "not a session of hookviz's"),
    ("another JSON", lambda s: {"cells": []}, "not a session of hookviz's"),
    ("a later version", lambda s: {**s, "hookviz_session": 99}, "written by a later hookviz"),
    ("an unknown name", lambda s: {**s, "output_folder": "/etc"}, "it has 'output_folder'; known"),
    ("a name that lacks", lambda s: {k: v for k, v in s.items() if k != "layers"}, "lacks layers"),
    ("layers", lambda s: {**s, "layers": "conv"}, "must be a list of texts"),
    ("view", lambda s: {**s, "view": {"cmap": "no"}}, "in its view, cmap is 'no'"),
    ("view's types", lambda s: {**s, "view": {"percentile": [None, {}]}}, "view"),
    ("view's names", lambda s: {**s, "view": {"path": "x"}}, "no drawing option 'path'"),
    ("a card", lambda s: {**s, "cards": {"conv#1": {"page": -1}}}, "a whole number from 0"),
    ("a card's names", lambda s: {**s, "cards": {"image": {"worker": 1}}}, "'worker'"),
    ("a card that is none", lambda s: {**s, "cards": {"conv#1": 5}}, "table of names"),
    ("auto_run", lambda s: {**s, "auto_run": "yes"}, "must be true or false"),
    ("model", lambda s: {**s, "model": {"device": "cpu"}}, "model has no name"),
    ("model's names", lambda s: {**s, "model": {"pickle": "x"}}, "model has 'pickle'"),
    ("model's types", lambda s: {**s, "model": {"model": 5}}, "must be a text"),
    (
        "steps",
        lambda s: {**s, "model": {"model": "vgg16", "device": "cpu", "preprocess": {"mean": "x"}}},
        "in its model, mean is x",
    ),
    (
        "steps' types",
        lambda s: {**s, "model": {"model": "vgg16", "device": "cpu", "preprocess": {"fit": {}}}},
        "model",
    ),
    ("own size", lambda s: {**s, "preprocessing": {"choice": "own", "own": {}}}, "own has nothing"),
    ("choice", lambda s: {**s, "preprocessing": {"choice": 1, "own": {}}}, "must be one of model"),
    ("image", lambda s: {**s, "image": {"name": "a"}}, "image lacks sha256"),
    ("image's source", lambda s: {**s, "image": {"name": "a", "sha256": ""}}, "one of sample"),
    (
        "image's data",
        lambda s: {**s, "image": {"name": "a", "sha256": "", "data": "§"}},
        "not base64",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_one_sentence_says_what_is_wrong(
    app: Explorer, tmp_path: Path, change: Callable[[dict[str, Any]], Any], words: str
) -> None:
    file = app.save(tmp_path / "x.hookviz.json")
    file.write_text(json.dumps(change(json.loads(file.read_text("utf-8")))), "utf-8")
    with pytest.raises(ExportError) as caught:
        hookviz.explore(Net(), session=file)
    assert words in caught.value.message
    assert caught.value.message.startswith("The session 'x.hookviz.json' cannot be opened: ")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04\x95.", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"", "not JSON"),
        (b'{"hookviz_session": 1e999}', "not a session"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_json(tmp_path: Path, data: bytes | None, words: str) -> None:
    file = tmp_path / "x.hookviz.json"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ExportError, match=words):
        hookviz.explore(file)
    with pytest.raises(ExportError, match="no such file"):
        hookviz.explore(session=tmp_path)


def test_what_a_strangers_file_names_is_read_as_what_it_is(
    explore: Callable[..., Explorer], tmp_path: Path
) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was here",))

    torch.save(Evil(), tmp_path / "evil.pth")
    (tmp_path / "evil.png").write_bytes((tmp_path / "evil.pth").read_bytes())
    file = explore("vgg16", hookviz.sample_image()).save(tmp_path / "x.hookviz.json")
    session = json.loads(file.read_text("utf-8"))
    good = {"model": session["model"], "image": session["image"]}
    bomb = base64.b64encode(noise()[:40] + b"\xff" * 1000).decode()
    plain = {"name": "x", "sha256": "0"}
    for change in (
        {"model": {"model": str(tmp_path / "evil.pth"), "device": "cpu"}},
        {"model": {"model": "vgg16", "weights": str(tmp_path / "evil.pth"), "device": "cpu"}},
        {"image": {**plain, "path": str(tmp_path / "evil.png")}},
        {"image": {**plain, "path": "/dev/zero"}},
        {"image": {**plain, "sample": "../../secret"}},
        {"image": {**plain, "data": bomb}},
    ):
        file.write_text(json.dumps({**session, **good, **change}), "utf-8")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(HookvizError):
            explore(file)
        assert sorted(tmp_path.iterdir()) == before


def test_layers_that_the_model_has_not(
    explore: Callable[..., Explorer], app: Explorer, tmp_path: Path
) -> None:
    file = app.save(tmp_path / "x.hookviz.json")
    session = {**json.loads(file.read_text("utf-8")), "layers": ["conf"]}
    file.write_text(json.dumps(session), "utf-8")
    with pytest.raises(LayerError, match=r"no layer 'conf'.*'conv'"):
        explore(Net(), session=file)
    assert explore(Net(), None, ["conv"], session=file).layers == ["conv"]


def test_where_a_session_is_not_written(app: Explorer, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"ends with \.hookviz\.json"):
        app.save(tmp_path / "x.json")
    with pytest.raises(ExportError, match="cannot be written"):
        app.save(tmp_path / "nowhere" / "x.hookviz.json")
    assert list(tmp_path.iterdir()) == []
