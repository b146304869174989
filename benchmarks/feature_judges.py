"""Whether a tool's answer is right: the judges of `benchmarks.features`.

In: a tool. Out: "yes", "no", "partly", "–" (not its job) or "not tried", and a note. Must not
know: how a tool is called, the table.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor, nn

from benchmarks.feature_cases import (
    LAYER,
    Later,
    flipped,
    fresh,
    left,
    original,
    pixels,
    same,
    truth,
    with_head,
    words,
    x,
    zeroed,
)  # fmt: skip
from benchmarks.feature_probes import IMAGE, Tool

Answer = tuple[str, str]


WEB = ("gradio", "streamlit")


def sources(tool: Tool) -> list[Path]:
    spec = importlib.util.find_spec(tool.package)
    assert spec is not None
    assert spec.origin is not None
    return sorted(Path(spec.origin).parent.rglob("*.py"))


def values(tool: Tool) -> Answer:
    good = same(tool.outputs(fresh(), x(), LAYER)[0], truth())
    if hasattr(tool, "plainly") and not same(tool.plainly(fresh(), x(), LAYER), truth()):
        return ("partly" if good else "no"), tool.notes["values"]
    if good:
        return "yes", ""
    assert same(tool.outputs(fresh(), x(), LAYER)[0], truth().relu())  # and not something else
    return "no", tool.notes.get("values", "they are what the ReLU made of it")


def calls(tool: Tool) -> Answer:
    wanted: list[Tensor] = []
    model, name = fresh("resnet18"), "layer1.0.relu"
    model.get_submodule(name).register_forward_hook(lambda m, i, o: wanted.append(o.clone()))
    with torch.no_grad():
        model(x())
    found = tool.outputs(fresh("resnet18"), x(), name)
    if len(found) == 2 and all(map(same, found, wanted)):
        return "yes", tool.notes.get("calls", "")
    which = [str(n + 1) for n in range(2) if any(same(f, wanted[n]) for f in found)]
    return "no", f"only call {' and '.join(which) or '–'} of 2"


def inputs(tool: Tool) -> Answer:
    note = tool.notes.get("inputs", "")
    plain = same(tool.inputs(fresh(), x(), "features.2"), truth().relu())
    good = plain and same(tool.inputs(fresh(), x(), "features.1"), truth())  # itself in place
    return ("no" if not plain else "partly" if note or not good else "yes"), note


def gradient(tool: Tool) -> Answer:
    model = fresh()
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    made: list[Tensor] = []
    model.features[0].register_forward_hook(lambda m, i, o: (o.retain_grad(), made.append(o))[0])
    model(x())[0, 0].backward()
    note = tool.notes.get("gradient", "")
    wanted = made[0].grad * 1000  # gradients are small, and `same` has an absolute tolerance
    good = same(tool.gradient(fresh(), x(), LAYER) * 1000, wanted)
    if hasattr(tool, "plain_gradient"):
        assert not same(tool.plain_gradient(fresh(), x(), LAYER) * 1000, wanted)
    return ("no" if not good else "partly" if note else "yes"), note


def replaced(tool: Tool) -> Answer:
    (wanted, before), found = zeroed(), tool.replaced(fresh(), x(), LAYER)
    if isinstance(found, tuple):
        good = torch.allclose(found[1], (before - wanted)[0, 0], rtol=1e-3, atol=1e-5)
        return ("partly" if good else "no"), tool.notes["replace"]
    return ("yes" if same(found, wanted) and not same(found, before) else "no"), ""


def stopped(tool: Tool) -> Answer:
    model, later = fresh(), Later(lambda y: y)
    model.features.add_module("31", later)
    getattr(tool, "stopped", tool.outputs)(model, x(), LAYER)
    return ("no" if later.calls else "yes"), ""


def clean(tool: Tool) -> Answer:
    def refuse(_: Tensor) -> Tensor:
        raise ZeroDivisionError("the model's own error")

    model = fresh()
    model.features[5] = Later(refuse)
    before = left(model)
    try:
        tool.outputs(model, x(), LAYER)
    except ZeroDivisionError:
        after = left(model)  # while whoever catches the error could still hold the tool
    else:
        return "no", "the error was swallowed"
    if after == before:
        return "yes", ""
    tool.tidy()
    hooks = left(model)[0] - before[0]
    return ("partly", tool.notes["clean"]) if not hooks else ("no", f"{hooks} hooks stay for good")


def picture(tool: Tool) -> Answer:
    drawn = tool.picture(fresh(change=lambda y: y), IMAGE[0])
    base = pixels(drawn)
    boxes = []
    for channel in (0, 63):
        other = pixels(tool.picture(fresh(change=flipped(channel)), IMAGE[0]))
        rows, columns = np.nonzero((other != base).any(-1))
        if not len(rows):
            return "partly", tool.notes.get("picture", f"channel {channel} is not in it")
        boxes.append((rows.min(), rows.max(), columns.min(), columns.max()))
    (a, b, c, d), (e, f, g, h) = boxes
    kind = "PIL image" if isinstance(drawn, Image.Image) else "matplotlib Figure"
    note = tool.notes.get("picture", "")
    own = b < e or f < a or d < g or h < c
    if own and not getattr(tool, "broken_texts", False):
        return "yes", f"a {kind}" + (f", {note}" if note else "")
    return "partly", note


def scale(tool: Tool) -> Answer:
    plain = tool.picture(fresh(change=lambda y: y), IMAGE[0])
    larger = tool.picture(fresh(change=lambda y: y * 1024), IMAGE[0])
    if words(plain) != words(larger):
        return "yes", ""
    same_pixels = np.array_equal(pixels(plain), pixels(larger))
    note = tool.notes.get("scale", "each map is scaled by itself; no bar")
    if hasattr(tool, "own_unit"):  # a bar in the unit of what is drawn instead of the maps
        unit, other = tool.own_unit(fresh(), IMAGE[0])
        return ("partly" if unit in words(other) else "no"), note
    return "no", note if same_pixels else "colours change, no words"


def nonfinite(tool: Tool) -> Answer:
    def spoil(y: Tensor) -> Tensor:
        y = y.clone()
        y[:, 0, 9, 9] = float("nan")
        return y

    model, pattern = fresh(change=spoil), r"nan|finite|\binf\b"
    try:
        if hasattr(tool, "nonfinite"):
            said = tool.nonfinite(model, x())
        else:
            drawn = tool.picture(model, IMAGE[0])
            said = " ".join(words(drawn))
            if isinstance(drawn, Image.Image):  # a mark would tell it from a map of zeros
                dead = fresh(change=lambda y: y * (torch.arange(64) > 0)[:, None, None])
                if np.array_equal(pixels(drawn), pixels(tool.picture(dead, IMAGE[0]))):
                    return "no", "a map with one NaN looks like a map of zeros"
                return "not tried", "its picture of a NaN differs; not looked at"
    except Exception as error:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        own = f"{os.sep}{tool.package}{os.sep}" in file  # its own words, not torch's
        if own and re.search(pattern, str(error), re.IGNORECASE):
            return "partly", tool.notes["nonfinite"]
        return "no", f"drawing raises {type(error).__name__}"
    if not re.search(pattern, said, re.IGNORECASE):
        return "no", ""
    note = tool.notes.get("nonfinite", "")
    return ("partly" if note else "yes"), note


def several(tool: Tool) -> Answer:
    try:
        count, how = tool.several(fresh(), x())
    except Exception:
        return "no", tool.notes.get("several", "a pattern raises")
    if not count or not how:
        return "no", tool.notes.get("several", "a pattern finds nothing")
    return ("partly", tool.notes["several"]) if "several" in tool.notes else ("yes", how)


def names(tool: Tool) -> Answer:
    try:
        tool.unknown(fresh(), x())
    except Exception as error:
        if LAYER in str(error):
            return "yes", ""
        return "partly", tool.notes.get("names", "raises, but names nothing")
    return "no", tool.notes.get("names", "")


def widget(tool: Tool) -> Answer:
    import ipywidgets

    used = [
        f for f in sources(tool) if re.search(r"\b(ipywidgets|anywidget)\b", f.read_text("utf8"))
    ]
    if hasattr(tool, "widget") and issubclass(tool.widget(), ipywidgets.DOMWidget):
        return "yes", tool.notes["widget"]
    if used:
        return "not tried", f"{used[0].name} names a widget library"
    needs = (
        ()
        if tool.package == "hookviz"
        else importlib.metadata.requires(tool.distribution or tool.package) or ()
    )
    web = {w for need in needs for w in WEB if w in need}
    demo = f"no widget; an extra brings {', '.join(sorted(web))} for a demo page" if web else ""
    if tool.package == "captum" and importlib.util.find_spec("captum.insights") is not None:
        return "not tried", "`captum.insights`, for attributions, is there"
    return "no", tool.notes.get("widget", demo)


def command(tool: Tool, folder: Path) -> Answer:
    try:
        points = importlib.metadata.distribution(tool.distribution or tool.package).entry_points
        scripts = [(p.name, p.value) for p in points if p.group == "console_scripts"]
    except importlib.metadata.PackageNotFoundError:  # hookviz from its checkout
        project = tomllib.loads(Path("pyproject.toml").read_text("utf8"))["project"]
        scripts = list(project["scripts"].items()) if project["name"] == tool.package else []
    if not scripts:
        return "no", ""
    if not hasattr(tool, "command"):
        return "no", tool.notes["command"]
    module, _, name = scripts[0][1].partition(":")
    code = f"import sys; from {module} import {name} as go; sys.argv[0] = 'x'; go()"
    arguments = [sys.executable, "-c", code, *tool.command(IMAGE[0], folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    made = list(folder.rglob("*.png"))
    assert done.returncode == 0, done.stderr[-300:]
    return ("yes" if made else "no"), f"`{scripts[0][0]}`"


def origin(tool: Tool, folder: Path) -> Answer:
    model = fresh()
    if hasattr(tool, "export"):
        pngs = tool.export(model, IMAGE[0], folder)
    else:
        drawn, pngs = tool.picture(model, IMAGE[0]), [folder / "saved.png"]
        drawn.save(pngs[0]) if isinstance(drawn, Image.Image) else drawn.savefig(pngs[0])
    keys = set(Image.open(pngs[-1]).info) - {"Software", "dpi"}
    if "layer" in keys and "drawn_again" in dir(tool):
        good = tool.drawn_again(pngs[-1], fresh(), IMAGE[0])
        return ("yes" if good else "partly"), tool.notes["origin"]
    note = tool.notes.get("origin", "")
    return ("partly" if note else "no"), note


def functional(tool: Tool) -> Answer:
    model = original("functional")
    with torch.no_grad():
        wanted = torch.sin(model.a(x()))
    good = any(same(found, wanted) for found in tool.everything(fresh("functional"), x()))
    return ("yes", tool.notes.get("functional", "")) if good else ("no", "")


def graph(tool: Tool, folder: Path) -> Answer:
    made = tool.graph(fresh("functional"), x(), folder)
    return ("yes" if "sin" in made.read_text("utf8") else "no"), tool.notes["graph"]


def rollout(tool: Tool) -> Answer:
    return ("yes" if tool.rollout(IMAGE[0]).shape == (14, 14) else "no"), ""


def across(tool: Tool) -> Answer:
    alone, other = tool.across(fresh(), IMAGE[:1]), tool.across(fresh(), IMAGE[:2])
    return ("no" if np.allclose(alone, other) else "yes"), tool.notes["across"]


def gradcam(tool: Tool) -> Answer:
    """Grad-CAM of the convolution, not of the in-place ReLU behind it."""
    found = tool.gradcam(fresh(), x(), LAYER)
    if _is_grad_cam(found, fresh(), LAYER, x()):
        return "yes", ""
    return "no", "it is that of the ReLU behind the layer, or mixed"


def frozen(tool: Tool) -> Answer:
    """The same of a network whose parameters learn nothing, of an image that needs no gradient."""
    try:
        found = tool.gradcam(fresh().requires_grad_(requires_grad=False), x(), "features.1")
    except Exception as error:
        return "no", f"raises {type(error).__name__}"
    return ("yes" if _is_grad_cam(found, fresh(), "features.1", x()) else "no"), ""


def tokens(tool: Tool) -> Answer:
    """That of a block of ViT-B/16, by patches, without a function of the user's own."""
    layer, image = "encoder.layers.encoder_layer_9", nn.functional.interpolate(x(), (224, 224))
    try:
        found = tool.gradcam(with_head(fresh("vit_b_16")), image, layer)
    except Exception as error:
        return "no", f"raises {type(error).__name__}"
    if _is_grad_cam(found, with_head(fresh("vit_b_16")), layer, image):
        return "yes", ""
    return "no", f"gives {' × '.join(map(str, torch.as_tensor(found).squeeze().shape))}"


def _is_grad_cam(found: object, model: nn.Module, layer: str, image: Tensor) -> bool:
    """Whether it is the Grad-CAM of a layer's output for class 0; up to its scale and size."""
    kept: list[Tensor] = []

    def hook(_module: nn.Module, _args: object, output: Tensor) -> Tensor:
        kept.append(output.clone())
        return kept[-1].clone()

    handle = model.get_submodule(layer).register_forward_hook(hook)
    (gradient,) = torch.autograd.grad(model(image)[0, 0], kept)
    handle.remove()
    output = kept[0]
    if output.dim() == 3:  # the class token, then the patches in rows
        output, gradient = (
            t[:, 1:].transpose(1, 2).reshape(1, -1, 14, 14) for t in (output, gradient)
        )
    expected = (gradient.mean((2, 3), keepdim=True) * output).sum(1, keepdim=True).relu().detach()
    given = torch.as_tensor(found).detach().squeeze().to(expected)
    if given.dim() != 2:
        return False
    if given.shape != expected.shape[2:]:  # some bring it to the size of the input by themselves
        expected = nn.functional.interpolate(expected, given.shape, mode="bilinear")
    ends = [(m - m.min()) / (m.max() - m.min()) for m in (given, expected[0, 0])]
    return bool((ends[0] - ends[1]).abs().mean() < 0.01)


def ranked(tool: Tool) -> Answer:
    """How far class 0 moves without each of eight channels, with all the others as they are."""
    layer, channels = "features.28", list(range(8))
    model, wanted = fresh(), []
    with torch.no_grad():
        before = model(x())[0, 0]
        for channel in channels:
            handle = model.get_submodule(layer).register_forward_hook(
                lambda _m, _a, y, c=channel: y.index_fill(1, torch.tensor([c]), 0.0)
            )
            wanted.append(model(x())[0, 0] - before)
            handle.remove()
    expected = torch.stack(wanted)
    found = tool.ranked(fresh(), x(), layer, channels).to(expected).detach()
    good = bool((found - expected).abs().max() <= 1e-2 * expected.abs().max())
    note = tool.notes.get("ranked", "")
    return ("no" if not good else "partly" if note else "yes"), note


def attention(tool: Tool) -> Answer:
    """(1, heads, T, T) of ViT-B/16's last layer; the output is bit by bit the bare model's."""
    torch.manual_seed(0)
    model = torchvision.models.vit_b_16().eval()
    image = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        bare = model(image)
    found, output = tool.attention(model, image, "encoder.layers.encoder_layer_11.self_attention")
    rows = bool(torch.allclose(found.sum(-1), torch.ones(()), atol=1e-5))
    good = tuple(found.shape) == (1, 12, 197, 197) and rows and torch.equal(output, bare)
    return ("yes", "") if good else ("no", tool.notes.get("attention", ""))


def looks_for(tool: Tool) -> Answer:
    """A picture whose channel answers more strongly than it does to noise."""
    before, after = tool.looks_for(fresh())
    return ("yes" if after > before else "no"), ""


def attribution(tool: Tool) -> Answer:
    return "yes", tool.attribution(fresh(), x())


def video(tool: Tool, folder: Path) -> Answer:
    made = tool.video(fresh(), IMAGE, folder)
    if not made.exists() or made.stat().st_size < 1000:
        return "no", f"{made.name} was not written"
    note = tool.notes.get("video", "")
    return ("partly", note) if note else ("yes", made.suffix[1:].upper())
