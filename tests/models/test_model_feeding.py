"""How models are fed: every kind of forward, and what is refused."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import torchvision.models as tv
from torch import Tensor, nn

from hookviz.errors import ModelError
from hookviz.images import network_input, sample_image
from hookviz.models import LoadedModel, expected_input, feed, load_model, predictions
from hookviz.models._torchvision import TorchvisionArchitecture


def image(side: int = 64) -> Tensor:
    return torch.linspace(-1, 1, 3 * side * side).reshape(1, 3, side, side)


def run(model: LoadedModel, tensor: Tensor) -> Any:
    args, kwargs = feed(model, tensor)
    with torch.no_grad():
        return model.module(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "side", "task", "convention"),
    [
        ("resnet18", 64, "classification", "batch"),
        ("lraspp_mobilenet_v3_large", 64, "segmentation", "batch"),
        ("ssdlite320_mobilenet_v3_large", 64, "detection", "list of images"),
        ("mc3_18", 32, "video", "video"),
        ("raft_small", 128, "optical_flow", "two frames"),
    ],
)
def test_every_task_runs_untrained(name: str, side: int, task: str, convention: str) -> None:
    model = load_model(name, weights=None, device="cpu")
    assert model.task == task
    assert expected_input(model).convention == convention
    output = run(model, image(side))
    answer = predictions(model, output)
    assert answer.items or answer.summary
    assert "UNTRAINED" in answer.note


@pytest.mark.parametrize(
    "name", ["resnet18", "ssdlite320_mobilenet_v3_large", "mc3_18", "raft_small"]
)
def test_a_module_passed_in_is_fed_as_its_class_wants_it(name: str) -> None:
    named = load_model(name, weights=None, device="cpu")
    assert load_model(named.module).task == named.task
    assert expected_input(load_model(named.module)).convention == expected_input(named).convention


def test_video_repeats_the_image_as_equal_frames() -> None:
    model = load_model(nn.Conv3d(3, 2, 3), device="cpu")
    (clip,), _ = feed(model, image(8))
    assert clip.shape == (1, 3, 16, 8, 8)
    assert all(torch.equal(clip[:, :, frame], image(8)) for frame in range(16))
    assert "repeated as 16 equal frames" in expected_input(model).sentence


def test_optical_flow_gets_two_frames_padded_to_eights() -> None:
    model = load_model("raft_small", weights=None, device="cpu")
    (one, two), _ = feed(model, torch.rand(1, 3, 130, 141))
    assert one.shape == (1, 3, 136, 144)
    assert torch.equal(one, two)
    assert one.data_ptr() != two.data_ptr()


def test_optical_flow_of_a_giant_image_is_refused_before_it_eats_the_memory() -> None:
    model = load_model("raft_small", weights=None, device="cpu")
    with pytest.raises(ModelError, match="GiB for the correlations of a 4000×3000 image"):
        feed(model, torch.zeros(1).expand(1, 3, 3000, 4000))


@pytest.mark.parametrize(
    ("name", "side", "parts"),
    [
        ("vit_b_32", 256, ["takes images of 224×224 pixels only, not 256×256", "Choose a prepro"]),
        ("inception_v3", 64, ["at least 75×75 pixels, not 64×64"]),
        ("maxvit_t", 128, ["224×224 pixels only"]),
        ("mvit_v2_s", 128, ["224×224 pixels only"]),
    ],
)
def test_sizes_that_a_model_cannot_take_are_refused(name: str, side: int, parts: list[str]) -> None:
    with torch.device("meta"):
        module = TorchvisionArchitecture(name).build()
    model = LoadedModel(module, name, "none", trained=False, builder=name, task="classification")
    with pytest.raises(ModelError) as caught:
        feed(model, image(side))
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4),
        torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
        torch.zeros(0, 3, 4, 4),
        torch.zeros(1, 3, 0, 4),
        torch.zeros(1, 1, 3, 4, 4),
    ],
)
def test_what_is_no_batch_of_images_is_refused(tensor: Tensor) -> None:
    with pytest.raises(ModelError, match="floating-point images"):
        feed(load_model(nn.Conv2d(3, 2, 1)), tensor)


def test_a_single_image_becomes_a_batch_and_takes_the_models_dtype() -> None:
    model = load_model(nn.Conv2d(3, 2, 1).double())
    (batch,), _ = feed(model, image()[0])
    assert batch.shape == (1, 3, 64, 64)
    assert batch.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs(dtype: torch.dtype) -> None:
    model = load_model("squeezenet1_1", weights=None, device="cpu", dtype=dtype)
    assert model.dtype == dtype
    assert run(model, image()).dtype == dtype


def test_a_grey_model_gets_the_images_luminance() -> None:
    model = load_model(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
    (batch,), _ = feed(model, image())
    x = image()
    assert batch.shape == (1, 1, 64, 64)
    assert torch.allclose(batch[:, 0], 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2])


def test_depthwise_and_wide_first_layers_are_left_alone() -> None:
    for first in (nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(4, 2, 1)):
        (batch,), _ = feed(load_model(first), image())
        assert batch.shape[1] == 3


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrapped_modules_are_told_by_what_is_inside(wrap: Any) -> None:
    model = load_model(wrap(tv.video.r3d_18(weights=None)))
    assert model.task == "video"
    assert model.name == "VideoResNet"


# --- Hugging Face -------------------------------------------------------------------------------


class Output(dict[str, Any]):
    """Looks like ModelOutput: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class VisionModel(nn.Module):
    main_input_name = "pixel_values"

    def __init__(self, model_type: str = "vit", **config: Any) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(
            model_type=model_type, image_size=32, id2label={0: "cat", 1: "dog"}, **config
        )
        self.classifier = nn.Linear(3, 2)

    def forward(self, pixel_values: Tensor, return_dict: bool = True) -> Output:
        axes = [d for d in range(pixel_values.ndim) if pixel_values.shape[d] != 3 and d]
        return Output(logits=self.classifier(pixel_values.mean(dim=axes)))


class TextAndVision(VisionModel):
    main_input_name = "input_ids"

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Output:  # type: ignore[override]
        raise NotImplementedError


class TextModel(VisionModel):
    main_input_name = "input_ids"

    def forward(self, input_ids: Tensor) -> Output:  # type: ignore[override]
        raise NotImplementedError


def test_a_hugging_face_module_is_fed_by_keyword_and_gives_its_own_names() -> None:
    model = load_model(VisionModel())
    args, kwargs = feed(model, image(32))
    assert args == ()
    assert set(kwargs) == {"pixel_values"}
    assert model.categories == ("cat", "dog")
    assert {label for _, label, _ in predictions(model, run(model, image(32))).items} == {
        "cat",
        "dog",
    }
    assert (model.preprocess.crop, model.preprocess.fit) == ((32, 32), "squash")
    assert "assumed" in model.note


def test_a_hugging_face_video_module_gets_frames_first() -> None:
    _, kwargs = feed(load_model(VisionModel("videomae", num_frames=8)), image(32))
    assert kwargs["pixel_values"].shape == (1, 8, 3, 32, 32)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (TextAndVision(), "takes text beside the image"),
        (TextModel(), "takes 'input_ids', no image"),
    ],
)
def test_modules_that_need_text_are_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        feed(load_model(module), image(32))


def test_the_config_of_a_hugging_face_image_processor_is_understood() -> None:
    config = {
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_normalize": True,
        "size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32},
        "do_center_crop": True, "resample": 3,
    }  # fmt: skip
    model = load_model(VisionModel(), preprocess=config)
    steps = model.preprocess
    assert (steps.resize, steps.crop) == (40, (32, 32))
    assert (steps.mean, steps.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert steps.interpolation == "bicubic"
    assert "assumed" not in model.note


def test_a_hugging_face_image_processor_is_called_as_it_is() -> None:
    class ImageProcessingMixin:
        """What transformers' image processors have in common."""

        def __call__(self, images: Any, return_tensors: str) -> dict[str, Tensor]:
            assert return_tensors == "pt"
            return {"pixel_values": torch.full((1, 3, 32, 32), float(images.width))}

    processor = ImageProcessingMixin()
    model = load_model(VisionModel(), preprocess=processor)
    assert model.preprocess is processor
    seen = network_input(sample_image(), model.preprocess)
    assert seen.tensor.unique().tolist() == [451]
    assert feed(model, seen.tensor)[1]["pixel_values"].shape == (1, 3, 32, 32)


def test_a_config_becomes_steps_and_what_is_no_preprocessing_is_refused() -> None:
    config = {"input_size": (3, 32, 32), "crop_pct": 1.0}
    assert load_model(VisionModel(), preprocess=config).preprocess.crop == (32, 32)
    with pytest.raises(ModelError, match="is a SimpleNamespace; legal are a callable"):
        load_model(VisionModel(), preprocess=types.SimpleNamespace(image_mean=[0.5]))
