"""Every torchvision builder and many of timm's, built small, with seeded random weights.

In: a model's name. Out: the model in eval mode and the smallest legal input for it.
Must not know: hooks, captures, what is done with the model.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

SEED = 0


@dataclass(frozen=True)
class Specimen:
    """A model, and what it is called with."""

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# Building fast -----------------------------------------------------------------------------------

# Filling 600 million weights with random numbers takes longer than running the model. Large
# tensors are filled with one block of random numbers, repeated from a different place each time.
_LARGE = 50_000
_BLOCK: list[torch.Tensor] = []


def _block() -> torch.Tensor:
    if not _BLOCK:
        generator = torch.Generator().manual_seed(SEED)
        _BLOCK.append(torch.randn(1_000_003, generator=generator))
    return _BLOCK[0]


def _fill(tensor: torch.Tensor, std: float, turn: int) -> torch.Tensor:
    block = _block()
    with torch.no_grad():
        flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
        done, place = 0, turn * 7919 % block.numel()
        while done < flat.numel():
            piece = block[place : place + flat.numel() - done]
            flat[done : done + piece.numel()] = piece
            done, place = done + piece.numel(), 0
        return tensor.copy_(flat.mul_(std).view(tensor.shape))


class FastInit(TorchFunctionMode):
    """Initialisers leave large tensors alone; `randomise` fills them afterwards."""

    SKIPPED = frozenset(
        {
            torch.Tensor.normal_,
            torch.Tensor.uniform_,
            torch.Tensor.erfinv_,
            torch.Tensor.clamp_,
            torch.Tensor.trunc_,
            torch.nn.init.kaiming_normal_,
            torch.nn.init.kaiming_uniform_,
            torch.nn.init.xavier_normal_,
            torch.nn.init.xavier_uniform_,
            torch.nn.init.normal_,
            torch.nn.init.uniform_,
            torch.nn.init.trunc_normal_,
            torch.nn.init.orthogonal_,
        }
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.SKIPPED:
            tensor = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(tensor, nn.Parameter) and tensor.numel() > _LARGE:
                return tensor
        return func(*args, **(kwargs or {}))


def randomise(model: nn.Module) -> nn.Module:
    """Every weight of two or more axes becomes random, scaled so that values neither die nor
    explode; vectors get a little noise, so that no norm or bias is trivial."""
    with torch.no_grad():
        for turn, parameter in enumerate(model.parameters()):
            if not parameter.dtype.is_floating_point or parameter.numel() == 0:
                continue
            if parameter.ndim >= 2:
                fan_in = max(parameter[0].numel(), 1)
                gain = 1.3 if parameter.ndim > 2 else 1.0
                _fill(parameter, gain / math.sqrt(fan_in), turn)
            elif parameter.ndim == 1 and parameter.numel() > 1:
                parameter.add_(_fill(torch.empty_like(parameter), 0.05, turn))
    return model


# torchvision -------------------------------------------------------------------------------------


def _image(size: int, batch: int = 1, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED + 1)
    return torch.rand(batch, channels, size, size, generator=generator)


def _video(frames: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED + 1)
    return torch.rand(1, 3, frames, size, size, generator=generator)


_DETECTION: dict[str, Any] = {"weights_backbone": None, "min_size": 96, "max_size": 128}
_RCNN: dict[str, Any] = {
    **_DETECTION,
    # Untrained scores are low; keep some boxes, or the box, mask and keypoint heads see nothing.
    "box_score_thresh": 0.0,
    "box_detections_per_img": 4,
    "rpn_post_nms_top_n_test": 16,
}
_NO_AUX: dict[str, Any] = {"aux_logits": True, "init_weights": False}

# (pattern, builder's arguments, what the model is called with); the first match counts.
_TORCHVISION: list[tuple[str, dict[str, Any], Callable[[], tuple[Any, ...]]]] = [
    (r"quantized_inception_v3", {"quantize": False, "aux_logits": True}, lambda: (_image(75),)),
    (r"quantized_googlenet", {"quantize": False, "aux_logits": True}, lambda: (_image(64),)),
    (r"quantized_", {"quantize": False}, lambda: (_image(64),)),
    (r"(faster|mask|keypoint)rcnn", _RCNN, lambda: ([_image(96)[0], _image(80)[0]],)),
    (
        r"(retinanet|fcos)",
        {**_DETECTION, "score_thresh": 0.0, "topk_candidates": 20, "detections_per_img": 4},
        lambda: ([_image(96)[0]],),
    ),
    (
        r"ssd",
        {"weights_backbone": None, "score_thresh": 0.0, "detections_per_img": 4},
        lambda: ([_image(96)[0]],),
    ),
    (
        r"(deeplabv3|fcn)",
        {"weights_backbone": None, "aux_loss": True},
        lambda: (_image(48),),
    ),
    (r"lraspp", {"weights_backbone": None}, lambda: (_image(64),)),
    (r"raft", {}, lambda: (_image(128), _image(128).flip(-1))),
    (r"s3d", {}, lambda: (_video(14, 224),)),
    (r"mvit", {}, lambda: (_video(16, 224),)),
    (r"swin3d", {}, lambda: (_video(4, 64),)),
    (r"(mc3|r3d|r2plus1d)", {}, lambda: (_video(8, 32),)),
    (r"googlenet", _NO_AUX, lambda: (_image(64),)),
    (r"inception_v3", _NO_AUX, lambda: (_image(75),)),
    (r"maxvit", {}, lambda: (_image(224),)),
    (r"vit_._14", {"image_size": 28}, lambda: (_image(28),)),
    (r"vit_._16", {"image_size": 32}, lambda: (_image(32),)),
    (r"vit_._32", {"image_size": 64}, lambda: (_image(64),)),
    (r"alexnet", {}, lambda: (_image(63),)),
    (r"squeezenet", {}, lambda: (_image(48),)),
    (r".*", {}, lambda: (_image(32),)),
]


def torchvision_names() -> list[str]:
    """All builders, in torchvision's order."""
    from torchvision.models import list_models

    return list(list_models())


def build_torchvision(name: str) -> Specimen:
    from torchvision.models import get_model

    options, inputs = next((o, i) for p, o, i in _TORCHVISION if re.match(p, name))
    torch.manual_seed(SEED)
    with FastInit():
        model = get_model(name, weights=None, **options)
    randomise(model)
    if name.startswith("quantized_"):
        from torchvision.models.quantization.utils import quantize_model

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's quantisation is to move to torchao
            quantize_model(model, "fbgemm")  # what the builders' quantize=True calls
    kwargs = {"num_flow_updates": 2} if name.startswith("raft") else {}
    return Specimen(name, model.eval(), inputs(), kwargs)


# timm --------------------------------------------------------------------------------------------

_SIZES = (
    "atto", "femto", "pico", "nano", "xxs", "xxtiny", "xtiny", "xx", "xs", "tiny", "mini", "t0",
    "small",
)  # fmt: skip
_BIG = ("base", "medium", "large", "huge", "giant", "gigantic", "enormous", "so400m", "so150m")


def _by_size(name: str) -> tuple[int, int, str]:
    """Small models first, as far as a name tells."""
    words = re.split(r"[_\W]+", name)
    rank = len(_SIZES)
    for word in words:
        if word in _SIZES:
            rank = min(rank, _SIZES.index(word))
        if word in _BIG:
            rank = len(_SIZES) + 1 + _BIG.index(word)
    return rank, sum(int(n) for n in re.findall(r"\d+", name)), name


def timm_names(count: int) -> list[str]:
    """``count`` architectures spread over all of timm's families, the smallest of each first."""
    import timm

    families = {
        family: sorted(
            (n for n in timm.list_models(module=family) if not n.startswith("test_")), key=_by_size
        )
        for family in timm.list_modules()
    }
    chosen: list[str] = []
    for place in range(max(map(len, families.values()))):
        for names in families.values():
            if place < len(names) and len(chosen) < count:
                chosen.append(names[place])
    return chosen


_TIMM_SIZES = (64, 96, 128, 160, 192, 224, 240, 256, 288, 299, 320, 384)


def build_timm(name: str) -> Specimen:
    import timm

    own = (timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()).input_size[-1]
    torch.manual_seed(SEED)
    with FastInit():
        try:
            # Transformers made for very large images can be built for smaller ones.
            options = {"img_size": _TIMM_SIZES[-1] // 2} if own > _TIMM_SIZES[-1] else {}
            model = timm.create_model(name, pretrained=False, **options).eval()
        except TypeError:
            model = timm.create_model(name, pretrained=False).eval()
    randomise(model)
    channels, own, _ = model.default_cfg.get("input_size", (3, 224, 224))
    sizes = sorted({*_TIMM_SIZES, own})
    return Specimen(name, model, (_smallest(model, channels, sizes),), {})


def _smallest(model: nn.Module, channels: int, sizes: Iterable[int]) -> torch.Tensor:
    """The smallest square image that the model takes."""
    error: Exception | None = None
    for size in sizes:
        image = _image(size, channels=channels)
        try:
            with torch.no_grad():
                model(image)
        except Exception as found:
            error = found
        else:
            return image
    raise RuntimeError(f"no size up to {size} is taken: {error}")
