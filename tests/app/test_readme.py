"""What README says that can be tried is tried: its Python, command lines, tables and claims."""

from __future__ import annotations

import importlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import matplotlib.figure
import numpy as np
import pytest
import torch
import torchvision
from click.testing import CliRunner
from PIL import Image
from torch import nn

import hookviz
import hookviz.widget
from hookviz.cli import cli
from hookviz.errors import HookvizError, ImageError

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FLAT = " ".join(README.split())
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
BASH = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def section(title: str) -> str:
    return re.split(r"^## ", README.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))


def ran(block: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own README
    return names


# The first one runs in a test of its own.
@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda b: b.strip().splitlines()[0])
def test_python_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran(block)
    assert capsys.readouterr().out


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3


def test_the_first_block_gives_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    names = ran(BLOCKS[0])
    assert capsys.readouterr().out
    assert "# a matplotlib Figure" in BLOCKS[0]
    assert isinstance(names["fig"], matplotlib.figure.Figure)
    assert "# grids, the network's input, manifest.json" in BLOCKS[0]
    written = {path.name for path in names["result"].folder.iterdir()}  # type: ignore[attr-defined]
    assert {"000_input.png", "manifest.json"} < written
    assert all("_grid_" in name for name in written - {"000_input.png", "manifest.json"})
    # "Each PNG carries model, weights, layer, scale and image hash; reproduce draws it again and
    # says whether it is the same."
    grid = next(p for p in names["result"].files if "features.0_" in p.name)  # type: ignore[attr-defined]
    with Image.open(grid) as image:
        image.load()
        assert {"model", "weights", "layer", "scale", "image_sha256"} <= set(image.text)  # type: ignore[attr-defined]
    assert hookviz.reproduce(grid).identical


def test_the_two_commands_come_first() -> None:
    assert "[lab]" in BASH[0]
    assert "hookviz lab" in BASH[0]
    assert "[test]" in BASH[1]
    assert "pytest" in BASH[1]


def test_the_extras_that_are_named_exist() -> None:
    extras = set(re.findall(r"'(?:\.|hookviz)\[(\w+)\]'", README))
    assert {"lab", "test", "bench"} <= extras <= set(PROJECT["optional-dependencies"])


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_benchmark_that_is_named_exists() -> None:
    named = re.findall(r"python -m benchmarks\.(\w+)`(?:, ((?:`\w+`,?\s*)+))?", README)
    names = {name for first, more in named for name in (first, *re.findall(r"`(\w+)`", more))}
    assert {"capture", "render", "export", "app", "features", "replay"} <= names
    for name in names:
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name


# ── command line


def command_lines() -> Iterator[list[str]]:
    """Every ``hookviz …`` of the bash blocks and the prose, as words."""
    lines = [line for block in BASH for line in block.splitlines()]
    lines += re.findall(r"`(hookviz [a-z][^`]*)`", README.replace("\\|", "|"))
    for line in lines:
        if match := re.search(r"(?:^|/|&& )hookviz ([a-z].*)", line):
            yield shlex.split(match[1])


def test_every_command_line_names_a_command_and_its_options() -> None:
    lines = list(command_lines())
    assert len(lines) >= 10
    for words in lines:
        command = cli.commands[words[0]]
        legal = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
        for word in words[1:]:
            option = word.strip("[]").split("=")[0]
            if option.startswith("-"):
                assert option in legal, words


def test_the_table_has_every_command_and_no_other() -> None:
    table = re.findall(r"^\| `hookviz (\w+)", section("Command line"), flags=re.MULTILINE)
    assert sorted(table) == sorted(cli.commands)


def test_the_notebooks_that_lab_takes_are_the_ones_named() -> None:
    (row,) = re.findall(r"^\| `hookviz lab.*$", README, flags=re.MULTILINE)
    argument = next(p for p in cli.commands["lab"].params if p.name == "notebook")
    assert isinstance(argument.type, click.Choice)
    named = re.search(r"\((`hookviz`.*?)\)", row)
    assert named is not None
    assert re.findall(r"`(\w+)`", named[1]) == list(argument.type.choices)
    for name in argument.type.choices:
        assert (ROOT / "notebooks" / f"{name}.ipynb").exists()


EXAMPLES = {
    "models": (["models", "vgg1 bn"], ["vgg16_bn", "IMAGENET1K_V1"]),
    "layers": (["layers", "vgg16"], ["name", "type", "parameters"]),
    "layers --image": (["layers", "vgg16", "--image", "chelsea.png"], ["calls", "shapes"]),
    "weights": (["weights"], ["cache"]),
    "doctor": (["doctor"], ["torch", "device", "front end", "cache", "bundled VGG16"]),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_command_shows_what_the_table_says(example: str) -> None:
    arguments, shown = EXAMPLES[example]
    result = CliRunner().invoke(cli, arguments, prog_name="hookviz")
    assert result.exit_code == 0, result.output
    for word in shown:
        assert word in result.stdout or (word == "name" and "layer " in result.stdout)


def test_the_job_without_a_screen_is_done_and_drawn_again() -> None:
    (words,) = [words for words in command_lines() if "chelsea.png" in words]
    result = CliRunner().invoke(cli, words, prog_name="hookviz")
    assert result.exit_code == 0, result.output
    folder = Path(result.stdout.strip())
    assert folder.parent == Path.cwd() / words[words.index("--out") + 1]
    assert (folder / "manifest.json").exists()
    grid = next(folder.glob("*features.0_*grid*.png"))
    again = CliRunner().invoke(cli, ["reproduce", str(grid)], prog_name="hookviz")
    assert again.stdout.startswith("identical")


# ── Python


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.conv(x))


def test_layers_are_selected_in_each_way_that_is_named() -> None:
    sentence = re.search(r"Layers are selected by (.*? predicate)\.", FLAT)
    assert sentence is not None
    net = Small()
    ways = {
        "name": "conv",
        "glob": "co*",
        "re.compile": re.compile("conv"),
        "module type": nn.Conv2d,
        "module object": net.conv,
        "predicate": lambda name, module: name == "conv",
    }
    for way, selector in ways.items():
        assert way in sentence[1]
        run = hookviz.feature_maps(net, hookviz.sample_image(), selector)
        assert run.layers == ("conv",)


def test_what_else_there_is_exists_and_every_edit_is_there() -> None:
    sentence = re.search(r"There are also ([^.]*)\.", FLAT)
    assert sentence is not None
    for name in re.findall(r"`(\w+)`", sentence[1]):
        assert hasattr(hookviz, name)
    capture = importlib.import_module("hookviz.capture")
    edits = re.search(r"edits \((.*?)\)", sentence[1])
    assert edits is not None
    for edit in edits[1].split(", "):
        assert any(name.split("_")[0] == edit for name in capture.__all__), edit


def test_any_image_and_what_is_refused() -> None:
    assert "above 50 MB or 64 million pixels a photo is refused with a sentence" in FLAT
    Image.new("1", (8001, 8001)).save("large.png")
    with pytest.raises(ImageError, match="64 million pixels"):
        hookviz.read_image("large.png")
    with pytest.raises(ImageError, match="50 MB"):
        hookviz.read_image(b"\x89PNG\r\n\x1a\n" + bytes(50_000_001))
    assert hookviz.read_image(np.full((4, 4, 4), 0, np.uint8)).image.getpixel((0, 0)) == (255,) * 3


def test_the_widgets_that_stand_alone_are_where_it_says() -> None:
    assert "`LayerTree`, `ImageInput` and `MapGallery` (in `hookviz.widget`)" in FLAT
    for name in ("LayerTree", "ImageInput", "MapGallery"):
        assert name in hookviz.widget.__all__


EXPLORED = """
import hookviz
app = hookviz.explore({arguments})
for name in ("layers", "image", "run", "figures"):
    getattr(app, name)
shown = []
import IPython.display
import hookviz.widget._explorer as explorer
explorer.show = lambda data, **_: shown.append(data["text/plain"])
app._ipython_display_()
print("shown:", shown[0])
app.close()
"""


@pytest.mark.parametrize("arguments", ["", "model=my_module, image='cat.jpg'"])
def test_the_app_opens_as_it_says_and_is_a_sentence_where_no_front_end_is(
    arguments: str, fresh_python, tmp_path: Path
) -> None:
    assert "explore()  # or explore(model=my_module, image=" in README
    assert "(a sentence stands in its place)" in FLAT
    with Image.open(ROOT / "assets" / "chelsea.png") as image:
        image.convert("RGB").save("cat.jpg")
    code = EXPLORED.format(arguments=arguments)
    if arguments:
        code = "import torch; my_module = torch.nn.Conv2d(3, 4, 3)\n" + code
    done = fresh_python.run(code, cwd=tmp_path)
    assert "shown: hookviz: the app needs a notebook that shows widgets" in done.stdout, done.stderr


def test_every_key_of_the_table_is_in_the_apps_help() -> None:
    table = re.search(r"\| key \| does \|.*?\n\n", README, flags=re.DOTALL)
    assert table is not None
    keys = set(re.findall(r"`(.)`", table[0]))
    keys |= {key for key in ("Enter", "Esc", "Page Up", "Page Down") if key in table[0]}
    scripts = "".join(
        path.read_text("utf-8") for path in (ROOT / "hookviz" / "widget").rglob("*.js")
    )
    helped = re.search(r"const KEYS = \[(.*?)\];", scripts, flags=re.DOTALL)
    assert helped is not None
    there = {key for keys in re.findall(r'\["([^"]+)",', helped[1]) for key in keys.split("  ")}
    assert {"/", "[", "]", ".", "e", "?"} <= keys
    assert keys <= there


def test_the_table_of_hosts_names_each_that_is_tried() -> None:
    source = (ROOT / "benchmarks" / "hosts.py").read_text("utf-8")
    table = README[README.index("<!-- hosts -->") : README.index("<!-- end of hosts -->")]
    rows = re.findall(r"^\| ([^|]+) \| \d[\w.]* \| ([^|]+) \|$", table, flags=re.MULTILINE)
    assert [name for name, _ in rows] == re.findall(r'\bHost\(\s*"([^"]+)"', source)
    assert not [name for name, works in rows if works == "✗"]


# ── the models


def test_untrained_models_are_marked_wherever_they_are_shown() -> None:
    assert "`weights=None` gives an untrained model that is marked UNTRAINED wherever" in FLAT
    model = hookviz.load_model("resnet18", weights=None, device="cpu")
    run = hookviz.feature_maps(model, hookviz.sample_image(), "conv1")
    texts = [text.get_text() for text in run.figure("conv1").findobj(matplotlib.text.Text)]
    assert any("UNTRAINED" in text for text in texts) or "UNTRAINED" in str(
        run.drawing("conv1").notes
    )
    assert "UNTRAINED" in str(run.predictions)
    assert "UNTRAINED" in run.export("out").manifest.read_text()


def test_the_environment_variables_that_are_named_are_read() -> None:
    source = "".join(p.read_text("utf-8") for p in (ROOT / "hookviz" / "models").glob("*.py"))
    for name in re.findall(r"`(HOOKVIZ_\w+)`", README):
        assert name in source
    result = CliRunner().invoke(cli, ["weights"], prog_name="hookviz")
    assert str(Path.cwd() / "cache") in result.stdout.replace("\n", "")  # TORCH_HOME, see above


def test_a_checkpoint_of_ones_own_loads_without_being_unpickled(tmp_path: Path) -> None:
    assert "`weights_only` or safetensors, never unpickled" in FLAT
    net = torchvision.models.resnet18(num_classes=7)
    torch.save(net.state_dict(), "my.pth")
    model = hookviz.load_model("resnet18", weights="my.pth", device="cpu")
    assert model.module.get_submodule("fc").out_features == 7
    torch.save(net, "whole.pth")
    with pytest.raises(HookvizError):
        hookviz.load_model("resnet18", weights="whole.pth", device="cpu")


def test_the_version_of_python_is_the_one_that_the_package_asks_for() -> None:
    named = re.search(r"needs Python (3\.\d+)", README)
    assert named is not None
    assert PROJECT["requires-python"] == f">={named[1]}"
