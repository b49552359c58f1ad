"""The documentation names what there is, and only that."""

import importlib
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch
from tiny_runs import graphs

import hogwild
from hogwild.cli import VERBS, verb
from hogwild.cli.options import parse
from hogwild.graph.inputs import SAMPLED
from hogwild.tasks import TASKS
from hogwild.training import MODELS, Config
from hogwild_node.options import parser

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted([*DOCS.parent.glob("*.md"), *DOCS.rglob("*.md")])


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


def anchors(page):
    """Where a link can lead on a page: its headings, and the anchors that it names itself."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    titles = (
        re.sub(r"[^\w\s-]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, re.M)
    )
    named = re.findall(r'<a id="(.*?)">', text)
    return {re.sub(r"[-\s]+", "-", title.strip()) for title in titles} | {*named}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        if not name.startswith(("http", "mailto")):
            found = page.parent / name if name else page
            assert found.exists(), link
            assert not anchor or anchor in anchors(found), link


def test_training_names_every_task_and_model():
    text = (DOCS / "training.md").read_text("utf-8")
    tables = re.findall(r"^\| (`.*?) \|", text, re.M)
    names = {name for row in tables for name in re.findall(r"`([\w-]+)`", row)}
    ours = {name for name, entry in MODELS.items() if entry.type.__module__.startswith("hogwild.")}
    assert {*TASKS, *ours} <= names  # experiments add models of their own


def test_the_configuration_file_is_one():
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "training.md").read_text("utf-8"), re.S)
    config = Config.of(**tomllib.loads(block))
    assert (config.task, config.decay) == ("chains", (0.98, 200))


PAGE = DOCS / "models.md"


def test_the_blocks_of_the_page(capsys):
    """The same model in two ways, and an explanation with a number for every edge."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S):
        exec(block, names)
    assert len({sum(p.numel() for p in names[m].parameters()) for m in ("model", "same")}) == 1
    assert capsys.readouterr().out.count(".") == names["edge_index"].size(1)


def test_the_loop_in_the_documentation():
    """A plain PyG loop, run as it stands there."""
    text = (DOCS / "training.md").read_text("utf-8")
    (loop,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if "standardize(" in b]
    found = []
    for change in ((1.0, 0.0), (1e6, 0.0)):
        torch.manual_seed(0)
        data = graphs(*change, count=8, dtype=torch.float32)
        names = {"hogwild": hogwild, "torch": torch, "graphs": data}
        exec(loop, names | {"num_features": 2, "num_classes": 2}, names)
        model = names["model"]
        assert model.features.fitted
        found.append(torch.cat([model(g.x, g.edge_index) for g in data]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


def test_the_documentation_names_what_is_recognised_and_what_is_not():
    text = (DOCS / "training.md").read_text("utf-8")
    for name in (*SAMPLED, "RandomNodeLoader", "ClusterLoader", "data.subgraph"):
        assert f"`{name}" in text


def test_the_guide_to_graphs_that_move(capsys):
    """All code of the page, run from the top as it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "motion.md").read_text("utf-8"), re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    seen, ana = names["seen"], names["ana"]
    assert seen.recovery().isfinite().all()
    assert ana.recovery().isfinite().all()
    assert names["restarted"].price["bytes"] < names["caching"].price["bytes"]
    assert names["solution"].converged.all()
    assert "packets of a robot in 100 ticks" in capsys.readouterr().out


def test_every_verb_is_on_the_page_of_commands():
    text = (DOCS / "commands.md").read_text("utf-8")
    assert {*VERBS} == set(re.findall(r"^hogwild (\w+)", text, re.M))


def commands():
    """Every call of ``hogwild`` and ``hogwild-agent`` in a block for a shell, as words."""
    pages = [DOCS.parent / "README.md", DOCS.parent / "node" / "README.md", *DOCS.rglob("*.md")]
    for page in pages:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removesuffix("&"), comments=True)
                if words and words[0] in ("hogwild", "hogwild-agent"):
                    yield pytest.param(words, id=f"{page.stem}: {' '.join(words)}"[:80])


@pytest.mark.parametrize("words", list(commands()))
def test_every_command_has_the_options_that_it_is_given(words):
    if words[0] == "hogwild-agent":
        parser().parse_args(words[1:])
    else:
        parse(verb(words[1]), words[2:], f"hogwild {words[1]}")
