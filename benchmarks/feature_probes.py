"""The tools of `benchmarks.features`, each asked in the words of its own documentation.

In: a model, a layer, an input. Out: what the tool hands out. Must not know: what counts as right.

A method is there where a tool has an API for the job; where one is missing, the table looks for
it by name in the tool's source. ``notes`` says what a tool's answer needs to be read fairly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

IMAGE: list[Path] = []  # the picture that is shown, once `benchmarks.features` has made it


class Tool:
    package = ""
    distribution = ""  # where it has another name
    notes: ClassVar[dict[str, str]] = {}
    not_its_job: ClassVar[dict[str, str]] = {}

    def tidy(self) -> None:
        """What the tool's documentation says to call when done."""


def prepared(image: Path) -> Tensor:
    """What image-taking tools make of a picture by default: ImageNet's mean and deviation."""
    pixels = torch.from_numpy(np.asarray(Image.open(image).convert("RGB"))).permute(2, 0, 1)
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    scaled = pixels.float().div(255).sub(mean[:, None, None]).div(deviation[:, None, None])
    return scaled[None]


class Hookviz(Tool):
    package = "hookviz"
    notes: ClassVar[dict[str, str]] = {
        "widget": "`hookviz.explore()`: layers, picture, maps",
        "origin": "`hookviz.reproduce(png)` drew the same pixels again",
        "across": "principal components are of one layer of one picture",
    }

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        from hookviz import Capture

        with Capture(model, layer) as capture, torch.no_grad():
            model(x)
        return [a.tensor for a in capture.activations]

    def inputs(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from hookviz import Capture

        with Capture(model, layer, outputs=False, inputs=True) as capture:
            model(x)
        return capture.input(layer)

    def gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from hookviz import Capture

        with Capture(model, layer, gradients=True) as capture:
            model(x)[0, 0].backward()
        return capture.gradient(layer)

    def replaced(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from hookviz.capture import edit, replace_output

        with edit(model, replace_output(layer, torch.zeros_like)):
            return model(x)

    def stopped(self, model: nn.Module, x: Tensor, layer: str) -> None:
        import hookviz

        with hookviz.Capture(model, layer, stop_early=True):
            model(x)

    def attribution(self, model: nn.Module, x: Tensor) -> str:
        import hookviz

        # ``x`` as an image; what is asked for is that an answer comes, here as for the others.
        found = hookviz.explain(model, x[0].sigmoid(), "features.28", target=0)
        assert found.activations[0].tensor.ndim == 4
        return "CAMs of layers, attributions of the input; Grad-CAM was run"

    def gradcam(self, model: nn.Module, x: Tensor, layer: str) -> Tensor:
        import hookviz

        image = x[0].sigmoid()
        found = hookviz.explain(model, image, layer, target=0, preprocess=lambda _image: x[0])
        return found.map()

    def ranked(self, model: nn.Module, x: Tensor, layer: str, channels: list[int]) -> Tensor:
        import hookviz

        found = hookviz.sweep(
            model, x[0].sigmoid(), layer, target=0, channels=channels, preprocess=lambda _: x[0]
        )
        return found.effects

    def attention(self, model: nn.Module, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        import hookviz

        capture = hookviz.Capture(model, [layer], outputs=False, attention=True)
        with torch.no_grad(), capture:
            output = model(x)
        return capture.activations[0].tensor, output

    def looks_for(self, model: nn.Module) -> tuple[float, float]:
        import hookviz

        found = hookviz.feature_visualization(model, "features.5", 3, size=64, steps=16)
        return found.history[0], found.history[-1]

    def rollout(self, image: Path) -> Any:
        import hookviz

        model = hookviz.load_model("vit_b_16", None, device="cpu")
        layers = [f"encoder.layers.encoder_layer_{n}" for n in range(12)]
        return hookviz.explain(model, image, layers, method="rollout").map(layers[-1]).numpy()

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        from hookviz import Capture

        with Capture(model, "*", inputs=True) as capture:
            model(x)
        return [a.tensor for a in capture.activations]

    def picture(self, model: nn.Module, image: Path) -> Any:
        import hookviz

        return hookviz.feature_maps(model, image, "features.0").figure("features.0")

    def export(self, model: nn.Module, image: Path, folder: Path) -> list[Path]:
        import hookviz

        run = hookviz.feature_maps(model, image, "features.0")
        return sorted(Path(run.export(folder).folder).glob("*.png"))

    def drawn_again(self, png: Path, model: nn.Module, image: Path) -> bool:
        import hookviz

        return bool(hookviz.reproduce(png, model=model, image=image).same_pixels)

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        import re

        from hookviz.capture import select_layers

        by_regex = select_layers(model, [re.compile(r"features\.2.*")])
        assert list(by_regex) == list(select_layers(model, ["features.2*"]))
        return len(by_regex), "glob and regex"

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        self.outputs(model, x, "featurs.0")

    def command(self, image: Path, folder: Path) -> list[str]:
        return ["maps", str(image), "--model", "vgg16", "--weights", "none", "-l", "features.0",
                "--out", str(folder)]  # fmt: skip

    def widget(self) -> Any:
        import hookviz.widget

        return hookviz.widget.LayerTree


class Torchlens(Tool):
    package = "torchlens"
    notes: ClassVar[dict[str, str]] = {
        "nonfinite": "the trace names the operations (`nonfinite_ops`); the picture marks nothing",
        "several": "regex over its operation labels (`^relu`), not module paths",
        "names": "a look-up raises, but names operations; an unknown `save=` passes",
        "picture": "`torchlens.viz.channel_grid(64)`",
        "command": "an inspector of saved traces (`.tlspec`)",
        "graph": "HTML; `draw()` needs Graphviz, which was not there",
        "ranked": "`torchlens.sweep` over replacement tensors that are made by hand",
        "attention": "it records ViT's fast path as one operation, without the probabilities",
    }

    def trace(self, model: nn.Module, x: Tensor, **options: Any) -> Any:
        import torchlens

        return torchlens.trace(model, x, **options)

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        log = self.trace(model, x)
        return [log[f"{layer}:{n}"].out for n in range(1, len(log.modules[layer].calls) + 1)]

    def inputs(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        return self.trace(model, x)[layer].input_activations[0]

    def gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        import torchlens

        options = torchlens.options.CaptureOptions(save_grads=True)
        log = self.trace(model, x.clone().requires_grad_(), capture=options)
        log.log_backward(log[log.output_layers[0]].out[0, 0])
        return log[layer].grad

    def replaced(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        import torchlens as tl

        log = self.trace(model, x, intervene=tl.when(tl.module(layer), tl.zero_ablate()))
        return log[log.output_layers[0]].out

    def stopped(self, model: nn.Module, x: Tensor, layer: str) -> None:
        import torchlens as tl

        log = self.trace(model, x, save=tl.in_module(layer), halt=tl.in_module(layer))
        assert log[layer].out is not None

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        return [op.out for op in self.trace(model, x).layer_list if op.has_saved_activation]

    def picture(self, model: nn.Module, image: Path) -> Any:
        import torchlens as tl

        with torch.no_grad():
            return tl.viz.channel_grid(64, max_size=1024)(model.features[0](prepared(image)))

    def nonfinite(self, model: nn.Module, x: Tensor) -> str:
        found = self.trace(model, x).nonfinite_ops
        return f"non-finite: {found}" if len(found) else ""

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        import torchlens as tl

        labels, paths = (self.trace(model, x, save=tl.regex(p)) for p in ("^relu", "^features"))
        assert not any(op.has_saved_activation for op in paths.layer_list)
        return sum(op.has_saved_activation for op in labels.layer_list), "partly"

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        _ = self.trace(model, x)["featurs.0"]

    def graph(self, model: nn.Module, x: Tensor, folder: Path) -> Path:
        import torchlens as tl

        return Path(tl.export.html(self.trace(model, x), folder / "graph.html"))

    def attribution(self, model: nn.Module, x: Tensor) -> str:
        from torchlens.attribution import saliency

        assert saliency(model, x, target=0) is not None
        return "saliency, integrated gradients, Grad-CAM … on inputs and layers; saliency was run"

    def gradcam(self, model: nn.Module, x: Tensor, layer: str) -> Tensor:
        from torchlens.attribution import grad_cam

        # Brought to the size of the input, which is that of the layer's maps here.
        return grad_cam(model, x, target=0, layer=layer, overlay=False).values  # type: ignore[no-any-return]

    def ranked(self, model: nn.Module, x: Tensor, layer: str, channels: list[int]) -> Tensor:
        import torchlens as tl

        log = self.trace(model, x)
        before, score = log[layer].out, log[log.output_layers[0]].out[0, 0]
        values = [before.index_fill(1, torch.tensor([c]), 0.0) for c in channels]
        bundle = tl.sweep(model, x, at=tl.module(layer), values=values)
        logs = [bundle[name] for name in bundle.names]
        return torch.stack([one[one.output_layers[0]].out[0, 0] - score for one in logs])

    def attention(self, model: nn.Module, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log = self.trace(model, x)
        there = [op.out for op in log.layer_list if op.has_saved_activation]
        square = [t for t in there if isinstance(t, Tensor) and t.shape[-2:] == (197, 197)]
        return (square or [torch.zeros(())])[-1], log[log.output_layers[0]].out


class Nnsight(Tool):
    package = "nnsight"
    notes: ClassVar[dict[str, str]] = {
        "values": "true with `.output.clone()` in the block; `.output.save()` and `tracer.cache()` "
        "hold what the ReLU made of it",
        "gradient": "true where the block puts a clone in the layer's place",
        "clean": "no hooks; each module keeps nnsight's own `forward` from the wrapping on",
        "several": "a predicate: `modules(include_fn=…)`",
        "functional": "by `.source`, one named operation of a `forward` at a time",
        "remote": "`trace(remote=True)` runs on NDIF; it needs a key and a network",
        "command": "`login`, `whoami` for NDIF; a server for vLLM",
    }

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        import nnsight

        wrapped, times = nnsight.NNsight(model), 2 if layer.startswith("layer1") else 1
        module = wrapped.get(layer)
        with wrapped.trace(x) as tracer:
            found = nnsight.save([])
            for _ in tracer.iter[:times]:
                found.append(module.output.clone())
        return list(found)

    def plainly(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x):
            found = module.output.save()
        return found  # noqa: RET504 - nnsight runs the block elsewhere

    def inputs(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x):
            found = module.input.clone().save()
        return found  # noqa: RET504

    def gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x):
            made = module.output
            module.output = made.clone()
            with wrapped.output[0, 0].backward():
                found = made.grad.save()
        return found

    def plain_gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x):
            made = module.output
            with wrapped.output[0, 0].backward():
                found = made.grad.save()
        return found

    def replaced(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x):
            module.output = torch.zeros_like(module.output)
            found = wrapped.output.save()
        return found  # noqa: RET504

    def stopped(self, model: nn.Module, x: Tensor, layer: str) -> None:
        from nnsight import NNsight

        wrapped = NNsight(model)
        module = wrapped.get(layer)
        with wrapped.trace(x) as tracer:
            _ = module.output.save()
            tracer.stop()

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        from nnsight import NNsight

        wrapped = NNsight(model)
        with wrapped.trace(x):
            found = wrapped.source.torch_sin_0.output.save()
        return [found]

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        from nnsight import NNsight

        return len(NNsight(model).modules(include_fn=lambda e: "features.2" in e.path)), "partly"

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        self.outputs(model, x, "featurs.0")
