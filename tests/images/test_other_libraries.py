"""Preprocessing of timm, transformers and albumentations: the network receives what they give."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from hookviz.errors import ImageError
from hookviz.images import Preprocessing, network_input, read_image, sample_image

SIZES = ((97, 131), (211, 160), (300, 60), (64, 64))


@pytest.fixture(scope="module")
def photos():
    return [read_image(sample_image().image.resize(size)) for size in SIZES]


# timm


def every_timm_config():
    """Each different data config of the weights that timm names, once."""
    timm = pytest.importorskip("timm")
    found = {}
    for name in timm.list_pretrained():
        stated = timm.get_pretrained_cfg(name).to_dict()
        for test_size in (False, True):
            config = timm.data.resolve_data_config(pretrained_cfg=stated, use_test_size=test_size)
            found.setdefault(repr(sorted(config.items())), config)
        assert Preprocessing.from_transforms(stated) == Preprocessing.from_transforms(
            timm.data.resolve_data_config(pretrained_cfg=stated)
        )
    return list(found.values())


def test_every_config_of_timm_gives_what_timm_gives(photos):
    timm = pytest.importorskip("timm.data")
    configs = every_timm_config()
    assert len(configs) > 100
    assert {c["crop_mode"] for c in configs} == {"center", "squash", "border"}
    for number, config in enumerate(configs):
        theirs = timm.create_transform(**config, is_training=False)
        photo = photos[number % len(photos)]
        given = network_input(photo, config)
        assert torch.equal(given.tensor[0], theirs(photo.image)), config
        # The transform itself is called; what it says of itself places the input likewise.
        called = network_input(photo, theirs)
        assert torch.equal(called.tensor, given.tensor), config
        assert called.box == pytest.approx(given.box), config


@pytest.mark.parametrize("mode", [None, "center", "squash", "border"])
@pytest.mark.parametrize("share", [None, 0.5, 0.875, 1.0, 1.15])
@pytest.mark.parametrize("size", [(3, 33, 70), (3, 120, 47), 50])
@pytest.mark.parametrize("interpolation", [None, "lanczos", "nearest"])
def test_configs_that_no_weights_have_give_what_timm_gives(
    photos, mode, share, size, interpolation
):
    timm = pytest.importorskip("timm.data")
    config = {"input_size": size, "crop_pct": share, "crop_mode": mode, "mean": (0.4, 0.5, 0.6)}
    config |= {"interpolation": interpolation} if interpolation else {}
    theirs = timm.create_transform(**config)
    for photo in photos[:3]:
        assert torch.equal(network_input(photo, config).tensor[0], theirs(photo.image))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"interpolation": "random"}, "interpolation='random' is unknown"),
        ({"is_training": True}, "'is_training' cannot be repeated.*create_transform"),
        ({"crop_border_pixels": 3}, "'crop_border_pixels'"),
        ({"normalize": False}, "'normalize'"),
        ({"mean": (0.5, 0.5)}, "mean has 2 values"),
        ({"mean": "a"}, "mean='a' is not a list of numbers"),
        ({"crop_pct": "a"}, "config that cannot be read .ValueError"),
        ({"input_size": (3,)}, "config that cannot be read .ValueError"),
        ({"input_size": (3, 0, 5)}, "is not a size"),
    ],
)
def test_settings_of_timm_that_cannot_be_repeated_are_refused(more, words):
    with pytest.raises(ImageError, match=words):
        Preprocessing.from_transforms({"input_size": (3, 32, 32), "crop_pct": 1.0, **more})


def test_a_grey_model_of_timm_gets_one_channel(photos):
    config = {"input_size": (1, 28, 28), "mean": (0.1307,), "std": (0.3081,), "crop_pct": 1.0}
    assert network_input(photos[0], config).tensor.shape == (1, 1, 28, 28)


def test_a_pipeline_of_timm_for_training_is_called_as_it_is(photos):
    timm = pytest.importorskip("timm.data")
    training = timm.create_transform(64, is_training=True)
    torch.manual_seed(3)
    wanted = training(photos[0].image)
    torch.manual_seed(3)
    given = network_input(photos[0], training)
    assert given.tensor.shape == (1, *wanted.shape)
    assert given.box is None


# transformers


def every_image_processor():
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    found = {}
    for name in dir(transformers):
        if name.endswith(("ImageProcessor", "ImageProcessorPil", "ImageProcessorFast")):
            try:
                found[name] = getattr(transformers, name)()
            except Exception:  # noqa: BLE001, S112 - abstract, or needs a file or another package
                continue
    return found


# Their inputs have millions of values; the same code as others' runs on them.
LARGE = ("Donut", "Sam", "Owl", "TextNet", "DepthPro", "PerceptionLM", "GraniteDocling", "Deepseek")


@pytest.mark.filterwarnings("ignore")  # transformers', about its own future
@pytest.mark.parametrize("first", ["A-D", "E-K", "L-O", "P-Z"])
def test_every_image_processor_gives_the_network_what_it_gives(photos, first):
    """`python -m benchmarks.preprocessing` tries them all, the large ones too."""
    equal = refused = 0
    for name, processor in every_image_processor().items():
        if name.startswith(LARGE) or not first[0] <= name[0] <= first[-1]:
            continue
        for photo in photos[:2]:
            try:
                wanted = processor(images=photo.image, return_tensors="pt")
            except Exception:  # noqa: BLE001 - then hookviz must refuse it too
                wanted = {}
            if isinstance(wanted, torch.Tensor):
                wanted = {"pixel_values": wanted}
            tensors = [v for v in wanted.values() if isinstance(v, torch.Tensor)]
            try:
                given = network_input(photo, processor)
            except ImageError as error:
                assert name in error.message  # noqa: PT017 - a refusal is one of two right ends
                refused += 1
                continue
            values = wanted.get("pixel_values", tensors[0])
            assert torch.equal(given.tensor.reshape(values.shape), values.to(torch.float32)), name
            equal += 1
    assert equal > 40
    assert refused > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["ViTImageProcessor", "CLIPImageProcessor", "ConvNextImageProcessor", "MobileViTImageProcessor",
     "BeitImageProcessor", "LevitImageProcessor", "VivitImageProcessor"],
)  # fmt: skip
def test_a_config_that_names_its_processor_gives_what_that_gives(photos, name):
    transformers = pytest.importorskip("transformers")
    processor = getattr(transformers, name)()
    for photo in photos:
        given = network_input(photo, processor.to_dict()).tensor
        wanted = processor(images=photo.image, return_tensors="pt")["pixel_values"]
        assert torch.equal(given.reshape(wanted.shape), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_normalize": False},
        {"do_resize": False},
        {"size": {"shortest_edge": 50}, "do_center_crop": True, "crop_size": 47},
        {"size": {"shortest_edge": 60}, "do_center_crop": True,
         "crop_size": {"height": 47, "width": 90}},
        {"size": {"height": 31, "width": 77}, "resample": 3},
        {"size": {"shortest_edge": 30}, "resample": 0},
    ],
)  # fmt: skip
def test_a_config_without_a_name_gives_what_the_pillow_backend_gives(photos, options):
    transformers = pytest.importorskip("transformers")
    config = {
        "do_resize": True, "size": {"height": 40, "width": 40}, "resample": 2,
        "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
        "image_mean": [0.48, 0.45, 0.4], "image_std": [0.27, 0.26, 0.28], **options,
    }  # fmt: skip
    processor = transformers.CLIPImageProcessorPil(do_convert_rgb=True)
    settings = {"do_center_crop": False, **config}
    for photo in photos:
        given = network_input(photo, config)
        wanted = processor(images=photo.image, return_tensors="pt", **settings)["pixel_values"]
        assert given.tensor.shape == wanted.shape
        assert (given.tensor - wanted).abs().max() < 1e-6
        assert given.box is not None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"do_flip_channel_order": True}, "'do_flip_channel_order' cannot be repeated"),
        ({"do_pad": True}, "'do_pad'"),
        ({"crop_pct": 0.9}, "'crop_pct'"),
        ({"do_rescale": False}, "does not scale"),
        ({"rescale_factor": 1 / 127.5}, "does not scale"),
        ({"rescale_factor": "a"}, "config that cannot be read .ValueError"),
        ({"resample": 99}, "config that cannot be read .ValueError"),
        ({"size": "a"}, "config that cannot be read .ValueError"),
        ({"size": None}, "size None cannot be repeated"),
        ({"size": {"shortest_edge": 20, "longest_edge": 30}}, "longest_edge"),
        ({"image_mean": [0.5] * 4}, "mean has 4 values"),
    ],
)
def test_settings_of_a_config_that_cannot_be_repeated_are_refused(more, words):
    config = {"do_resize": True, "size": 20, "image_mean": [0.5], "image_std": [0.5], **more}
    with pytest.raises(ImageError, match=words):
        Preprocessing.from_transforms(config)


def test_a_config_without_a_name_does_not_load_transformers():
    code = (
        "import sys; from hookviz.images import Preprocessing;"
        "Preprocessing.from_transforms({'do_resize': True, 'size': 20, 'image_mean': [.5],"
        "'image_std': [.5]}); assert 'transformers' not in sys.modules;"
        "assert 'torchvision' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.filterwarnings("ignore")
def test_a_processor_says_where_its_input_lies_as_far_as_that_is_known(photos):
    transformers = pytest.importorskip("transformers")
    known = network_input(photos[0], transformers.CLIPImageProcessor())
    assert known.box == pytest.approx((0, 17, 97, 114), abs=1)
    assert "centre crop 224×224" in known.description
    turned = network_input(photos[0], transformers.MobileViTImageProcessor())  # B, G, R
    assert turned.box is None
    assert turned.description.startswith("preprocessed by MobileViTImageProcessor")


# albumentations, and what looks like it


class Named:
    """Takes its image by name alone and gives a mapping, as albumentations does."""

    def __init__(self, give):
        self.give = give

    def __call__(self, *args, force_apply=False, **data):
        assert not args
        return {"image": self.give(data["image"]), "mask": None}


@pytest.mark.parametrize(
    "give",
    [
        lambda a: a[::2, ::2, ::-1],
        lambda a: a[5:50, 7:40].astype(np.float64) / 200 - 0.25,
        lambda a: np.moveaxis(a, 2, 0).astype(np.float16),
        lambda a: torch.from_numpy(a).permute(2, 0, 1),
        lambda a: a.mean(axis=2, keepdims=True, dtype=np.float32),
    ],
    ids=["BGR", "HWC floats", "CHW halves", "a tensor", "one channel"],
)
def test_a_callable_that_takes_its_image_by_name(photos, give):
    array = np.array(photos[0].image)
    wanted = np.asarray(give(array), dtype=np.float32)
    wanted = np.moveaxis(wanted, 2, 0) if wanted.shape[2] in (1, 3) else wanted

    def decorated(*args, **data):
        return {"image": give(np.array(*args, **data))}

    for pipeline in (Named(give), lambda *, image: {"image": give(image)}, decorated):
        given = network_input(photos[0], pipeline)
        assert np.array_equal(given.tensor[0].numpy(), wanted)


def test_the_error_of_the_usual_call_is_the_one_that_is_said(photos):
    def decorated(*args, **data):
        raise ValueError("mine" if args else "by name")

    with pytest.raises(ImageError, match="decorated failed: mine"):
        network_input(photos[0], decorated)


def test_a_function_that_changes_its_image_leaves_the_photo_as_it_was(photos):
    def shrink(image):
        image.thumbnail((20, 20))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    assert max(network_input(photos[0], shrink).tensor.shape[2:]) == 20
    assert photos[0].image.size == photos[0].size == SIZES[0]


@pytest.mark.filterwarnings("ignore")
def test_albumentations(photos):
    A = pytest.importorskip("albumentations")
    pipeline = A.Compose([A.SmallestMaxSize(80), A.CenterCrop(64, 64), A.Normalize()])
    for steps in (pipeline, A.Compose([*pipeline.transforms, A.ToTensorV2()])):
        given = network_input(photos[0], steps)
        wanted = np.asarray(steps(image=np.array(photos[0].image))["image"])
        wanted = wanted if wanted.shape[0] == 3 else np.moveaxis(wanted, 2, 0)
        assert np.array_equal(given.tensor[0].numpy(), wanted)
