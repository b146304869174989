"""The notebooks run from top to bottom, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def executed(name: str, folder: Path) -> Any:
    """A notebook after all of its cells."""
    # Imported here, as every worker collects these tests and one of them runs notebooks: nbformat
    # builds the grammars of addresses, for two seconds.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["hookviz.ipynb", "your_model.ipynb", "explain.ipynb", "survey.ipynb", "live.ipynb"],
)
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = executed(name, tmp_path)
    shown = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert not [o for o in shown if o.output_type == "error"]
    assert not [o for o in shown if o.get("name") == "stderr" and "Traceback" in o.text]
    assert [o for o in shown if "image/png" in o.get("data", {})], "no picture was shown"
    widgets = [o for o in shown if "application/vnd.jupyter.widget-view+json" in o.get("data", {})]
    assert len(widgets) == 1, "the app is displayed once"


@pytest.mark.slow
def test_the_notebook_about_training_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = executed("training.ipynb", tmp_path)
    shown = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert len([o for o in shown if "image/png" in o.get("data", {})]) == 7
    said = "".join(o.text for o in shown if o.output_type == "stream" and o.name == "stdout")
    assert "Step 31: 64 of 64 channels of layer 'relu' (ReLU), call 3 of 3 are dead" in said
    assert "Step 21: the output of layer 'conv2' (Conv2d) has" in said
