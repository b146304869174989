"""Whether a network receives what each library's own preprocessing gives: all of them, bit for bit.

    python -m benchmarks.preprocessing

Every different data config of timm's weights, every weights entry of torchvision and every image
processor of transformers that can be made without a download, on four photos of odd sizes. The
tests hold a representative part of it. Takes about four minutes on two cores.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torchvision.models import get_model_weights, list_models
from torchvision.transforms import functional as F

from hookviz.errors import HookvizError
from hookviz.images import Picture, network_input, read_image, sample_image

SIZES = ((97, 131), (333, 211), (500, 75), (224, 224))


def timm_cases() -> Iterator[tuple[str, Any, Any]]:
    import timm

    seen = set()
    for name in timm.list_pretrained():
        stated = timm.get_pretrained_cfg(name).to_dict()
        for test_size in (False, True):
            config = timm.data.resolve_data_config(pretrained_cfg=stated, use_test_size=test_size)
            key = repr(sorted(config.items()))
            if key not in seen:
                seen.add(key)
                theirs = timm.data.create_transform(**config, is_training=False)
                yield f"config {name}", config, theirs
                yield f"transform {name}", theirs, theirs


def torchvision_cases() -> Iterator[tuple[str, Any, Any]]:
    seen = set()
    for name in list_models():
        for weights in get_model_weights(name):
            preset = weights.transforms()
            key = type(preset).__name__ + repr(preset)
            if key in seen:
                continue
            seen.add(key)
            theirs = preset
            if type(preset).__name__ == "VideoClassification":
                theirs = lambda image, p=preset: p(F.pil_to_tensor(image)[None])[:, 0]  # noqa: E731
            elif type(preset).__name__ == "OpticalFlow":
                theirs = lambda image, p=preset: p(image, image)[0]  # noqa: E731
            yield f"{name} {weights.name}", preset, theirs


def transformers_cases() -> Iterator[tuple[str, Any, Any]]:
    import transformers

    transformers.logging.set_verbosity_error()
    for name in dir(transformers):
        if not name.endswith(("ImageProcessor", "ImageProcessorPil", "ImageProcessorFast")):
            continue
        try:
            processor = getattr(transformers, name)()
        except Exception:  # noqa: S112 - abstract, or needs a file or another package
            continue

        def theirs(image: Any, processor: Any = processor) -> torch.Tensor:
            given = processor(images=image, return_tensors="pt")
            if isinstance(given, torch.Tensor):
                return given
            tensors = [v for v in given.values() if isinstance(v, torch.Tensor)]
            return given["pixel_values"] if "pixel_values" in given else tensors[0]

        yield name, processor, theirs


def compare(name: str, given: Any, theirs: Any, photo: Picture) -> str:
    try:
        received = network_input(photo, given)
    except HookvizError:
        return "refused in a sentence"
    wanted = theirs(photo.image).to(torch.float32)
    if torch.equal(received.tensor.reshape(wanted.shape), wanted):
        return "equal"
    print("DIFFERENT", name, photo.size)
    return "different"


def main() -> None:
    warnings.simplefilter("ignore")
    photos = [read_image(sample_image().image.resize(size)) for size in SIZES]
    for cases in (timm_cases, torchvision_cases, transformers_cases):
        begin, counted = time.perf_counter(), Counter()
        for name, given, theirs in cases():
            for photo in photos:
                counted[compare(name, given, theirs, photo)] += 1
        print(f"{cases.__name__}: {dict(counted)}, {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
