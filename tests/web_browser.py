"""A real browser for tests: Chromium without a screen."""

import contextlib
import shutil
from importlib.resources import files
from importlib.util import find_spec

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def missing():
    """What a test in a browser lacks here, in words; ``None``: nothing."""
    if find_spec("playwright") is None:
        return "Playwright is missing: pip install playwright"
    if program() is None:
        return "no Chromium was found: apt-get install chromium"
    return None


def program():
    """The browser's path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@contextlib.contextmanager
def chromium():
    """A browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        try:
            yield made
        finally:
            made.close()


def axe():
    """The text of axe-core; ``None``: it is not installed."""
    if find_spec("axe_playwright_python") is None:
        return None
    return (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
