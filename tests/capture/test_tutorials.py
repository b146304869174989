"""The eight classic hook tutorials: `notebooks/hooks.ipynb`, run in a kernel, section by section.

Every cell asserts its values; these tests see that each section ran, asserts what it has to, and
warned of nothing. One execution serves them all.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.xdist_group("tutorials")

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "hooks.ipynb"

# What each section has to assert, as text of its code.
SECTIONS = {
    1: ["(2, 3, 32, 32), (2, 3, 32, 32), (1, 3, 32, 32)", 'capture.input("features", run=run), x'],
    2: ["isinstance(child, nn.ReLU6)", "- gave).abs().sum() == 0", "nn.init.ones_"],
    3: ["(1, 64, 224, 224)", '{"Conv2d1": "features.0"}', '.min() < 0'],
    4: ["assert y.grad is None", "retain_grad()", 'capture.gradient("y").tolist() == [6.0, 12.0]'],
    5: [
        '["forward pre-hook", "forward", "forward hook", "full backward hook"]',
        '{"old": (2, 4, 8, 8), "new": (2, 3, 8, 8)}',
    ],
    6: ['("maxpool", [10, 64, 56, 56])', '("fc", [10, 1000])', "VerboseExecution(resnet50)"],
    7: ["[10, 2048, 7, 7]", "[10, 2048, 1, 1]", '(resnet50, ["layer4", "avgpool"])'],
    8: ["value=0.001", 'skipped == ("conv1.weight",)', "[0.447, 0.894]", "[0.707, 0.707]"],
}  # fmt: skip


def sections(notebook) -> dict[int, list]:
    """Code cells under the number of their heading; 0 before the first."""
    found: dict[int, list] = {0: []}
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = re.match(r"## (\d+)\.", cell.source)
            number = int(heading[1]) if heading else number
        else:
            found.setdefault(number, []).append(cell)
    return found


@pytest.fixture(scope="module")
def executed():
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=280, kernel_name="python3", allow_errors=True).execute()
    return sections(notebook)


def test_committed_without_output():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert sorted(sections(notebook)) == list(range(9))


@pytest.mark.parametrize("number", SECTIONS)
def test_section_asserts_its_values(number):
    cells = sections(nbformat.read(NOTEBOOK, as_version=4))[number]
    text = "\n".join(cell.source for cell in cells)
    assert len(cells) >= 2  # PyTorch alone, and hookviz
    for part in SECTIONS[number]:
        assert part in text
    for cell in cells:
        assert "assert " in cell.source


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, *SECTIONS])
def test_section_runs(executed, number):
    for cell in executed[number]:
        for output in cell.outputs:
            assert output.output_type != "error", f"{output.get('ename')}: {output.get('evalue')}"
            assert output.get("name") != "stderr", output.get("text")
        assert cell.execution_count is not None
