"""More tools of `benchmarks.features`: captum, torchcam, grad-cam, torchextractor.

In: a model, a layer, an input. Out: what the tool hands out. Must not know: what counts as right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.feature_probes import Tool, prepared


class Captum(Tool):
    package = "captum"
    notes: ClassVar[dict[str, str]] = {
        "picture": "`visualize_image_attr`, for attributions, sums all channels to one map",
        "scale": "a bar of −1 to 1 after normalising",
        "replace": "`LayerFeatureAblation` replaces and hands out the output's change alone",
        "names": "takes modules, not names",
        "widget": "`captum.insights`, a widget for attributions, is not in the installed package",
    }
    not_its_job: ClassVar[dict[str, str]] = {"names": notes["names"]}

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        from captum.attr import LayerActivation

        found = LayerActivation(model, model.get_submodule(layer)).attribute(x)
        return list(found) if isinstance(found, tuple) else [found]

    def inputs(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from captum.attr import LayerActivation

        activation = LayerActivation(model, model.get_submodule(layer))
        found = activation.attribute(x, attribute_to_layer_input=True)
        return found[0] if isinstance(found, tuple) else found

    def gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from captum.attr import LayerGradientXActivation

        module = model.get_submodule(layer)
        return LayerGradientXActivation(model, module, multiply_by_inputs=False).attribute(
            x, target=0
        )

    def replaced(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from captum.attr import LayerFeatureAblation

        ablation = LayerFeatureAblation(model, model.get_submodule(layer))
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.long)
        change = ablation.attribute(x, target=0, layer_mask=mask)  # output 0, before − after
        return "change", change.flatten()[0]

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        return [
            tensor
            for name, _ in model.named_children()
            for tensor in (*self.outputs(model, x, name), self.inputs(model, x, name))
        ]

    def picture(self, model: nn.Module, image: Path) -> Any:
        from captum.attr import visualization

        maps = self.outputs(model, prepared(image), "features.0")[0][0].permute(1, 2, 0)
        figure, _ = visualization.visualize_image_attr(
            maps.numpy(), method="heat_map", sign="all", show_colorbar=True, use_pyplot=False
        )
        return figure

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        from captum.attr import LayerActivation

        return len(LayerActivation(model, "features.*").attribute(x)), ""

    def attribution(self, model: nn.Module, x: Tensor) -> str:
        from captum.attr import LayerIntegratedGradients

        method = LayerIntegratedGradients(model, model.get_submodule("features.30"))
        assert method.attribute(x, target=0, n_steps=2) is not None
        return "its job; layer integrated gradients were run"

    def gradcam(self, model: nn.Module, x: Tensor, layer: str) -> Tensor:
        from captum.attr import LayerGradCam

        found = LayerGradCam(model, model.get_submodule(layer))
        return found.attribute(x, target=0, relu_attributions=True)  # type: ignore[no-any-return]

    def ranked(self, model: nn.Module, x: Tensor, layer: str, channels: list[int]) -> Tensor:
        from captum.attr import LayerFeatureAblation

        count = model.get_submodule(layer).out_channels
        mask = torch.full((1, count, 1, 1), len(channels))  # one more group for all the others
        mask[0, channels, 0, 0] = torch.arange(len(channels))
        ablation = LayerFeatureAblation(model, model.get_submodule(layer))
        found = ablation.attribute(x, target=0, layer_mask=mask)  # before − after, at every place
        return -found[0, channels, 0, 0]


class Torchcam(Tool):
    package = "torchcam"
    notes: ClassVar[dict[str, str]] = {
        "origin": "`explain(…).save()` writes a manifest beside them; the PNGs carry nothing",
        "nonfinite": "`explain` refuses them with a sentence",
        "stop": "a CAM needs the output",
    }
    not_its_job: ClassVar[dict[str, str]] = {
        "values": "its `hook_a`, from which it makes a CAM, was overwritten by the ReLU",
        "calls": "it keeps one map a layer, for a CAM",
        "gradient": "its `hook_g`, from which it makes a CAM, was that of the ReLU's output",
        "stop": notes["stop"],
        "picture": "`overlay_mask` draws a CAM, not the maps",
        "scale": "`overlay_mask` draws a CAM, not the maps",
    }

    def kept(self, model: nn.Module, x: Tensor, layer: str) -> tuple[list[Any], Any]:
        from torchcam.methods import GradCAM

        with GradCAM(model, layer) as cam:
            scores = model(x)
            kept = list(cam.hook_a)
            cam(0, scores)
            return kept, cam.hook_g[0]

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        return self.kept(model, x, layer)[0]

    def gradient(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        return self.kept(model, x, layer)[1]

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        from torchcam.methods import GradCAM

        with GradCAM(model, [name for name, _ in model.named_children()]) as cam:
            model(x)
            return list(cam.hook_a)

    def picture(self, model: nn.Module, image: Path) -> Any:
        from torchcam.methods import GradCAM
        from torchcam.utils import overlay_mask

        with GradCAM(model, "features.0") as cam:
            found = cam(0, model(prepared(image)))[0]
        return overlay_mask(Image.open(image), Image.fromarray(found[0].numpy()))

    def export(self, model: nn.Module, image: Path, folder: Path) -> list[Path]:
        from torchcam.explain import explain

        found = explain(model, prepared(image), target_layer="features.28")
        written = found.save(folder / "cam", Image.open(image))
        assert (written / "manifest.json").exists()
        return sorted(written.glob("*.png"))

    def nonfinite(self, model: nn.Module, x: Tensor) -> str:
        from torchcam.explain import explain

        explain(model, x, target_layer="features.0")
        return ""

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        from torchcam.methods import GradCAM

        return len(GradCAM(model, "features.2*").target_names), ""

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        self.outputs(model, x, "featurs.0")

    def gradcam(self, model: nn.Module, x: Tensor, layer: str) -> Tensor:
        from torchcam.methods import GradCAM

        with GradCAM(model, layer) as cam:
            return cam(0, model(x))[0]  # type: ignore[no-any-return]

    def attribution(self, model: nn.Module, x: Tensor) -> str:
        from torchcam.methods import GradCAM

        with GradCAM(model, "features.28") as cam:
            assert cam(0, model(x))[0].ndim == 3
        return "CAMs are its job; Grad-CAM was run"


class GradCam(Tool):
    package = "pytorch_grad_cam"
    distribution = "grad-cam"
    notes: ClassVar[dict[str, str]] = {
        "several": "a predicate over modules: `find_layer_predicate_recursive`",
        "stop": "a CAM needs the output",
        "names": "takes modules, not names",
    }
    not_its_job: ClassVar[dict[str, str]] = {
        "values": "what it keeps for a CAM was overwritten by the ReLU",
        "calls": "it keeps one map a layer, for a CAM",
        "gradient": "what it keeps for a CAM is no public result",
        "stop": notes["stop"],
        "names": notes["names"],
        "picture": "`show_cam_on_image` draws a CAM, not the maps",
        "scale": "`show_cam_on_image` draws a CAM, not the maps",
    }

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        from pytorch_grad_cam import GradCAM

        with GradCAM(model, [model.get_submodule(layer)]) as cam:
            cam.activations_and_grads(x)
            return list(cam.activations_and_grads.activations)

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        return [self.outputs(model, x, name)[0] for name, _ in model.named_children()]

    def gradcam(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        with GradCAM(model, [model.get_submodule(layer)]) as cam:
            return cam(x, [ClassifierOutputTarget(0)])

    def picture(self, model: nn.Module, image: Path) -> Any:
        from pytorch_grad_cam.utils.image import show_cam_on_image

        photo = np.asarray(Image.open(image).convert("RGB"), np.float32) / 255
        found = self.gradcam(model, prepared(image), "features.0")[0]
        return Image.fromarray(show_cam_on_image(photo, found, use_rgb=True))

    def nonfinite(self, model: nn.Module, x: Tensor) -> str:
        assert not np.isfinite(self.gradcam(model, x, "features.0")).any()  # and not a word
        return ""

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        from pytorch_grad_cam.utils.find_layers import find_layer_predicate_recursive

        found = find_layer_predicate_recursive(model, lambda m: isinstance(m, nn.Conv2d))
        return len(list(found)), "partly"

    def attribution(self, model: nn.Module, x: Tensor) -> str:
        assert self.gradcam(model, x, "features.28").ndim == 3
        return "CAMs are its job; Grad-CAM was run"


class Torchextractor(Tool):
    package = "torchextractor"
    notes: ClassVar[dict[str, str]] = {
        "clean": "its hook goes when the extractor is deleted",
        "inputs": "by a `capture_fn` of one's own; that of an in-place layer is overwritten",
        "several": "a predicate: `module_filter_fn`",
        "names": "no error and no maps",
    }

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        import torchextractor

        self.last = torchextractor.Extractor(model, [layer])
        found = self.last(x)[1]
        return [found[layer]]

    def tidy(self) -> None:
        del self.last

    def inputs(self, model: nn.Module, x: Tensor, layer: str) -> Any:
        import torchextractor

        def keep(module: Any, args: Any, output: Any, name: str, kept: dict[str, Any]) -> None:
            kept[name] = args[0].clone()

        extractor = torchextractor.Extractor(
            model, module_filter_fn=lambda _, name: name == layer, capture_fn=keep
        )
        return extractor(x)[1][layer]

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        import torchextractor

        extractor = torchextractor.Extractor(model, module_filter_fn=lambda _, name: bool(name))
        return list(extractor(x)[1].values())

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        import torchextractor

        extractor = torchextractor.Extractor(
            model, module_filter_fn=lambda _, name: name.startswith("features.2")
        )
        return len(extractor(x)[1]), "partly"

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        import torchextractor

        torchextractor.Extractor(model, ["featurs.0"])(x)
