"""Copy as Python: the cell gives, in a fresh process, the very pixels that the app shows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import hookviz
from hookviz.images import read_image
from hookviz.widget import Explorer

NET = '''
import torch
from torch import nn

class Twice(nn.Module):
    """Calls one ReLU twice and gives two tensors."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pair = nn.Conv2d(3, 6, 3), nn.ReLU(), Pair()

    def forward(self, x):
        return self.pair(self.relu(-self.relu(self.conv(x))))["b"].mean((2, 3))

class Pair(nn.Module):
    def forward(self, x):
        return {"a": x[:, :2], "b": x - 1}

torch.manual_seed(3)
my_model = Twice()
'''
DUMP = """
import sys
from pathlib import Path
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
names = {}
for part in sys.argv[1:]:
    exec(compile(Path(part).read_text("utf-8"), part, "exec"), names)
pixels = {}
for label, figure in names["figures"].items():
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels[label] = np.asarray(canvas.buffer_rgba())
np.savez("pixels.npz", **{str(i): found for i, found in enumerate(pixels.values())})
Path("labels.txt").write_text("\\n".join(pixels), "utf-8")
"""


def pixels(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def own_net() -> nn.Module:
    names: dict[str, Any] = {}
    exec(NET, names)  # noqa: S102 - the text above
    module: nn.Module = names["my_model"]
    return module


@pytest.fixture
def opened() -> Iterator[Callable[..., Explorer]]:
    apps: list[Explorer] = []

    def opened(*given: Any, **more: Any) -> Explorer:
        apps.append(hookviz.explore(*given, device="cpu", **more))
        assert apps[-1].wait(60)
        return apps[-1]

    yield opened
    for app in apps:
        app.close()


@pytest.fixture
def same(tmp_path: Path, fresh_python: Any) -> Callable[..., str]:
    """Runs the app's cell in a fresh process and compares every figure."""

    def same(app: Explorer, before: str = "") -> str:
        text = app.as_python()
        (tmp_path / "cell.py").write_text(text, "utf-8")
        (tmp_path / "before.py").write_text(before, "utf-8")
        done = fresh_python.run(DUMP, "before.py", "cell.py", cwd=tmp_path)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        labels = (tmp_path / "labels.txt").read_text("utf-8").split("\n")
        assert labels == list(app.figures)
        found = np.load(tmp_path / "pixels.npz")
        for i, label in enumerate(labels):
            assert np.array_equal(found[str(i)], pixels(app.figures[label])), label
        return text

    return same


def test_bundled_vgg16_with_a_view_of_many_options(
    opened: Callable[..., Explorer], same: Callable[..., str], make_page: Any
) -> None:
    app = opened("vgg16", hookviz.sample_image(), ["features.0", "features.2", "features.28"])
    page = make_page(app.gallery)
    page.say("look", width=640, ratio=2, style="dark")
    page.say(
        "view",
        changes={"cmap": "magma", "order": "mean", "per_page": 9, "channels": "0-30,300"},
    )
    page.say("view", changes={"summary": "mean", "overlay": True, "hide_dead": True})
    page.say("page", key="features.28#1", page=1)
    page.say("statistics", key="features.2#1", on=True)
    page.say("filters", key="features.0#1", on=True)
    assert app.wait(60)
    text = same(app)
    assert "weights='bundled'" in text
    assert "hookviz.sample_image('chelsea.png')" in text
    assert "page=1" in text
    assert text.count("'style': 'dark'") == 1  # what all figures share is written once


def test_size_mean_and_deviation_of_ones_own(
    opened: Callable[..., Explorer], same: Callable[..., str], tmp_path: Path
) -> None:
    photo = tmp_path / "a photo's.png"
    Image.effect_noise((90, 60), 80).convert("RGB").save(photo)
    app = opened(hookviz.load_model("resnet18", None, name="my net"), photo, ["conv1", "fc"])
    app.image_input.own = {
        "size": "48 × 64", "mean": "0.5, 0.4, 0.3", "std": "0.2", "channels": "3", "found": "",
    }  # fmt: skip
    app.image_input.choice = "own"
    assert app.start_run()
    assert app.wait(60)
    text = same(app)
    assert "crop=(48, 64)" in text
    assert str(photo) in text
    assert "name='my net'" in text
    for choice in ("pad", "none"):
        app.image_input.choice = choice
        assert app.start_run()
        assert app.wait(60)
        ran: dict[str, Any] = {}
        exec(app.as_python(), ran)  # noqa: S102 - what the user would run
        assert torch.equal(ran["run"].input.tensor, app.run.input.tensor)


def test_a_module_of_ones_own_is_a_variable_that_the_first_lines_ask_for(
    opened: Callable[..., Explorer], same: Callable[..., str], make_page: Any
) -> None:
    app = opened(own_net(), hookviz.sample_image(), ["conv", "relu", "pair"])
    make_page(app.gallery).say("leaf", key="pair#1", leaf="b")
    app.tree.hidden_calls = ["relu#1"]
    assert [label for label in app.figures if "relu" in label] == ["relu call 2 of 2"]
    text = same(app, NET)
    line = text.splitlines()[1]
    assert line == "# Set my_model first: your nn.Module 'Twice', as the app was given it."
    with pytest.raises(NameError, match="my_model"):
        exec(text, {})  # noqa: S102 - what the user would run
    other = own_net()
    other.get_parameter("conv.weight").data.add_(1)
    with pytest.raises(ValueError, match="weights"):
        exec(text, {"my_model": other})  # noqa: S102


def test_a_checkpoint_is_named_by_its_path(
    opened: Callable[..., Explorer],
    same: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), tmp_path / "best.pth")
    monkeypatch.chdir(tmp_path)
    model = hookviz.load_model("resnet18", "best.pth", device="cpu", categories=list("abcd"))
    app = opened(model, hookviz.sample_image(), ["conv1", "fc"])
    path = repr(str(tmp_path / "best.pth"))
    assert f"weights={path}" in same(app)
    app.model = hookviz.load_model("best.pth", device="cpu")  # it says itself what it is
    text = app.as_python()
    ran: dict[str, Any] = {}
    exec(text, ran)  # noqa: S102 - what the user would run
    assert path in text
    assert "resnet18" not in text
    assert ran["model"].weights_hash == model.weights_hash
    torch.save(torchvision.models.resnet18(num_classes=4).state_dict(), tmp_path / "best.pth")
    with pytest.raises(ValueError, match="weights"):
        exec(text, {})  # noqa: S102


def test_a_model_of_timms_before_and_after_a_run(
    opened: Callable[..., Explorer], same: Callable[..., str]
) -> None:
    pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    model = hookviz.load_model("timm:resnet10t", None, device="cpu")
    app = opened(model, hookviz.sample_image(), ["layer1", "fc"], run=False)
    before: dict[str, Any] = {}
    exec(app.as_python(), before)  # noqa: S102 - what the user would run
    assert app.start_run()
    assert app.wait(60)
    assert "'timm:resnet10t', weights=None" in same(app)
    for label, figure in app.figures.items():
        assert np.array_equal(pixels(before["figures"][label]), pixels(figure))


def test_an_uploaded_photo_is_asked_for_and_checked(
    opened: Callable[..., Explorer],
    same: Callable[..., str],
    make_page: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.BytesIO()
    Image.effect_noise((90, 60), 80).save(file, "PNG")
    app = opened(own_net(), None, ["conv"])
    page = make_page(app.image_input)
    page.say("upload-start", id="1", name="it's\nmy.png", size=len(file.getvalue()))
    page.say("upload-piece", file.getvalue(), id="1", offset=0)
    assert app.start_run()
    assert app.wait(60)
    name = app.image.name
    (tmp_path / name).write_bytes(file.getvalue())
    text = same(app, NET)
    assert f"# Put the photo that was uploaded beside this notebook as {name!a};" in text
    assert f"# its sha256 is {app.image.sha256}." in text
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b" ")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="image"):
        exec(text, {"my_model": own_net()})  # noqa: S102 - what the user would run


def test_pixels_and_a_function_are_variables_too(opened: Callable[..., Explorer]) -> None:
    array = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)

    def halved(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)[::2, ::2].copy()).permute(2, 0, 1) / 255

    model = hookviz.load_model(own_net(), preprocess=halved)
    app = opened(model, read_image(array), ["conv"])
    text = app.as_python()
    asked = [line for line in text.splitlines() if line.startswith("# Set ")]
    assert [line.split()[2] for line in asked] == ["my_model", "my_image", "preprocess"]
    ran: dict[str, Any] = {"my_model": own_net(), "my_image": array, "preprocess": halved}
    exec(text, ran)  # noqa: S102 - what the user would run
    assert np.array_equal(pixels(ran["figures"]["conv"]), pixels(app.figures["conv"]))


def test_names_from_outside_stay_texts(opened: Callable[..., Explorer]) -> None:
    evil = "a'\"\\\u2028); raise SystemExit #\nraise SystemExit"
    net = own_net()
    type(net).__name__ = evil
    model = hookviz.load_model(net, name=evil, categories=[evil] * 6)
    image = read_image(hookviz.sample_image(), name=evil)
    app = opened(model, image, ["conv"])
    ran: dict[str, Any] = {"my_model": net}
    exec(app.as_python(), ran)  # noqa: S102 - it must do no more than draw
    assert np.array_equal(pixels(ran["figures"]["conv"]), pixels(app.figures["conv"]))


def test_a_pinned_place_is_asked_about(
    opened: Callable[..., Explorer], make_page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    app = opened(own_net(), hookviz.sample_image(), ["relu", "pair"])
    page, gallery = make_page(app), make_page(app.gallery)
    gallery.say("leaf", key="pair#1", leaf="b")
    for key in ("relu#2", "pair#1"):
        page.say("pin", key=key, channel=3, y=5, x=7)
        assert app.alert == {}
        capsys.readouterr()
        exec(app.as_python(), {"my_model": own_net()})  # noqa: S102 - what the user would run
        said = capsys.readouterr().out.splitlines()
        value = next(line for line in said if not line.startswith("Figure"))
        assert np.float32(float(value)) == np.float32(float(app.pin["value"])), key
        assert "ReceptiveField" in said[-1]


def test_without_an_image_there_is_nothing_to_copy(app: Explorer, page: Any) -> None:
    with pytest.raises(hookviz.HookvizError, match=r"nothing to copy as Python yet\. Choose an im"):
        app.as_python()
    page.say("as-python")
    assert page.types() == []
    assert "nothing to copy" in app.alert["message"]
    app.image, app.layers = hookviz.sample_image(), ["conv"]
    page.say("as-python")
    assert page.last("python")[0]["text"] == app.as_python()


def test_edits_of_what_if_are_written_out(
    opened: Callable[..., Explorer], same: Callable[..., str], tmp_path: Path
) -> None:
    photo, other = tmp_path / "photo.png", tmp_path / "other.png"
    for file in (photo, other):
        Image.effect_noise((90, 60), 80).convert("RGB").save(file)
    app = opened(own_net(), photo, ["conv", "relu"], run=False)
    app.edits = [
        hookviz.capture.scale("conv", 3.0, channels=[1, 2]),
        hookviz.run.patch_from(other, "conv", place=(4, 5)),
        hookviz.capture.zero("relu", call=2, channels=0),
    ]
    assert app.start_run()
    assert app.wait(60)
    text = same(app, NET)
    assert "edits=edits" in text
    page_of = app.what_if
    page_of.run_edited = False
    app.edits = ()
    page_of.restore([(hookviz.capture.zero("conv"), True)], run_edited=False)
    assert app.start_run()
    assert app.wait(60)
    assert "edited_run = " in same(app, NET)
