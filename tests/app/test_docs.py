"""The documentation site: it builds without a warning, asks no other host, and answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hookviz

pytest.importorskip("mkdocs")
lunr = pytest.importorskip("lunr")

ROOT = Path(__file__).resolve().parents[2]
# One worker builds the site, once.
pytestmark = [pytest.mark.xdist_group("docs"), pytest.mark.timeout(900)]

# What a person who knows PyTorch types first, and what second; the page that answers.
QUESTIONS = [
    ("output of intermediate layer", "layer output", "layer-output"),
    ("visualize feature maps", "feature maps of a layer", "feature-maps"),
    ("input of a layer", "layer input", "layer-input"),
    ("gradient of layer output", "backward hook", "gradient"),
    ("inplace relu wrong values", "in-place relu", "in-place-relu"),
    ("module called twice", "layer runs several times", "several-calls"),
    ("select layers by name pattern", "choose layers glob regex", "choose-layers"),
    ("ablate channel set to zero", "replace layer output", "replace"),
    ("stop forward early", "stop after layer", "stop-early"),
    ("extract features dataloader", "features over a data loader", "data-loader"),
    ("visualize filters conv1", "filters of a convolution", "filters"),
    ("receptive field", "which pixels does a place see", "receptive-field"),
    ("exact value at position", "read value at a place", "values"),
    ("load my checkpoint", "checkpoint pth", "checkpoint"),
    ("timm huggingface model", "timm model", "other-models"),
    ("custom transforms normalize", "own preprocessing", "preprocessing"),
    ("vit tokens to grid", "transformer tokens as image", "transformer-tokens"),
    ("attention weights vit", "attention maps", "attention"),
    ("gradcam", "grad-cam any layer", "grad-cam"),
    ("saliency integrated gradients", "which pixels count", "pixels"),
    ("channel importance", "which channels matter", "which-channels"),
    ("feature visualization activation maximization", "what does a channel look for",
     "what-a-channel-looks-for"),
    ("compare onnx export differs", "where do two models part", "two-models"),
    ("compare two images", "two images one layer", "two-images"),
    ("save png headless", "png files without display", "png-files"),
    ("reproduce figure", "draw png again", "reproduce"),
    ("same color scale several images", "one scale", "one-scale"),
    ("dead relu channels", "dead channels", "dead-channels"),
    ("top activating images", "images excite channel", "strongest-images"),
    ("gradient clipping", "clip gradients", "clip-gradients"),
    ("print layer shapes while running", "print what each layer does", "verbose"),
    ("video frames gif", "maps of each frame", "gif"),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = ["-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml", "-d", str(folder)]
    built = subprocess.run(
        [sys.executable, *command],
        capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-4000:]
    return folder


def pages(site: Path) -> dict[str, str]:
    return {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8")
        for path in site.rglob("*.html")
    }


def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    asked = re.compile(
        r"""<(?:script|img|iframe|source|video)[^>]*\bsrc=["']?(?:https?:)?//[^"' >]+"""
        r"""|<link(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^"' >]+"""
    )
    found = {page: asked.findall(html) for page, html in pages(site).items()}
    assert not {page: links for page, links in found.items() if links}
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8"))
    assert asked.search('<script src="https://example.org/x.js">')


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    html = "".join(text for page, text in pages(site).items() if page.startswith("reference/"))
    anchors = set(re.findall(r'id="(hookviz\.[\w.]+)"', html))
    missing = []
    for package in (
        "capture", "models", "images", "render", "run", "export", "comparison", "explanation",
        "surveys", "monitoring", "widget", "errors",
    ):  # fmt: skip
        module = __import__(f"hookviz.{package}", fromlist=["__all__"])
        names = getattr(module, "__all__", [])
        missing += [n for n in names if f"hookviz.{package}.{n}" not in anchors]
    assert not missing
    table = pages(site)["reference/index.html"]
    assert not [n for n in hookviz.__all__ if n != "__version__" and f">{n}<" not in table]


def test_each_picture_of_a_page_is_there_and_shows_something(site: Path) -> None:
    shown = 0
    for page, html in pages(site).items():
        for source in re.findall(r'<img[^>]*src="([^":]+\.png)"', html):
            picture = (site / page).parent / source
            assert picture.stat().st_size > 2000, (page, source)
            shown += 1
    assert shown >= 20


@pytest.fixture(scope="module")
def search(site: Path):  # type: ignore[no-untyped-def]
    """The site's own index, asked as its search box asks it (lunr, titles first)."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    return lunr.lunr(
        ref="location",
        fields=[{"field_name": "title", "boost": 1000}, {"field_name": "text", "boost": 1}],
        documents=index["docs"],
    )


@pytest.mark.parametrize(("first", "second", "answer"), QUESTIONS, ids=[q[2] for q in QUESTIONS])
def test_the_search_answers_within_two_tries(search, first: str, second: str, answer: str) -> None:  # type: ignore[no-untyped-def]
    wanted = f"how-to/{answer}.html"
    for words in (first, second):
        hits = search.search(re.sub(r"[^\w ]", " ", words))[:8]
        if wanted in [hit["ref"].split("#")[0] for hit in hits]:
            return
    raise AssertionError([hit["ref"] for hit in hits])


def test_each_how_to_page_is_asked_for_and_names_where_it_was_asked() -> None:
    folder = ROOT / "docs" / "pages" / "how-to"
    names = {path.stem for path in folder.glob("*.md")} - {"index"}
    assert names == {page for _, _, page in QUESTIONS}
    assert len(names) >= 30
    for name in names:
        text = (folder / f"{name}.md").read_text(encoding="utf-8")
        assert re.match(r"<!-- Asked in:\n  https://", text), name
        assert len(text.splitlines()) < 60, name  # one screen
