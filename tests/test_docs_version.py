"""The documentation of several releases stands side by side."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ("mike", "mkdocs", "material", "mkdocstrings")


def git(place, *words):
    return subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=place,
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_the_makefile_finds_the_version():
    """Major and minor number of the package."""
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    plan = subprocess.run(
        ["make", "-n", "docs-version"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    version = re.search(r'^version = "(\d+\.\d+)\.', text, re.M).group(1)
    assert f"--branch gh-pages {version} latest" in plan


@pytest.mark.slow
def test_two_versions_stand_side_by_side(tmp_path):
    """``make docs-version`` for two versions, on a branch of a copy of the repository: each has its
    pages, the newer one is the latest, and the root leads to it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing or shutil.which("make") is None:
        pytest.skip(f"missing: {', '.join(missing) or 'make'}: pip install hogwild-gnn[docs]")
    for name in ("docs", "src", "node"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "mkdocs.yml")
    git(tmp_path, "commit", "-q", "-m", "begin")
    binary = Path(sys.executable).parent
    names = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org"}
    names |= {key.replace("AUTHOR", "COMMITTER"): value for key, value in names.items()}
    path = f"{binary}{os.pathsep}{os.environ['PATH']}"
    for version in ("0.1", "0.2"):
        (tmp_path / "docs" / "index.md").write_text(f"# Release {version}\n")
        subprocess.run(  # set up already: this very environment
            ["make", "docs-version", f"VERSION={version}", f"BIN={binary}", "-o.venv/.stamp-docs"],
            cwd=tmp_path, check=True, env={**os.environ, **names, "PATH": path},
        )  # fmt: skip
    files = git(tmp_path, "ls-tree", "-r", "--name-only", "gh-pages").split()
    for folder in ("0.1", "0.2", "latest"):
        assert f"{folder}/guides/five-machines/index.html" in files
        assert f"{folder}/api/models/index.html" in files
    versions = json.loads(git(tmp_path, "show", "gh-pages:versions.json"))
    assert [each["version"] for each in versions] == ["0.2", "0.1"]
    assert versions[0]["aliases"] == ["latest"]
    assert "Release 0.1" in git(tmp_path, "show", "gh-pages:0.1/index.html")
    assert "Release 0.2" in git(tmp_path, "show", "gh-pages:latest/index.html")
    assert "latest" in git(tmp_path, "show", "gh-pages:index.html")
    assert git(tmp_path, "branch", "--show-current").strip() == "main"  # what is checked out stays
