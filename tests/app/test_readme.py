"""README's Python works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.strip().splitlines()[0])
def test_python_block_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102 - our own README
    assert capsys.readouterr().out


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 2


def test_the_two_commands_come_first() -> None:
    commands = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    assert "[lab]" in commands[0]
    assert "hookviz lab" in commands[0]
    assert "[test]" in commands[1]
    assert "pytest" in commands[1]


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
