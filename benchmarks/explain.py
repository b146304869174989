"""Explaining: what class activation maps cost, beside the peers', as ratios of one run.

``python -m benchmarks.explain [TABLE …]`` prints one table each, or all of them.
Times are medians of rounds in which every way runs once, in seconds of the CPU of one thread, so
that other work on the machine disturbs them little; 1.00 is a forward with a full backward of
ResNet-18 (224 pixels, untrained) with a cloning hook at the layer.

- gradients: Grad-CAM and its kin of one layer and of four;
- perturbing: Score-CAM and Ablation-CAM of layer4's 512 channels, and as many whole forwards;
- ablation: Ablation-CAM of a layer's channels beside whole forwards, 16 at a time, which are 1.00;
- attributions: of the input, beside captum called by hand on the bare module, without
  the forward that settles the target and the two that completeness is measured by.
- visualization: a step for channel 7 of the bundled VGG16's features.28 beside a bare loop (pixels,
  no moves), which is 1.00 here, step by step in turn, at 128 and 224 pixels.

Peers (extra ``bench``) that are not installed are left out.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torchvision.models as tv
from torch import Tensor, nn

import hookviz
from hookviz.images import network_input

FOUR = ["layer1", "layer2", "layer3", "layer4"]
CLASS = 281
Way = Callable[[], object]


class Bench:
    """One model with one image, and all ways to explain it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.module = tv.resnet18().eval()
        self.model = hookviz.load_model(self.module, preprocess=hookviz.Preprocessing.for_size(224))
        self.image = hookviz.sample_image()
        self.x = network_input(self.image, self.model.preprocess).tensor

    def full_backward(self) -> None:
        """A forward with a cloning hook at the layer and the gradient of every parameter."""
        kept: list[Tensor] = []

        def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            kept.append(output.clone())
            return kept[-1].clone()

        handle = self.module.layer4.register_forward_hook(hook)
        self.module(self.x)[0, CLASS].backward()
        handle.remove()
        self.module.zero_grad()

    def own(self, method: str, layers: Any = "layer4", **options: Any) -> Way:
        return lambda: hookviz.explain(
            self.model, self.image, layers, target=CLASS, method=method, **options
        )

    def grad_cam(self, kind: str, **options: Any) -> Way | None:
        try:
            import pytorch_grad_cam
            from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
        except ImportError:
            return None
        make = getattr(pytorch_grad_cam, kind)

        def work() -> object:
            with make(self.module, [self.module.layer4]) as cam:
                for name, option in options.items():
                    setattr(cam, name, option)
                return cam(self.x, [ClassifierOutputTarget(CLASS)])

        return work

    def torchcam(self, kind: str, **options: Any) -> Way | None:
        try:
            from torchcam import methods
        except ImportError:
            return None

        def work() -> object:
            with getattr(methods, kind)(self.module, "layer4", **options) as cam:
                return cam(CLASS, self.module(self.x.clone().requires_grad_()))

        return work

    def captum(self) -> Way | None:
        try:
            from captum.attr import LayerGradCam
        except ImportError:
            return None
        return lambda: LayerGradCam(self.module, self.module.layer4).attribute(self.x, CLASS)


def measured(ways: dict[str, Way | None], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Seconds of each way, round by round, after some that are thrown away."""
    there = {name: way for name, way in ways.items() if way is not None}
    found: dict[str, list[float]] = {name: [] for name in there}
    for number in range(rounds + warm):
        for name, way in there.items():
            begin = time.process_time()
            way()
            if number >= warm:
                found[name].append(time.process_time() - begin)
    return found


def table(found: dict[str, list[float]], base: str) -> None:
    print(f"load {os.getloadavg()[0]:.1f}")
    for name, seconds in found.items():
        ratios = [a / b for a, b in zip(seconds, found[base], strict=True)]
        print(f"{name:44s} {statistics.median(ratios):8.3f}  {statistics.median(seconds):8.3f} s")


BASE = "forward with full backward"


def gradients() -> None:
    bench = Bench()
    ways: dict[str, Way | None] = {
        BASE: bench.full_backward,
        "hookviz Grad-CAM, one layer": bench.own("gradcam"),
        "hookviz Grad-CAM, four layers": bench.own("gradcam", FOUR),
        "hookviz Grad-CAM++": bench.own("gradcam++"),
        "hookviz HiResCAM": bench.own("hirescam"),
        "hookviz LayerCAM": bench.own("layercam"),
        "hookviz XGrad-CAM": bench.own("xgradcam"),
        "hookviz Eigen-CAM": bench.own("eigencam"),
        "grad-cam Grad-CAM": bench.grad_cam("GradCAM"),
        "grad-cam Eigen-CAM": bench.grad_cam("EigenCAM"),
        "torchcam Grad-CAM": bench.torchcam("GradCAM"),
        "captum Grad-CAM": bench.captum(),
    }
    table(measured(ways, 15), BASE)


def perturbing() -> None:
    bench = Bench()

    def own_loop() -> object:
        """512 images, 16 at a time, and nothing else."""
        with torch.no_grad():
            return [bench.module(bench.x.expand(16, -1, -1, -1) * 1.0) for _ in range(32)]

    ways: dict[str, Way | None] = {
        BASE: bench.full_backward,
        "own loop over 512 images": own_loop,
        "hookviz Score-CAM, 512 channels": bench.own("scorecam"),
        "grad-cam Score-CAM, 512 channels": bench.grad_cam("ScoreCAM"),
        "torchcam Score-CAM, 512 channels": bench.torchcam("ScoreCAM", batch_size=16),
        "hookviz Ablation-CAM, 512 channels": bench.own("ablationcam"),
        "grad-cam Ablation-CAM, 512 channels": bench.grad_cam("AblationCAM"),
    }
    table(measured(ways, 2, warm=0), BASE)


def ablation() -> None:
    torch.set_num_threads(1)
    for name, layer, count in (
        ("resnet18", "layer4", 512),
        ("resnet18", "layer3", 256),
        ("resnet18", "layer2.0.conv1", 128),
        ("vgg16", "features.28", 512),
    ):
        torch.manual_seed(0)
        module = getattr(tv, name)().eval()
        model = hookviz.load_model(module, preprocess=hookviz.Preprocessing.for_size(224))
        image = hookviz.sample_image()
        x = network_input(image, model.preprocess).tensor

        def whole(module: nn.Module = module, x: Tensor = x) -> object:
            """A batch of them; all take as many times as long."""
            with torch.no_grad():
                return module(x.expand(16, -1, -1, -1) * 1.0)

        def own(model: Any = model, image: Any = image, layer: str = layer) -> object:
            return hookviz.explain(model, image, layer, target=CLASS, method="ablationcam")

        found = measured({"whole": whole, "own": own}, 3)
        base = f"{count} whole forwards of {name}"
        whole_ones = [seconds * count / 16 for seconds in found["whole"]]
        table({base: whole_ones, f"hookviz Ablation-CAM of {layer}": found["own"]}, base)


def attributions() -> None:
    bench = Bench()

    def captum(name: str, **options: Any) -> Way:
        import captum.attr

        attribute = getattr(captum.attr, name)(bench.module).attribute
        return lambda: attribute(bench.x.clone().requires_grad_(), target=CLASS, **options)

    windows = {"sliding_window_shapes": (3, 56, 56), "strides": (3, 56, 56)}
    steps = {"n_steps": 16, "internal_batch_size": 8}
    ways: dict[str, Way | None] = {
        BASE: bench.full_backward,
        "hookviz saliency": bench.own("saliency", None),
        "captum Saliency": captum("Saliency"),
        "hookviz guided backpropagation": bench.own("guided_backprop", None),
        "captum GuidedBackprop": captum("GuidedBackprop"),
        "hookviz integrated gradients, 16 steps": bench.own(
            "integrated_gradients", None, steps=16, batch=8
        ),
        "captum IntegratedGradients, 16 steps": captum("IntegratedGradients", **steps),
        "hookviz occlusion, 16 windows": bench.own(
            "occlusion", None, window=56, stride=56, batch=16
        ),
        "captum Occlusion, 16 windows": captum("Occlusion", perturbations_per_eval=16, **windows),
    }
    table(measured(ways, 3), BASE)


def visualization() -> None:
    torch.set_num_threads(1)
    for size in (128, 224):
        _steps(size)


def _steps(size: int) -> None:
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    net = model.module.features[:29].eval()
    mean = torch.tensor(model.preprocess.mean).view(3, 1, 1)
    pixels = torch.rand(1, 3, size, size, requires_grad=True)
    optimiser = torch.optim.Adam([pixels], lr=0.05)
    bare: list[float] = []
    own: list[float] = []
    last = time.thread_time()

    def step(*_: object) -> None:
        """One step of ours has ended; one of the bare loop is made and timed."""
        nonlocal last
        begin = time.thread_time()
        own.append(begin - last)
        with torch.enable_grad():
            value = net((pixels - mean) * 255)[:, 7].mean()
            (pixels.grad,) = torch.autograd.grad(-value, [pixels])
        optimiser.step()
        last = time.thread_time()
        bare.append(last - begin)

    hookviz.feature_visualization(model, "features.28", 7, size=size, steps=20, progress=step)
    base = f"bare loop, {size} px"
    table({base: bare[1:], f"hookviz, {size} px": own[1:]}, base)


def main() -> None:
    warnings.simplefilter("ignore")
    tables = {
        "gradients": gradients,
        "perturbing": perturbing,
        "ablation": ablation,
        "attributions": attributions,
        "visualization": visualization,
    }
    for name in sys.argv[1:] or tables:
        print(f"\n{name}")
        tables[name]()


if __name__ == "__main__":
    main()
