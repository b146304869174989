"""Prints the oldest releases that pyproject.toml allows, one constraint a line, for pip.

Of what is installed to use hookviz; those of the tests and tools are left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

NOT_FOR_USE = ("test", "dev", "bench", "docs")


def lower_bounds(pyproject: str) -> list[str]:
    """Requirements such as "matplotlib==3.10", of those with a lower bound.

    Args:
        pyproject: The text of the file.
    """
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    wanted += [one for name, ones in extras.items() if name not in NOT_FOR_USE for one in ones]
    found = [re.fullmatch(r"([\w.-]+)>=([\d.]+)", one) for one in wanted]
    return [f"{one[1]}=={one[2]}" for one in found if one]


if __name__ == "__main__":
    print("\n".join(lower_bounds(Path("pyproject.toml").read_text("utf-8"))))
