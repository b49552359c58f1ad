"""The documentation names what there is, and only that."""

import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import hogwild
from hogwild.tasks import TASKS
from hogwild.training import MODELS, Config

DOCS = Path(__file__).parent.parent / "docs"


def listed():
    """Modules on the pages of docs/api, and which members of each (``None``: all)."""
    text = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "api").glob("*.md")))
    blocks = re.findall(r"^::: ([\w.]+)\n(?:    options:\n      members: \[(.*)\]\n)?", text, re.M)
    return {name: members.split(", ") if members else None for name, members in blocks}


@pytest.mark.parametrize("name", listed())
def test_modules_and_members_exist(name):
    module, members = importlib.import_module(name), listed()[name]
    for member in members or ():
        assert member in vars(module)


def test_every_package_is_listed():
    """Those that are for users: with names to import, and not the command line."""
    packages = [
        found.name
        for found in pkgutil.iter_modules(hogwild.__path__, "hogwild.")
        if found.ispkg and vars(importlib.import_module(found.name)).get("__all__")
    ]
    assert {"hogwild.models", "hogwild.training", "hogwild.tasks"} <= set(packages)
    assert set(packages) <= set(listed())


def test_every_public_name_is_on_the_first_page():
    text = (DOCS / "api" / "index.md").read_text("utf-8")
    named = set(re.findall(r"\[`(\w+)`\]", text))
    assert named == set(hogwild.__all__) - {"__version__"}


def test_nothing_is_fetched_to_read_a_page():
    """Scripts and styles of the site, and what KaTeX's style loads, come with it."""
    text = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    assert "https://" not in text
    files = re.findall(r"^  - ((?:vendor|javascripts)/\S+)$", text, re.M)
    assert len(files) == 3
    for name in files:
        assert (DOCS / name).is_file()
    style = DOCS / "vendor" / "katex" / "katex.min.css"
    fonts = set(re.findall(r"url\((.*?)\)", style.read_text("utf-8")))
    assert fonts
    assert all((style.parent / font).is_file() for font in fonts)


def test_training_names_every_task_and_model():
    text = (DOCS / "training.md").read_text("utf-8")
    tables = re.findall(r"^\| (`.*?) \|", text, re.M)
    names = {name for row in tables for name in re.findall(r"`([\w-]+)`", row)}
    assert {*TASKS, *MODELS} <= names


def test_the_configuration_file_is_one():
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "training.md").read_text("utf-8"), re.S)
    config = Config.of(**tomllib.loads(block))
    assert (config.task, config.decay) == ("chains", (0.98, 200))
