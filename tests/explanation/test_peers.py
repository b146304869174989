"""The same maps as pytorch-grad-cam, torchcam and captum, wherever those are right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hookviz

from .conftest import Own, own


def normalized(found: Any) -> Any:
    """As the peers give a map: cut at 0, from 0 to 1."""
    values = np.maximum(np.asarray(found, dtype=np.float64).squeeze(), 0)
    return (values - values.min()) / (values.max() - values.min())


def ours(reference: Own, photo: Any, method: str, layer: str = "", **options: Any) -> Any:
    found = hookviz.explain(
        reference.loaded, photo, layer or reference.layer, target=reference.target,
        method=method, **options,
    )  # fmt: skip
    return normalized(found.map(signed=True))


def reshape(name: str) -> Any:
    if name == "vit_b_16":
        return lambda x: x[:, 1:].transpose(1, 2).reshape(len(x), -1, 14, 14)
    return (lambda x: x.permute(0, 3, 1, 2)) if name == "swin_t" else None


@pytest.fixture
def put_back() -> Iterator[list[Any]]:
    """grad-cam fills the gradients of every parameter."""
    modules: list[Any] = []
    yield modules
    for module in modules:
        module.zero_grad()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "swin_t"])
@pytest.mark.parametrize(
    ("method", "kind", "within"),
    [
        ("gradcam", "GradCAM", 1e-5),
        ("hirescam", "HiResCAM", 1e-5),
        ("layercam", "LayerCAM", 1e-5),
        ("xgradcam", "XGradCAM", 2e-4),
    ],
)
def test_grad_cam_gives_the_same(
    photo: Any, put_back: list[Any], name: str, method: str, kind: str, within: float
) -> None:
    peer = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    reference = own(name, photo)
    if method == "xgradcam" and name != "resnet18":
        pytest.skip("adds a small number to sums that may be near 0 there")
    put_back.append(reference.module)
    layer = reference.module.get_submodule(reference.layer)
    with getattr(peer, kind)(reference.module, [layer], reshape_transform=reshape(name)) as cam:
        cam.uses_gradients = True
        cam(reference.input, [targets.ClassifierOutputTarget(reference.target)])
        values = cam.activations_and_grads
        raw = cam.get_cam_image(
            reference.input, layer, [targets.ClassifierOutputTarget(reference.target)],
            values.activations[0].numpy(), values.gradients[0].numpy(),
            eigen_smooth=False,
        )  # fmt: skip
    assert np.abs(normalized(raw) - ours(reference, photo, method)).max() <= within


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "kind", "within"),
    [("gradcam", "GradCAM", 1e-5), ("layercam", "LayerCAM", 1e-5), ("xgradcam", "XGradCAM", 2e-4)],
)
def test_torchcam_gives_the_same(photo: Any, method: str, kind: str, within: float) -> None:
    methods = pytest.importorskip("torchcam.methods")
    reference = own("resnet18", photo)
    with torch.enable_grad(), getattr(methods, kind)(reference.module, "layer4") as cam:
        scores = reference.module(reference.input.clone().requires_grad_())
        (found,) = cam(reference.target, scores)
    assert np.abs(normalized(found) - ours(reference, photo, method)).max() <= within


def test_captum_gives_the_same_before_and_after_an_in_place_relu(photo: Any) -> None:
    attr = pytest.importorskip("captum.attr")
    for name in ("resnet18", "vgg16-before-relu"):
        reference = own(name, photo)
        layer = reference.module.get_submodule(reference.layer)
        with torch.enable_grad():
            found: Tensor = attr.LayerGradCam(reference.module, layer).attribute(
                reference.input, reference.target
            )
        difference = normalized(found.detach()) - ours(reference, photo, "gradcam")
        assert np.abs(difference).max() <= 1e-5


@pytest.mark.filterwarnings("ignore")
def test_score_cam_is_that_of_grad_cam_where_nothing_is_enlarged(photo: Any) -> None:
    """The two place corners otherwise in enlarging; a layer as large as the input needs none."""
    peer = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(96, 5),
    ).eval()  # fmt: skip
    loaded = hookviz.load_model(module, preprocess=hookviz.Preprocessing.for_size(32))
    found = hookviz.explain(loaded, photo, "1", target=2, method="scorecam")
    with peer.ScoreCAM(module, [module[1]]) as cam:
        expected = cam(found.input.tensor, [targets.ClassifierOutputTarget(2)])
    assert np.abs(normalized(expected) - normalized(found.map(signed=True))).max() <= 1e-5


@pytest.mark.filterwarnings("ignore")
def test_ablation_cam_is_that_of_grad_cam_after_a_relu(photo: Any) -> None:
    peer = pytest.importorskip("pytorch_grad_cam")
    targets = pytest.importorskip("pytorch_grad_cam.utils.model_targets")
    torch.manual_seed(1)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(), torch.nn.Linear(96, 5),
    ).eval()  # fmt: skip
    loaded = hookviz.load_model(module, preprocess=hookviz.Preprocessing.for_size(32))
    found = hookviz.explain(loaded, photo, "1", target=None, method="ablationcam")
    index = int(module(found.input.tensor)[0].argmax())
    with peer.AblationCAM(module, [module[1]]) as cam:
        expected = cam(found.input.tensor, [targets.ClassifierOutputTarget(index)])
    assert np.abs(normalized(expected) - normalized(found.map(signed=True))).max() <= 1e-4
