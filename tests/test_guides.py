"""The code of every guide runs as it stands, from the top, as one script."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from agents_by_hand import ports
from torch_geometric.data import Data

from hogwild import EnergyGNN
from hogwild.models.export import export
from hogwild.web.watch import watch

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = [*sorted((DOCS / "guides").glob("*.md")), DOCS / "extending.md"]


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
        assert str(page.relative_to(DOCS)) in menu
        assert page.stem == "index" or f"{page.name})" in listed


def test_the_five_agents_of_the_guide_settle(tmp_path):
    """Its commands, on free ports: five processes, which the page finds by the address of one."""
    (text,) = [
        block for block in blocks(DOCS / "guides" / "five-machines.md", "bash") if "--id 4" in block
    ]
    free = ports(5)
    for number, port in enumerate(free):
        text = text.replace(f"$at:2100{number}", f"$at:{port}")
    agent = f"{sys.executable} -m hogwild_node.command"
    text = text.replace("hogwild-agent", f"exec {agent}").replace("--seconds 600", "--seconds 60")
    assert text.count(agent) == 5
    ring = torch.tensor([[0, 1, 2, 3, 4, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 0, 1, 2, 3, 4]])
    house = Data(x=torch.randn(5, 1), edge_index=ring)
    export(EnergyGNN(1, out_channels=1, beta=1.0), tmp_path / "model.hog", data=house)
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    words = [bash, "-c", f"{text}\nread\nkill $(jobs -p)\nwait"]
    shell = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE)
    found = watch(f"127.0.0.1:{free[0]}")
    try:
        seen = {}
        for _ in range(600):
            time.sleep(0.1)
            seen = found.look().agents
            if len(seen) == 5 and all(words.settled for words in seen.values()):
                break
        assert [words.settled for words in seen.values()] == 5 * [True]
    finally:
        found.close()
        shell.communicate(b"\n", timeout=30)
