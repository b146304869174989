"""``import hookviz`` and ``hookviz --help`` load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "torchvision", "matplotlib", "ipywidgets", "anywidget", "PIL", "numpy")

LIST_HEAVY = f"import sys; print([m for m in {HEAVY!r} if m in sys.modules])"


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_hookviz_loads_no_heavy_library() -> None:
    assert run_python(f"import hookviz, hookviz.errors; {LIST_HEAVY}") == "[]"


def test_the_test_above_can_fail() -> None:
    assert "'torch'" in run_python(f"import hookviz; hookviz.Activation; {LIST_HEAVY}")


def test_help_is_answered_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['hookviz', 'maps', '--help']\n"
        "from hookviz.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"{LIST_HEAVY}"
    )
    out = run_python(code)
    assert "Usage: hookviz maps" in out
    assert out.splitlines()[-1] == "[]"


def test_every_public_name_resolves() -> None:
    import hookviz

    for name in hookviz.__all__:
        assert getattr(hookviz, name) is not None, name
    assert set(hookviz.__all__) <= set(dir(hookviz))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import hookviz

    with pytest.raises(AttributeError, match="no attribute 'feature_map'"):
        hookviz.feature_map  # noqa: B018 - the access is the test
