"""The code of every guide runs as it stands, from the top, as one script."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language on a page, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.S)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_python_runs(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hogwild.rules._OWN", {})  # a guide registers a rule
    state = torch.get_rng_state()
    names: dict[str, object] = {"__name__": page.stem.replace("-", "_")}
    try:
        for block in blocks(page, "python"):
            exec(compile(block, page.name, "exec"), names)
    finally:
        torch.set_rng_state(state)


def test_every_guide_is_on_the_list():
    listed = (DOCS / "guides" / "index.md").read_text("utf-8")
    menu = (DOCS.parent / "mkdocs.yml").read_text("utf-8")
    for page in GUIDES:
        assert f"guides/{page.name}" in menu
        assert page.stem == "index" or f"({page.name}" in listed
