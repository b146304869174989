"""What the tests of pictures share: the option that rewrites golden pictures."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-rewrite",
        action="store_true",
        help="write the golden pictures of tests/render/golden anew instead of comparing",
    )
