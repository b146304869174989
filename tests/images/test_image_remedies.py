"""What a refusal advises is done here, and helps."""

from __future__ import annotations

import base64
import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from hookviz.errors import ImageError
from hookviz.images import Preprocessing, network_input, read_image, sample_image


def advised(call, remedy):
    """The call fails with that remedy."""
    with pytest.raises(ImageError) as caught:
        call()
    assert remedy in (caught.value.remedy or "")


def test_make_it_smaller(encode, monkeypatch):
    large = encode(Image.new("L", (12_000, 12_000)), "JPEG", quality=10)  # 144 million pixels
    advised(lambda: read_image(large), "Make it smaller.")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(io.BytesIO(large)) as opened:
        opened.draft("L", (3000, 3000))
        smaller = encode(opened, "JPEG")
    assert read_image(smaller).size == (3000, 3000)
    array = np.zeros((9000, 9000), np.uint8)
    advised(lambda: read_image(array), "Make it smaller.")
    read_image(array[::2, ::2])
    advised(lambda: read_image(b"x" * 9, max_bytes=8), "Make it smaller.")


def test_save_it_again_as_a_plain_file(encode):
    data = bytearray(encode(Image.new("RGB", (6000, 6000)), "JPEG", progressive=True))
    first = data.index(b"\xff\xda")
    scan = bytes(data[data.index(b"\xff\xda", first + 2) : -2])[:40]
    slow = bytes(data[:-2]) + scan * 60 + b"\xff\xd9"
    advised(lambda: read_image(slow), "Save it again as a plain PNG or JPEG.")
    with Image.open(io.BytesIO(bytes(data))) as opened:
        assert read_image(encode(opened, "PNG")).size == (6000, 6000)


def test_save_or_download_it_again(encode):
    data = encode(sample_image().image, "PNG")
    advised(lambda: read_image(data[:4000]), "Save or download it again")
    assert read_image(data).size == (451, 300)


def test_open_it_as_bytes_and_go_to_its_beginning(encode, tmp_path: Path):
    path = tmp_path / "dot.png"
    path.write_bytes(encode(Image.new("RGB", (2, 2)), "PNG"))
    with path.open(encoding="latin-1") as stream:
        advised(lambda: read_image(stream), 'open(path, "rb")')
    with path.open("rb") as stream:
        stream.read()
        advised(lambda: read_image(stream), "Call seek(0) first.")
        stream.seek(0)
        assert read_image(stream).size == (2, 2)


def test_decode_an_address_that_holds_the_image(encode):
    data = encode(Image.new("RGB", (2, 2)), "PNG")
    address = "data:image/png;base64," + base64.b64encode(data).decode()
    for source in (address, address.encode()):
        advised(lambda source=source: read_image(source), "Decode it with base64 first.")
    assert read_image(base64.b64decode(address.partition(",")[2])).size == (2, 2)


def test_unpack_an_archive(encode):
    data = encode(Image.new("RGB", (2, 2)), "PNG")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("dot.png", data)
    advised(lambda: read_image(packed.getvalue()), "Unpack it first.")
    with zipfile.ZipFile(packed) as archive:
        assert read_image(archive.read("dot.png")).size == (2, 2)
    advised(lambda: read_image(gzip.compress(data)), "Unpack it first.")
    assert read_image(gzip.decompress(gzip.compress(data))).size == (2, 2)


def test_load_a_numpy_file_with_numpy(tmp_path: Path):
    path = tmp_path / "grey.npy"
    np.save(path, np.zeros((3, 4), np.uint8))
    advised(lambda: read_image(path), "Load it with numpy.load and give the array.")
    assert read_image(np.load(path)).size == (4, 3)


def test_the_values_and_the_batch_of_an_array():
    values = np.linspace(0, 255, 48).reshape(4, 4, 3)
    advised(lambda: read_image(values), "Divide by 255, or give uint8.")
    assert read_image(values / 255).size == read_image(values.astype(np.uint8)).size == (4, 4)
    normalised = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0))
    advised(lambda: read_image(normalised), "Undo the normalisation first, or scale the values.")
    assert read_image(normalised.sigmoid()).size == (4, 4)
    batch = torch.zeros(2, 3, 4, 4)
    advised(lambda: read_image(batch), "Give one image of the batch.")
    assert read_image(batch[1]).size == (4, 4)


def test_preprocessing_with_a_size_for_a_very_long_image():
    photo = read_image(np.zeros((1, 60_000), np.uint8))
    advised(
        lambda: network_input(photo, Preprocessing(1200)),
        "Crop the image first, or choose preprocessing with a size.",
    )
    assert network_input(photo, Preprocessing.for_size(64)).tensor.shape == (1, 3, 64, 64)
    network_input(read_image(photo.image.crop((0, 0, 30, 1))), Preprocessing(1200))


def test_a_description_or_another_object_in_place_of_a_preprocessing():
    advised(lambda: Preprocessing.from_transforms(3), "hookviz.Preprocessing(resize=…, crop=")
    Preprocessing(resize=256, crop=(224, 224), fit="crop", mean=(0.5,) * 3, std=(0.5,) * 3)
    own = Preprocessing.from_transforms(lambda image: T.functional.to_tensor(image))
    advised(lambda: own.fitted("pad"), "Give a hookviz.Preprocessing instead.")
    advised(
        lambda: network_input(sample_image(), T.Resize(8)),
        "Add a step that makes a tensor of the image, such as ToTensor.",
    )
    network_input(sample_image(), T.Compose([T.Resize(8), T.ToTensor()]))

    def last(image):
        return torch.from_numpy(np.array(image)).float()

    advised(lambda: network_input(sample_image(), last), "Add .permute(2, 0, 1)")
    network_input(sample_image(), lambda image: last(image).permute(2, 0, 1))


def test_the_object_itself_for_a_config_that_cannot_be_repeated():
    timm = pytest.importorskip("timm.data")
    config = {"input_size": (3, 32, 32), "crop_border_pixels": 4}
    advised(lambda: Preprocessing.from_transforms(config), "Give timm.data.create_transform")
    assert network_input(sample_image(), timm.create_transform(**config)).tensor.shape[2:] == (
        32,
        32,
    )


@pytest.mark.filterwarnings("ignore")
def test_the_processor_itself_for_a_config_that_cannot_be_repeated():
    transformers = pytest.importorskip("transformers")
    processor = transformers.MobileViTImageProcessor()
    config = processor.to_dict()
    config.pop("image_processor_type")
    advised(lambda: Preprocessing.from_transforms(config), "Give the image processor itself.")
    assert network_input(sample_image(), processor).tensor.shape[1] == 3
