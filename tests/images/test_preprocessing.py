from __future__ import annotations

import contextlib
import dataclasses
import re
import types

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from torchvision.models import get_model_weights, list_models
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from hookviz.errors import ImageError
from hookviz.images import Preprocessing, network_input, read_image, sample_image, sample_images


def every_preset():
    """Each different preset of torchvision's weights once, under the name of its first weights."""
    seen = {}
    for name in list_models():
        for weights in get_model_weights(name):
            preset = weights.transforms()
            key = type(preset).__name__ + repr(preset) + str(getattr(preset, "antialias", ""))
            seen.setdefault(key, (f"{name}-{weights.name}", preset))
    return list(seen.values())


PRESETS = every_preset()


def reference(preset, image):
    """What torchvision itself makes of one picture."""
    kind = type(preset).__name__
    if kind == "VideoClassification":
        return preset(F.pil_to_tensor(image)[None])[:, 0]
    if kind == "OpticalFlow":
        return preset(image, image)[0]
    return preset(image)


def test_every_weights_enum_is_covered():
    count = sum(len(get_model_weights(name)) for name in list_models())
    assert count > 100
    kinds = {type(preset).__name__ for _, preset in PRESETS}
    assert kinds >= {
        "ImageClassification",
        "SemanticSegmentation",
        "ObjectDetection",
        "VideoClassification",
        "OpticalFlow",
    }


@pytest.mark.parametrize("preset", [p for _, p in PRESETS], ids=[n for n, _ in PRESETS])
def test_numbers_are_those_of_the_preset_bit_for_bit(preset):
    photos = [sample_image(name) for name in sample_images()]
    photos.append(read_image(photos[0].image.resize((97, 130))))  # smaller than the crop, upright
    for photo in photos:
        given = network_input(photo, preset)
        wanted = reference(preset, photo.image)
        assert given.tensor.shape == (1, *wanted.shape)
        assert torch.equal(given.tensor[0], wanted), photo.size


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (1, 1), (7, 900), (225, 224), (223, 500)])
def test_crops_that_pad_are_torchvisions(size):
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    photo = read_image(values, layout="HWC")
    preset = T.Compose([T.Resize(20), T.CenterCrop((33, 48)), T.ToTensor()])
    assert torch.equal(network_input(photo, preset).tensor[0], preset(photo.image))


def test_a_chain_of_transforms():
    photo = sample_image()
    steps = [
        T.Resize(232, T.InterpolationMode.BICUBIC),
        T.CenterCrop(224),
        T.ToTensor(),
        T.Normalize([0.5] * 3, [0.25] * 3),
    ]
    chain = T.Compose(steps)
    assert torch.equal(network_input(photo, chain).tensor[0], chain(photo.image))
    modern = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(232, antialias=True),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    assert torch.equal(network_input(photo, modern).tensor[0], modern(photo.image))
    late = v2.Compose([v2.Resize(64), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    assert torch.equal(network_input(photo, late).tensor[0], late(photo.image))


def halved(image):
    return F.pil_to_tensor(image.resize((50, 40))).float() * 3 - 7


@pytest.mark.parametrize(
    "preset",
    [
        halved,
        T.Compose([T.Resize(60), T.CenterCrop(50), T.Grayscale(3), T.ToTensor()]),
        T.Compose([T.CenterCrop(20), T.ToTensor()]),
        T.Compose([T.Resize(20, max_size=21), T.ToTensor()]),
        v2.Compose([v2.Resize(64), v2.RandomHorizontalFlip(1.0), v2.ToImage()]),
    ],
)
def test_what_cannot_be_explained_is_called_and_where_it_lies_is_unknown(preset):
    photo = sample_image()
    given = network_input(photo, preset)
    assert torch.equal(given.tensor[0], preset(photo.image).to(torch.float32))
    assert (given.box, given.seen, given.framed) == (None, None, None)
    assert "preprocessed by" in given.description
    with pytest.raises(ImageError, match="cannot be changed"):
        dataclasses.replace(given.preprocessing, fit="squash", crop=(3, 3))
    with pytest.raises(ImageError, match="cannot be changed"):
        given.preprocessing.fitted("pad")


def test_values_without_an_explanation_are_shown_from_the_lowest_to_the_highest():
    levels = np.asarray(network_input(sample_image(), halved).picture())
    assert (levels.min(), levels.max()) == (0, 255)


@pytest.mark.parametrize(
    ("chain", "box"),
    [
        (T.Compose([T.ToTensor(), T.Resize(20, antialias=True)]), (0, 0, 451, 300)),
        (T.Compose([T.Resize(20), T.Resize(10), T.ToTensor()]), (0, 0, 451, 300)),
        (T.Compose([T.Compose([T.Resize(30), T.CenterCrop(30)]), T.ToTensor()]), (75, 0, 375, 300)),
    ],
)
def test_what_can_be_read_off_a_chain_says_where_the_input_lies(chain, box):
    photo = sample_image()
    given = network_input(photo, chain)
    assert torch.equal(given.tensor[0], chain(photo.image))
    assert given.box == pytest.approx(box, abs=8)
    levels = chain(photo.image).mul(255).round().clamp(0, 255)
    assert np.array_equal(np.asarray(given.picture()), levels.numpy().transpose(1, 2, 0))


@pytest.mark.parametrize(
    "pipeline",
    [
        v2.Compose([v2.ToImage(), v2.Resize(64)]),
        v2.Compose([v2.ToImage(), v2.Resize(64), v2.ToDtype(torch.float32)]),
        T.PILToTensor(),
        np.array,
        lambda image: np.array(image)[None],
        lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1).int(),
    ],
)
def test_values_up_to_255_are_never_divided_in_silence(pipeline):
    photo = sample_image()
    given = network_input(photo, pipeline)
    wanted = torch.as_tensor(pipeline(photo.image))
    wanted = wanted[0] if wanted.ndim == 4 else wanted
    wanted = wanted if wanted.shape[0] == 3 else wanted.permute(2, 0, 1)
    assert given.tensor.dtype == torch.float32
    assert torch.equal(given.tensor[0], wanted.to(torch.float32))
    assert given.tensor.max() > 200
    if not wanted.is_floating_point():
        assert "not scaled to 0..1" in given.description
        levels = wanted.permute(1, 2, 0).to(torch.uint8).numpy()
        assert np.array_equal(np.asarray(given.picture()), levels)


def test_a_function_may_give_one_channel_and_a_batch_of_one():
    given = network_input(
        sample_image(), T.Compose([T.Grayscale(), T.Resize((28, 28)), T.ToTensor()])
    )
    assert given.tensor.shape == (1, 1, 28, 28)
    assert given.picture().size == (28, 28)
    assert network_input(sample_image(), lambda image: halved(image)[None]).tensor.shape == (
        1,
        3,
        40,
        50,
    )


def test_a_function_in_float64_keeps_its_digits_for_a_model_in_float64():
    third = network_input(
        sample_image(),
        lambda _: torch.full((3, 4, 4), 1 / 3, dtype=torch.float64),
        dtype=torch.float64,
    )
    assert third.tensor[0, 0, 0, 0].item() == 1 / 3


def test_what_a_function_gives_is_copied():
    kept = torch.ones(3, 4, 4)
    network_input(sample_image(), lambda _: kept).tensor.zero_()
    assert kept.sum() == 48


class CallableWithSizes:
    """Has the attributes of a preset, and does something else when it is called."""

    crop_size = (200, 240)
    resize_size = 256
    mean = (0.1, 0.2, 0.3)
    std = 0.5

    def __call__(self, image):
        return T.functional.to_tensor(image.resize((9, 7)))


def test_attributes_are_not_guessed_from():
    given = network_input(sample_image(), CallableWithSizes())
    assert given.tensor.shape == (1, 3, 7, 9)
    assert given.box is None
    with pytest.raises(ImageError, match=r"is a SimpleNamespace; legal are a callable"):
        Preprocessing.from_transforms(types.SimpleNamespace(crop_size=3, mean=0, std=1))


def test_a_preset_whose_sizes_were_changed_is_called_as_it_is_now():
    preset = get_model_weights("vgg16").IMAGENET1K_V1.transforms()
    preset.crop_size, preset.resize_size = [96, 128], [130]
    given = network_input(sample_image(), preset)
    assert torch.equal(given.tensor[0], preset(sample_image().image))
    assert given.preprocessing.crop == (96, 128)


def test_a_known_preprocessing_can_be_fitted_otherwise():
    preset = get_model_weights("vgg16").IMAGENET1K_V1.transforms()
    how = Preprocessing.from_transforms(preset).fitted("pad")
    assert how == Preprocessing.for_size((224, 224), "pad")
    assert Preprocessing(mean=(0.5,), std=(0.5,)).fitted("squash", 28).crop == (28, 28)
    assert Preprocessing(256, (224, 224), "crop").fitted("none").resize == 256
    assert Preprocessing(crop=(20, 30), fit="squash").fitted("none").resize == 20


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        (lambda image: image, "<lambda> gave an Image.*ToTensor"),
        (T.Resize(3), "Resize gave an Image.*ToTensor"),
        (lambda image: torch.zeros(2, 3, 4, 4), r"\(2, 3, 4, 4\)"),
        (lambda image: torch.zeros(4, 4), r"\(4, 4\)"),
        (lambda image: torch.from_numpy(np.array(image)), r"\(300, 451, 3\).*permute\(2, 0, 1\)"),
        (lambda image: torch.zeros(3, 4, 4, dtype=torch.complex64), "complex64"),
        (lambda image: torch.zeros(3, 0, 4), r"\(3, 0, 4\)"),
        (lambda image: np.array(["a"]), "an array"),
        (lambda image: {"values": 3}, "mapping with the keys 'values'"),
        (lambda image: None, "gave a NoneType"),
        (lambda image: 1 / 0, "failed: division by zero"),
        (lambda: torch.zeros(3, 4, 4), "failed: .*takes 0 positional arguments"),
        ({"size": 3}, "mapping"),
        ({}, "mapping with the keys none"),
        (7, "int"),
        (T.ToTensor, "the class ToTensor"),
    ],
)
def test_what_is_no_preprocessing_is_refused(preset, words):
    with pytest.raises(ImageError) as caught:
        network_input(sample_image(), preset)
    assert re.search(words, str(caught.value))


# Steps of one's own.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "size=0 is not a size"),
        ({"size": "28"}, "size='28' is not a size"),
        ({"size": (28, 28, 1)}, "give .height, width."),
        ({"size": True}, "size=True is not a size"),
        ({"size": None}, "size=None is not a size"),
        ({"channels": 2}, "channels=2 is unknown; give 3 for color or 1 for grey"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values; an input of 3 channels needs 3"),
        ({"mean": "grey"}, "mean='grey' is not a list of numbers"),
        ({"mean": [None]}, "mean=.None. is not a list of numbers"),
        ({"channels": 1, "std": (1, 1, 1)}, "std has 3 values; an input of 1 channel needs 1"),
        ({"std": 0}, "no value may be zero"),
        ({"mean": float("inf")}, "finite"),
        ({"fit": "zoom"}, "fit='zoom' is unknown"),
    ],
)
def test_each_fault_of_a_size_is_one_sentence(options, words):
    with pytest.raises(ImageError, match=words):
        Preprocessing.for_size(**{"size": 28, **options})


@pytest.mark.parametrize("fit", ["crop", "pad", "squash", "border", "cover", "none"])
def test_grey_is_what_pillow_calls_grey(fit):
    photo = sample_image()
    how = Preprocessing.for_size(28, fit, channels=1, mean=0.1307, std=0.3081)
    given = network_input(photo, how)
    assert given.tensor.shape[:2] == (1, 1)
    assert "grey" in given.description
    steps = [T.Grayscale(), T.Resize((28, 28)), T.ToTensor(), T.Normalize((0.1307,), (0.3081,))]
    if fit == "squash":
        assert torch.equal(given.tensor[0], T.Compose(steps)(photo.image))
    shown = np.asarray(given.picture())
    assert (shown[..., 0] == shown[..., 1]).all()


# What torch is set to.


@contextlib.contextmanager
def setting(change, value, back):
    change(value)
    try:
        yield
    finally:
        change(back)


SETTINGS = {
    "meta": lambda: torch.device("meta"),
    "default device": lambda: setting(torch.set_default_device, "meta", None),
    "float64": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "preprocess",
    [
        None,
        Preprocessing.for_size(64),
        Preprocessing.for_size((40, 64), "pad"),
        get_model_weights("vgg16").IMAGENET1K_V1.transforms(),
        get_model_weights("r3d_18").KINETICS400_V1.transforms(),
        get_model_weights("raft_small").C_T_V2.transforms(),
        v2.Compose([v2.ToImage(), v2.Resize(64), v2.ToDtype(torch.float32, scale=True)]),
        {"input_size": (3, 64, 64), "crop_pct": 1.0, "crop_mode": "border"},
    ],
    ids=["none", "crop", "pad", "preset", "video", "flow", "v2", "timm"],
)
def test_values_do_not_depend_on_what_torch_is_set_to(name, preprocess):
    def state():
        return torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    plain = network_input(sample_image(), preprocess)
    generator = torch.get_rng_state()
    with SETTINGS[name]():
        before = state()
        given = network_input(sample_image(), preprocess)
        shown = given.picture()
        assert state() == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert not given.tensor.is_inference()
    assert given.tensor.device.type == "cpu"
    assert torch.equal(given.tensor, plain.tensor)
    assert np.array_equal(np.asarray(shown), np.asarray(plain.picture()))
    assert given.box == plain.box


# The box, and back to an image.


def test_the_box_of_the_cat():
    given = network_input(sample_image(), Preprocessing(256, (224, 224), "crop"))
    # 451×300 → 384×256; the crop begins at 80 and 16.
    assert given.box == pytest.approx(
        (80 * 451 / 384, 16 * 300 / 256, 304 * 451 / 384, 240 * 300 / 256)
    )
    assert not given.framed
    assert given.seen == given.box


def test_the_box_shows_what_the_tensor_shows():
    # One white pixel in black: the box maps it to where it is found in the input.
    image = Image.new("RGB", (90, 60))
    image.paste("white", (50, 20, 53, 23))
    for how in (
        Preprocessing(120, (100, 80), "crop"),
        Preprocessing.for_size((64, 128), "pad"),
        Preprocessing.for_size((64, 128), "squash"),
        Preprocessing.for_size((64, 128), "crop"),
        Preprocessing(120),
        Preprocessing(20, (64, 64), "crop"),
    ):
        given = network_input(read_image(image), how)
        seen = np.asarray(given.picture()).sum(axis=2).astype(float)
        seen -= seen[seen.shape[0] // 2, 0] if how.fit == "pad" else 0
        seen = np.where(seen > 0.5 * seen.max(), seen, 0)
        ys, xs = np.indices(seen.shape) + 0.5
        left, top, right, bottom = given.box
        x = left + (xs * seen).sum() / seen.sum() / seen.shape[1] * (right - left)
        y = top + (ys * seen).sum() / seen.sum() / seen.shape[0] * (bottom - top)
        assert (x, y) == pytest.approx((51.5, 21.5), abs=1.5), how


def test_a_picture_smaller_than_the_crop_says_so():
    given = network_input(
        read_image(Image.new("RGB", (40, 20), "white")), Preprocessing(20, (30, 50), "crop")
    )
    assert given.box == (-5.0, -5.0, 45.0, 25.0)
    assert given.seen == (0.0, 0.0, 40.0, 20.0)
    assert given.framed
    assert "framed in black" in given.description
    picture = given.picture()
    assert picture.getpixel((0, 0)) == (0, 0, 0)
    assert picture.getpixel((25, 15)) == (255, 255, 255)


def test_padding_is_zero_for_the_network():
    given = network_input(
        read_image(Image.new("RGB", (40, 20), "white")), Preprocessing.for_size(40, "pad")
    )
    assert given.tensor[0, :, 0].abs().max() == 0
    assert given.tensor[0, :, 10:30].abs().min() > 1
    assert given.box == (0.0, -10.0, 40.0, 30.0)
    assert given.picture().getpixel((0, 0)) == tuple(
        round(255 * m) for m in Preprocessing.IMAGENET_MEAN
    )


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("size", [64, (48, 80), (80, 48), (1, 1), (3, 200)])
@pytest.mark.parametrize("source", [(451, 300), (1, 1), (1, 700), (700, 1), (64, 64)])
def test_ones_own_size_is_exact(fit, size, source):
    photo = read_image(sample_image().image.resize(source))
    given = network_input(photo, Preprocessing.for_size(size, fit))
    height, width = (size, size) if isinstance(size, int) else size
    assert given.tensor.shape == (1, 3, height, width)
    assert torch.isfinite(given.tensor).all()
    left, top, right, bottom = given.seen
    assert 0 <= left < right <= source[0]
    assert 0 <= top < bottom <= source[1]
    assert fit == "pad" or not given.framed
    assert fit == "crop" or given.seen == (0, 0, *source)


def test_none_keeps_every_pixel():
    photo = sample_image()
    given = network_input(photo)
    assert given.tensor.shape == (1, 3, 300, 451)
    assert np.array_equal(np.asarray(given.picture()), np.asarray(photo.image))
    assert given.description == "size unchanged, values 0 to 1"


@pytest.mark.parametrize("preset", [p for _, p in PRESETS[::4]], ids=[n for n, _ in PRESETS[::4]])
def test_what_the_network_sees_is_the_resized_picture(preset):
    photo = sample_image("coffee")
    given = network_input(photo, preset)
    back = torch.from_numpy(np.array(given.picture())).permute(2, 0, 1)
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in (given.preprocessing.mean, given.preprocessing.std)
    )
    exact = (given.tensor[0] * std + mean) * 255
    assert (exact - exact.round()).abs().max() < 1e-2  # whole levels come back
    assert torch.equal(back, exact.round().to(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    given = network_input(sample_image(), Preprocessing.for_size(64), dtype=dtype)
    assert given.tensor.dtype == dtype
    plain = network_input(sample_image(), Preprocessing.for_size(64))
    assert torch.equal(given.tensor, plain.tensor.to(dtype))
    assert np.abs(np.asarray(given.picture()).astype(int) - np.asarray(plain.picture())).max() <= 2


def test_whole_numbers_are_no_dtype_for_a_network():
    with pytest.raises(ImageError, match=r"torch\.int64"):
        network_input(sample_image(), dtype=torch.int64)


def test_very_long_pictures_are_not_resized_in_full():
    stripes = np.zeros((1, 60_000, 3), np.uint8)
    stripes[:, 29_000:31_000] = (255, 0, 0)
    photo = read_image(stripes, layout="HWC")
    given = network_input(photo, Preprocessing(1200, (1000, 1000), "crop"))
    assert given.tensor.shape == (1, 3, 1000, 1000)
    assert given.picture().getpixel((500, 500)) == (255, 0, 0)
    with pytest.raises(ImageError, match="would be resized to"):
        network_input(photo, Preprocessing(1200))


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_long_pictures_with_a_size_of_ones_own(fit):
    photo = read_image(np.zeros((1, 3_000_000), np.uint8))
    assert network_input(photo, Preprocessing.for_size(224, fit)).tensor.shape == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fit": "zoom"}, "fit='zoom' is unknown"),
        ({"fit": "pad"}, "needs the size"),
        ({"crop": (3, 4)}, "needs a fit"),
        ({"resize": 0}, "resize=0"),
        ({"resize": (3,)}, "resize"),
        ({"crop": (3, -1), "fit": "crop"}, "crop"),
        ({"crop": (10_000, 10_000), "fit": "crop"}, "100 million"),
        ({"mean": (1.0,)}, "mean has 1 values and std 3"),
        ({"mean": (1.0, 1.0), "std": (1.0, 1.0)}, "mean has 2 values"),
        ({"std": (1.0, 0.0, 1.0)}, "zero"),
        ({"mean": 0.5}, "mean is 0.5; it must be finite numbers, one per channel"),
        ({"std": ("a", "b", "c")}, "std is"),
        ({"mean": None}, "mean is None"),
        ({"std": (1.0, float("nan"), 1.0)}, "finite"),
        ({"interpolation": "cubic"}, "bicubic"),
    ],
)
def test_illegal_options(options, words):
    with pytest.raises(ImageError, match=words):
        Preprocessing(**options)


def test_descriptions():
    assert (
        Preprocessing.from_transforms(PRESETS[0][1]).describe().startswith("short side resized to ")
    )
    assert "padded with the mean color" in Preprocessing.for_size((3, 4), "pad").describe()
    assert "stretched to 4×3" in Preprocessing.for_size((3, 4), "squash").describe()
    assert "cover 4×3" in Preprocessing.for_size((3, 4)).describe()
    vgg = get_model_weights("vgg16").IMAGENET1K_FEATURES.transforms()
    assert (
        "mean (0.4824, 0.4588, 0.4078), std (0.003922, 0.003922, 0.003922)"
        in Preprocessing.from_transforms(vgg).describe()
    )


def test_what_read_image_takes_is_taken(tmp_path):
    path = tmp_path / "dot.png"
    Image.new("P", (4, 3)).save(path)
    for source in (path, Image.open(path), np.zeros((3, 4), np.uint8), torch.zeros(3, 3, 4)):
        assert network_input(source, Preprocessing.for_size(2)).tensor.shape == (1, 3, 2, 2)
        assert Preprocessing.for_size(2)(source).shape == (3, 2, 2)
    with pytest.raises(ImageError, match="A NoneType is no image"):
        network_input(None)
    with pytest.raises(ImageError, match="dtype float16; give a floating one"):
        network_input(path, dtype="float16")


def test_a_pil_image_of_any_mode_is_taken():
    assert Preprocessing()(Image.new("LA", (3, 2), (9, 0))).tolist()[0] == [[1.0] * 3] * 2
