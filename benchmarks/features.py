"""What hookviz and its peers can do, each cell found by trying.

    python -m benchmarks.features [--tools hookviz,torchlens] [--rows grad-cam]

Every tool is asked for the same things on the same torchvision models (random weights, CPU, no
downloads) in the words of its own documentation (`feature_probes`, `feature_peers`,
`feature_drawers`); `feature_judges` knows what would be right. Where a tool has no API for a job,
its source is searched for one by name: found, the cell says "not tried".
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.metadata
import importlib.util
import inspect
import io
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch; commands that are started inherit it
os.environ["MPLBACKEND"] = "Agg"

import numpy as np
import torch
from PIL import Image

from benchmarks import feature_judges as judges
from benchmarks.feature_drawers import Featlens, MapExtrackt
from benchmarks.feature_judges import Answer
from benchmarks.feature_peers import Captum, GradCam, Torchcam, Torchextractor
from benchmarks.feature_probes import IMAGE, Hookviz, Nnsight, Tool, Torchlens

TOOLS = (
    Hookviz, Torchlens, Captum, GradCam, Torchcam, Nnsight, Featlens, MapExtrackt, Torchextractor,
)  # fmt: skip

REPLACES = r"replac|interven|ablat|edit|steer|patch(?!_size)"
DRAWS = r"draw|plot|figure|render|visual|show|picture|image"
ATTRIBUTES = r"attribution|grad_?cam|shapley|integrated|saliency"
# Row, judge, the method that a tool needs for it, and what its source is searched for without.
ROWS = (
    ("True values beside in-place ReLU", "values", "outputs", ""),
    ("Each call of a reused layer", "calls", "outputs", ""),
    ("A layer's inputs", "inputs", "inputs", r"input"),
    ("Gradient of a layer's output", "gradient", "gradient", r"grad"),
    ("Replace a layer's output", "replaced", "replaced", REPLACES),
    ("Early stop", "stopped", "outputs", ""),
    ("Nothing left after an error", "clean", "outputs", ""),
    ("Layer's maps drawn in one call", "picture", "picture", DRAWS),
    ("Picture states its real scale", "scale", "picture", DRAWS),
    ("NaN, Inf marked or counted", "nonfinite", "picture", r"nan(?!o|d|c)|finite"),
    ("Layers by glob or regex", "several", "several", ""),
    ("Unknown layer: close names", "names", "unknown", ""),
    ("JupyterLab widget for choosing layers", "widget", "outputs", ""),
    ("Command line for feature maps", "command", "outputs", ""),
    ("PNGs carry origin, redrawable", "origin", "picture", DRAWS),
    ("Functional operations too", "functional", "everything", ""),
    ("Draws the computation's graph", "graph", "graph", r"(?<!keep_)(?<!retain_)graph"),
    ("Attribution or CAM methods", "attribution", "attribution", ATTRIBUTES),
    ("Grad-CAM beside in-place ReLU", "gradcam", "gradcam", r"grad_?cam"),
    ("Grad-CAM of a frozen network", "frozen", "gradcam", r"grad_?cam"),
    ("Grad-CAM of a ViT's blocks as they are", "tokens", "gradcam", r"grad_?cam"),
    ("Channels ranked by ablation", "ranked", "ranked", r"ablat|sweep"),
    ("Attention of each head, output kept", "attention", "attention", r"attention|attn"),
    ("Picture of what a channel looks for", "looks_for", "looks_for", r"optvis|dream|feature_vis"),
    ("ViT attention rollout", "rollout", "rollout", r"rollout"),
    ("PCA colours shared across images", "across", "across", r"pca|principal"),
    ("Video of feature maps", "video", "video", r"video|movie|animat|gif"),
    ("Runs on a remote machine", "remote", "remote", r"remote|(?<!ob)server"),
)  # fmt: skip
KNOWN = {  # what a search finds that is no such API: read in the source of these versions
    ("captum", "remote"): "`RemoteLLMAttribution` is for language models",
    ("featlens", "attention"): "`attention` gives the rollout, not the heads",
    ("featlens", "attribution"): "its `saliency` is the size of the activations",
    ("hookviz", "across"): Hookviz.notes["across"],
    ("pytorch_grad_cam", "ranked"): "`AblationCAM` hands out a map; the drops stay inside",
    ("pytorch_grad_cam", "inputs"): "its hook is given the input and drops it",
    ("pytorch_grad_cam", "replaced"): "`AblationLayer` serves `AblationCAM` alone",
    ("pytorch_grad_cam", "across"): "`KPCA_CAM` is a CAM of one image",
    ("MapExtrackt", "inputs"): "its hook is given the input and drops it",
    ("nnsight", "picture"): "`image_processor` is Hugging Face's",
    ("nnsight", "scale"): "`image_processor` is Hugging Face's",
    ("nnsight", "origin"): "`image_processor` is Hugging Face's",
    ("torchcam", "attention"): "`LeGrad` keeps them for its map",
    ("torchcam", "inputs"): "its hook is given the input and drops it",
    ("torchcam", "replaced"): "`patch_count` counts a ViT's patches",
    ("torchlens", "across"): "`stats.PCA` gives numbers over many inputs, no picture",
    ("torchlens", "video"): "`animate_ops` steps through names and shapes, not maps",
}
ABSENT = "found by no run: no public function, class or parameter of such a name in its source"


def source_names(tool: Tool) -> set[str]:
    """Public functions, classes and parameters that the installed package defines."""
    found: set[str] = set()
    for file in judges.sources(tool):
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
    return {name for name in found if not name.startswith("_")}


def answer(tool: Tool, judge: str, method: str, pattern: str) -> Answer:
    job = tool.not_its_job.get(judge)
    if job and (not hasattr(tool, method) or run(tool, judge)[0] != "yes"):
        return "–", job
    if hasattr(tool, method) or (judge == "nonfinite" and hasattr(tool, "nonfinite")):
        return run(tool, judge)
    if not pattern:
        return "no", ""
    hits = sorted(n for n in source_names(tool) if re.search(pattern, n, re.IGNORECASE))
    if judge in tool.notes and judge == "remote":
        return "not tried", tool.notes[judge]
    if hits and (tool.package, judge) not in KNOWN:
        return "not tried", f"its source names `{'`, `'.join(hits[:3])}`"
    return "no", KNOWN[tool.package, judge] if hits else ABSENT


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # hookviz from its checkout
        return str(importlib.import_module(package).__version__)


def run(tool: Tool, judge: str) -> Answer:
    ask = getattr(judges, judge)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return ask(tool, Path(folder)) if len(inspect.signature(ask).parameters) > 1 else ask(tool)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.features", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--tools", default=",".join(t.package for t in TOOLS))
    parser.add_argument("--rows", default="", help="a regular expression; those that it finds")
    given = parser.parse_args(argv)
    wanted = given.tools.split(",")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tools = []
    for kind in TOOLS:
        if kind.package not in wanted:
            continue
        if importlib.util.find_spec(kind.package) is None:
            print(f"Not there: {kind.package}.", file=sys.stderr)
            continue
        tools.append(kind())
    notes: list[str] = []
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in (0, 1):
            noise = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
            IMAGE.append(Path(folder) / f"noise{seed}.png")
            Image.fromarray(noise).save(IMAGE[-1])
        for row, judge, method, pattern in ROWS:
            if not re.search(given.rows, row, re.IGNORECASE):
                continue
            cells = []
            for tool in tools:
                try:
                    said, note = answer(tool, judge, method, pattern)
                except Exception as error:  # the probe's fault until shown otherwise
                    said, note = "not tried", f"{type(error).__name__}: {str(error)[:150]}"
                if note and note not in notes:
                    notes.append(note)
                mark = f" ({notes.index(note) + 1})" if note else ""
                bold = f"**{said}**" if said == "yes" else said
                cells.append(bold + mark)
            lines.append(f"| {row} | {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    heads = [f"{t.package} {version(t.distribution or t.package)}" for t in tools]
    print(f"torch {torch.__version__}, VGG16 and ResNet-18 with random weights, 64×64, CPU\n")
    print(f"| | {' | '.join(heads)} |")
    print(f"|---|{'---|' * len(heads)}")
    print("\n".join(lines))
    print("\n– is not its job. " + " ".join(f"({n}) {note}." for n, note in enumerate(notes, 1)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
