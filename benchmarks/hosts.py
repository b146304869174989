"""Where the app works, as a table: each host is started and driven in a real browser.

    python -m benchmarks.hosts [--only panel,voila] [--write]

A host that is not installed in the version named gets an environment of its own, beside this one
and with this one's packages behind its own (from pip, into ``~/.cache/hookviz-hosts``).
``--write`` puts the table into README.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
TABLE = re.compile(r"(?<=<!-- hosts -->\n).*?(?=<!-- end of hosts -->)", re.DOTALL)
KEPT = Path.home() / ".cache" / "hookviz-hosts"
HOSTS_TEST = "tests/journeys/test_journey_hosts.py"


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes:
        name: What people call it.
        package: Whose version is said; "" for this Python's.
        test: What shows that it works, as pytest names it.
        shows: What a person has there.
        needs: What is installed for it where this environment lacks it, as pip names it.
    """

    name: str
    package: str
    test: str
    shows: str
    needs: tuple[str, ...] = ()


WHOLE = "the whole app"
WITH_TRAINING = f"{WHOLE}, and a watched training"
FRONT_END = ("anywidget", "jupyterlab_widgets")
HOSTS = (
    Host("JupyterLab", "jupyterlab", "tests/journeys/test_journey_first_light.py", WHOLE),
    Host(
        "JupyterLab 4.2", "jupyterlab", "tests/journeys/test_journey_first_light.py", WHOLE,
        ("jupyterlab==4.2.*", "notebook==7.2.*", *FRONT_END),
    ),
    Host(
        "JupyterLab with jupyter-collaboration", "jupyter-collaboration",
        "tests/journeys/test_journey_many_users.py::test_two_people_in_one_notebook",
        "one app for all who have the notebook open",
        ("jupyter-collaboration", "jupyterlab", *FRONT_END),
    ),
    Host("Notebook 7", "notebook", f"{HOSTS_TEST}::test_notebook_7", WHOLE),
    Host("Voila", "voila", f"{HOSTS_TEST}::test_voila", WITH_TRAINING),
    Host("marimo", "marimo", f"{HOSTS_TEST}::test_marimo", WITH_TRAINING),
    Host("Solara", "solara", f"{HOSTS_TEST}::test_solara",
         "the whole app; anywidget's script comes from a content network",
         ("solara", "solara-assets", "ipyvuetify<3")),
    Host("Panel", "panel", f"{HOSTS_TEST}::test_panel",
         'the whole app, with `sizing_mode="stretch_width"`; anywidget\'s script comes from a '
         "content network", ("panel", "ipywidgets_bokeh")),
    Host("nbconvert to HTML", "nbconvert", "tests/widget/test_kernel.py -k html",
         "the last grids as a picture"),
    Host("IPython in a terminal", "ipython", "tests/app/test_readme.py -k no_front_end",
         "a sentence that says what to do"),
)  # fmt: skip


def python_for(host: Host) -> str:
    """The Python that has the host: this one, or one of an environment made for it."""
    if not host.needs:
        return sys.executable
    folder = KEPT / re.sub(r"\W+", "-", host.name.lower())
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "behind.pth").write_text(sysconfig.get_paths()["purelib"])
        # A server looks for its front ends in its own environment.
        own = [name for name in host.needs if name in ("jupyterlab", *FRONT_END)]
        other = [name for name in host.needs if name not in own]
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *other], check=True)
        if own:
            subprocess.run([*pip, "--ignore-installed", "--no-deps", *own], check=True)
    return str(python)


def tried(host: Host) -> tuple[str, bool]:
    """The host's version, and whether its test passes."""
    python = python_for(host)
    say = f"from importlib.metadata import version; print(version({host.package!r}))"
    version = subprocess.run([python, "-c", say], check=True, capture_output=True, text=True)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *host.test.split()],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    click.echo(f"{host.name} {version.stdout.strip()}: {last}", err=True)
    return version.stdout.strip(), done.returncode == 0 and " passed" in last


def row(host: Host, version: str, *, works: bool) -> str:
    return f"| {host.name} | {version} | {host.shows if works else '✗'} |"


@click.command(help=__doc__)
@click.option("--only", default="", help="Names, or parts of them, separated by commas.")
@click.option("--write", is_flag=True, help="Put the table into README.")
def main(only: str, *, write: bool) -> None:
    wanted = [name.strip().lower() for name in only.split(",")]
    text = README.read_text(encoding="utf-8")
    kept = {line.split(" | ")[0]: line for line in TABLE.findall(text)[0].splitlines()}
    rows = ["| host | version | what works |", "|---|---|---|"]
    for host in HOSTS:
        if any(part in host.name.lower() for part in wanted):
            version, works = tried(host)
            rows.append(row(host, version, works=works))
        elif f"| {host.name}" in kept:
            rows.append(kept[f"| {host.name}"])
    table = "\n".join(rows) + "\n"
    click.echo(table)
    if write:
        README.write_text(TABLE.sub(lambda _: table, text), encoding="utf-8")


if __name__ == "__main__":
    main()
