"""Every builder of torchvision, untrained, run on a picture through hookviz's way of feeding.

Prints a line for each and the counts: ran, refused with a reason, failed. One model is in memory
at a time (the largest, regnet_y_128gf, takes 2.6 GB); the input is the smallest that is legal.

    python -m benchmarks.builders            # all
    python -m benchmarks.builders vgg "resnet*"
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings

import torch
import torchvision
from PIL import Image
from torchvision.transforms.functional import normalize, pil_to_tensor, resize

from hookviz.bundled import bundled_file
from hookviz.errors import HookvizError
from hookviz.models import describe, expected_input, feed, list_models, load_model, predictions

SMALLEST = 64


def picture(height: int, width: int) -> torch.Tensor:
    with Image.open(bundled_file("assets", "chelsea.png")) as image:
        pixels = resize(pil_to_tensor(image.convert("RGB")), [height, width], antialias=True) / 255
    return normalize(pixels, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])[None]


def run_one(name: str) -> tuple[str, str]:
    """(what became of it, a sentence)."""
    try:
        model = load_model(name, weights=None, device="cpu")
        hints = expected_input(model)
        size = hints.fixed_size or tuple(max(side, SMALLEST) for side in hints.min_size)
        args, kwargs = feed(model, picture(*size))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = model.module(*args, **kwargs)
        answer = predictions(model, output, k=1)
    except HookvizError as error:
        return "refused", str(error)
    said = f"top: {answer.items[0][1]}" if answer.items else answer.summary or answer.reason
    count = sum(p.numel() for p in model.module.parameters())
    return "ran", (
        f"{model.task}, {count / 1e6:.1f} M parameters, {hints.convention} "
        f"{size[1]}×{size[0]} → {describe(output)}; {said}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("search", nargs="*", default=[""])
    names = [name for word in parser.parse_args().search for name in list_models(word)]
    torch.manual_seed(0)
    counts = {"ran": 0, "refused": 0, "failed": 0}
    began = time.monotonic()
    for name in names:
        start = time.monotonic()
        try:
            fate, sentence = run_one(name)
        except Exception as error:
            fate, sentence = "failed", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        counts[fate] += 1
        print(f"{fate:<8} {name:<40} {time.monotonic() - start:6.1f} s  {sentence}", flush=True)
        gc.collect()
    print(
        f"torchvision {torchvision.__version__}: {len(names)} builders: {counts['ran']} ran, "
        f"{counts['refused']} refused with a reason, {counts['failed']} failed; "
        f"{time.monotonic() - began:.0f} s on the CPU"
    )
    raise SystemExit(counts["failed"] > 0)


if __name__ == "__main__":
    main()
