"""More tools of `benchmarks.features`: featlens and MapExtrackt, made for pictures.

In: a model, a layer, an input. Out: what the tool hands out. Must not know: what counts as right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.feature_probes import IMAGE, Tool


class Featlens(Tool):
    package = "featlens"
    notes: ClassVar[dict[str, str]] = {
        "clean": "its hook stays until `remove_hooks()`",
        "picture": "all channels of a layer as one tile: PCA, k-means, norm or cosine",
        "scale": "cosine similarity has a bar of its own unit; `saliency` one of 0 to 1 after "
        "normalising",
        "several": "numbers of blocks",
        "names": "raises, but names nothing",
        "across": "`basis='shared_per_model'`",
    }

    def extractor(self, model: nn.Module, layers: list[int], target: Any = "features") -> Any:
        from featlens import FeatureExtractor
        from featlens.adapters import custom_adapter

        loaded = custom_adapter.load(model, patch_size=1, hook_target=target, num_blocks=99)
        self.last = FeatureExtractor(loaded, layers=layers, img_size=64)
        return self.last

    def tidy(self) -> None:
        self.last.remove_hooks()

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        extractor = self.extractor(model, [0], lambda m, _: m.get_submodule(layer))
        extractor.patch_size = 4 if layer.startswith("layer1") else 1
        return [extractor(x)[:, 0]]

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        return [self.outputs(model, x, name)[0] for name, _ in model.named_children()]

    def grid(self, model: nn.Module, method: str, **options: Any) -> Any:
        from featlens import FeatureGrid

        extractor = self.extractor(model, [0])
        return FeatureGrid(
            [extractor], layers=[0], img_size=64, method=method, device="cpu", **options
        )

    def picture(self, model: nn.Module, image: Path) -> Any:
        return self.grid(model, "saliency").render(image)

    def own_unit(self, model: nn.Module, image: Path) -> tuple[str, Any]:
        return "cosine similarity", self.grid(model, "cosine").render(image)

    def export(self, model: nn.Module, image: Path, folder: Path) -> list[Path]:
        return [Path(self.grid(model, "pca").render(image, out_path=folder / "featlens.png"))]

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        return self.extractor(model, ["features.2*"])(x).shape[1], ""  # type: ignore[list-item]

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        self.extractor(model, [0], "featurs")

    def command(self, image: Path, folder: Path) -> list[str]:
        return ["--models", "vit_tiny_patch16_224", "--no-pretrained", "--layers", "0",
                "--images", str(image), "--out", str(folder / "command.png")]  # fmt: skip

    def rollout(self, image: Path) -> Any:
        import featlens

        extractor = featlens.FeatureExtractor("vit_tiny_patch16_224", pretrained=False)
        return featlens.attention(extractor, image, return_data=True)["rollout"]

    def across(self, model: nn.Module, images: list[Path]) -> Any:
        grid = self.grid(model, "pca", basis="shared_per_model")
        return grid.render(images, return_data=True)["tiles"][0, 0, :224]

    def video(self, model: nn.Module, images: list[Path], folder: Path) -> Path:
        import featlens

        featlens.video(
            self.extractor(model, [0]).lm, images, layers=[0], img_size=64, device="cpu",
            out=folder / "strip.png", gif=folder / "strip.gif",
        )  # fmt: skip
        return folder / "strip.gif"


class MapExtrackt(Tool):
    package = "MapExtrackt"
    notes: ClassVar[dict[str, str]] = {
        "values": "maps of 0 to 255, each scaled by itself, of what the ReLU made of it",
        "calls": "maps of 0 to 255, told apart by their order",
        "picture": "only without its texts, which call Pillow's removed `getsize`",
        "names": "raises, but names nothing",
        "several": "parts of the names of module types: `allowed_modules=['conv']`",
        "scale": "each map is scaled by itself; no bar",
        "video": "only without its texts",
    }
    broken_texts = False

    def shown(self, model: nn.Module, **options: Any) -> Any:
        from MapExtrackt import FeatureExtractor

        extractor = FeatureExtractor(model)
        extractor.set_image(str(IMAGE[0]), order_by_intensity=False, **options)
        return extractor

    def outputs(self, model: nn.Module, x: Tensor, layer: str) -> list[Any]:
        shown = self.shown(model)
        maps = [torch.from_numpy(shown.outputs[n]).permute(2, 0, 1)[None] for n in shown.outputs]
        if layer.startswith("layer1"):
            return [m for m, name in zip(maps, shown.layer_names, strict=True) if name == "ReLU"][
                1:3
            ]
        return maps[:1]

    def everything(self, model: nn.Module, x: Tensor) -> list[Any]:
        shown = self.shown(model)
        return [torch.from_numpy(shown.outputs[n]).permute(2, 0, 1)[None] for n in shown.outputs]

    def picture(self, model: nn.Module, image: Path) -> Any:
        shown = self.shown(model)
        try:
            return shown.display_from_map(0, picture_in_picture=False)
        except AttributeError as error:
            if "getsize" not in str(error):
                raise
            self.broken_texts = True
            return shown.display_from_map(0, picture_in_picture=False, write_text="none")

    def several(self, model: nn.Module, x: Tensor) -> tuple[int, str]:
        return self.shown(model, allowed_modules=["conv"]).layers, "partly"

    def unknown(self, model: nn.Module, x: Tensor) -> None:
        self.shown(model, allowed_modules=["cnv"])

    def video(self, model: nn.Module, images: list[Path], folder: Path) -> Path:
        import contextlib
        import io

        shown = self.shown(model, allowed_modules=["conv"])
        shown.set_output(write_text="none", picture_in_picture=False)
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            shown.write_video((320, 240), "maps.avi", fps=5, time_for_layer=3,
                              transition_perc_layer=0.2)  # fmt: skip
        return folder / "maps.avi"
