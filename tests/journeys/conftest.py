"""In: the machine's Chromium and this Python's JupyterLab. Out: fixtures for journeys.

Must not know: what a journey tests.

Without a browser the journeys are skipped and say why; with ``HOOKVIZ_REQUIRE_BROWSER=1`` (as CI
sets it) a missing browser is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

# With --import-mode=importlib a test folder is not on the path; the driver's modules lie here.
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
pytest.register_assert_rewrite("journey_lab", "journey_app")

from journey_app import App  # noqa: E402  (needs the path set above)
from journey_kernels import ADDRESS, WarmProcess  # noqa: E402  (needs the path set above)
from journey_lab import BROWSER_ARGUMENTS, BROWSER_NAMES, Lab, find_browser  # noqa: E402  (needs the path set above)
from journey_servers import (  # noqa: E402  (needs the path set above)
    REPOSITORY,
    LabServer,
    isolated_environment,
)

ARTEFACTS = REPOSITORY / "artefacts" / "journeys"
FAILURE = pytest.StashKey[str]()


def browser_required() -> bool:
    return os.environ.get("HOOKVIZ_REQUIRE_BROWSER", "") not in ("", "0")


def absent(reason: str) -> None:
    """Skip for this reason, or fail where CI requires the browser's journeys."""
    if browser_required():
        pytest.fail(f"{reason} (HOOKVIZ_REQUIRE_BROWSER is set)", pytrace=False)
    pytest.skip(reason)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Journeys come last: the quick tests speak first, and Playwright's event loop, which stays
    in this process once it has started, meets no other test."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember whether a test failed: its fixtures then keep what helps to find out why."""
    report = yield
    if report.when == "setup":  # the second try begins anew
        item.stash[FAILURE] = ""
    if report.failed:
        item.stash[FAILURE] = report.longreprtext
    return report


@pytest.fixture(scope="session")
def base_url() -> str | None:
    """pytest-playwright 0.10's own is a method, which pytest 9.2 warns about (an error here)."""
    return None


@pytest.fixture(scope="session")
def browser_type_launch_args(
    browser_type_launch_args: dict[str, Any], playwright: Any
) -> dict[str, Any]:
    """How pytest-playwright starts the browser: the system's Chromium, else Playwright's own."""
    found = find_browser(playwright.chromium.executable_path)
    if found is None:
        absent(
            f"no Chromium: none of {', '.join(BROWSER_NAMES)} is on PATH, and "
            "`playwright install chromium` has not been run"
        )
    return browser_type_launch_args | {"executable_path": found, "args": BROWSER_ARGUMENTS}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return browser_context_args | {
        "viewport": {"width": 1440, "height": 1000},
        "accept_downloads": True,
    }


class KeptPage:
    """One page for all journeys, until one fails: JupyterLab's start takes longer than most."""

    def __init__(self, browser: Browser, arguments: dict[str, Any]) -> None:
        self._browser = browser
        self._arguments = arguments
        self._page: Page | None = None

    def get(self) -> Page:
        if self._page is None:
            self._page = self._browser.new_context(**self._arguments).new_page()
        return self._page

    def tidy(self) -> None:
        """As in a new page, for whoever comes next; another host's page is not kept."""
        page = self.get()
        if "/lab" not in page.url:
            self.drop()
            return
        page.unroute_all()
        page.context.clear_permissions()
        page.set_viewport_size(self._arguments["viewport"])
        page.emulate_media(color_scheme="null", reduced_motion="null")

    def drop(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            page.context.close()


@pytest.fixture(scope="session")
def kept_page(browser: Browser, browser_context_args: dict[str, Any]) -> Iterator[KeptPage]:
    kept = KeptPage(browser, browser_context_args)
    yield kept
    kept.drop()


@pytest.fixture
def page(kept_page: KeptPage, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page of the journey before, as if it were new; a new one after a failure."""
    yield kept_page.get()
    if request.node.stash.get(FAILURE, ""):
        kept_page.drop()
    else:
        kept_page.tidy()


@pytest.fixture(scope="session")
def warm_kernels(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> Iterator[None]:
    """What the servers of the journeys start their kernels from."""
    if not sys.platform.startswith("linux"):
        yield
        return
    warm = WarmProcess(isolated_environment(tmp_path_factory.mktemp("warm")))
    os.environ[ADDRESS] = warm.address
    yield
    del os.environ[ADDRESS]
    warm.close()


@pytest.fixture(scope="session")
def lab_server(
    tmp_path_factory: pytest.TempPathFactory, browser: Any, warm_kernels: None
) -> Iterator[LabServer]:
    """One JupyterLab for all journeys (started only where there is a browser for it)."""
    folder = tmp_path_factory.mktemp("lab")
    server = LabServer(folder / "home", folder / "notebooks")
    with server:
        yield server
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(server.log, ARTEFACTS / "server.log")


@pytest.fixture
def journey_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")


@pytest.fixture
def lab(
    page: Any, lab_server: LabServer, request: pytest.FixtureRequest, journey_name: str
) -> Iterator[Lab]:
    """A driver without a notebook. At the end: no console error, and nothing left in the kernel."""
    lab_server.forget_theme()  # of a journey that ended in the dark
    lab = Lab(page, lab_server, ARTEFACTS)
    yield lab
    errors = lab.console_errors()
    failed = request.node.stash.get(FAILURE, "")
    try:
        if failed:
            lab.screenshot(f"{journey_name}_FAILED")
            server = lab_server.log.read_text(encoding="utf-8")
            text = "\n".join([failed, "", "console:", *lab.console, "", "server:", server])
            (ARTEFACTS / f"{journey_name}_FAILED.log").write_text(text, encoding="utf-8")
    finally:
        lab.leave(keep_kernel=not failed)
    assert failed or errors == [], "errors in the browser's console"


@pytest.fixture(scope="session")
def axe_source() -> str:
    """The text of axe-core, the accessibility checker that axe runs in the page.

    Looked for at ``$HOOKVIZ_AXE``, then in the checkout's git-ignored ``node_modules``, where
    ``npm install`` puts it; CI's requirement runs that command itself.
    """
    named = os.environ.get("HOOKVIZ_AXE")
    path = Path(named) if named else REPOSITORY / "node_modules" / "axe-core" / "axe.min.js"
    if not path.exists() and not named and browser_required() and shutil.which("npm"):
        install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
        subprocess.run(install, cwd=REPOSITORY, check=True)
    if not path.exists():
        absent(f"axe-core is not at {path}; run: npm install")
    return path.read_text(encoding="utf-8")


@pytest.fixture
def open_notebook(lab: Lab, journey_name: str) -> Callable[..., Lab]:
    """Open a new notebook of these cells and run them all."""

    def open_notebook(*cells: str, own_kernel: bool = False) -> Lab:
        lab.open(f"{journey_name}.ipynb", list(cells), own_kernel=own_kernel)
        lab.run_all()
        return lab

    return open_notebook


@pytest.fixture
def open_app(open_notebook: Callable[..., Lab]) -> Callable[..., tuple[Lab, App]]:
    """Open a notebook of these cells and wait for the app that its last cell shows."""

    def open_app(*cells: str, own_kernel: bool = False) -> tuple[Lab, App]:
        lab = open_notebook(*cells, own_kernel=own_kernel)
        return lab, App(lab.page, lab.output(len(cells) - 1)).wait_ready()

    return open_app
