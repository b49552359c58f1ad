"""The demonstration: its task, its numbers, its page, its command."""

import base64
import re
from html.parser import HTMLParser

import pytest
import torch
from scipy.sparse.csgraph import shortest_path
from tiny_runs import TINY
from torch_geometric.utils import is_undirected, to_scipy_sparse_matrix
from web_browser import chromium, missing

from hogwild.asynchrony.impairments import BernoulliLoss
from hogwild.demo import MODELS, ROWS, SETTINGS, Rumour, demo, study
from hogwild.errors import ConfigError
from hogwild.progress import shown, size


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "report.html"
    lines = []
    found = demo(path, TINY, 3, say=lines.append)
    return path.read_text("utf-8"), found, lines


class Page(HTMLParser):
    """What is in a page: headings, cells, pictures, and everything that names another address."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.cells, self.pictures, self.addresses, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "srcset", "data", "action"):
                (self.pictures if tag == "img" else self.addresses).append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def test_page_has_every_section_and_is_whole(page):
    text, _, _ = page
    found = Page(text)
    assert found.open == []  # every tag is closed
    assert found.headings == [
        "Every node's answer",
        "The task",
        "What happened",
        "Error by deadline",
        "What to try next",
    ]
    assert len(found.pictures) == 2
    assert "<h1>Graph neural networks, in step and out of step</h1>" in text  # not one a row
    assert f"3 trained models (GCN, GAT, energy GNN) in {len(ROWS)} rows" in text
    for picture in found.pictures:
        head, _, data = picture.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")


def test_page_begins_with_a_picture_and_fits_a_phone(page):
    """In a browser too, where there is one. Wide tables scroll by themselves."""
    text, _, _ = page
    before = re.sub(r"<style>.*?</style>|<[^>]+>", "", text[: text.index("<img")], flags=re.S)
    assert len(before.split()) < 120
    assert text.count('<div class="wide">\n<table>') == text.count("<table>") == 1
    assert "overflow-x: auto" in text
    assert not re.search(r"<img[^>]*style=", text)


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_page_is_as_wide_as_the_window(page, width, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page[0], "utf-8")
    with chromium() as browser:
        shown = browser.new_page(viewport={"width": width, "height": 800})
        shown.goto(path.as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        assert shown.evaluate("document.querySelector('img').getBoundingClientRect().top") < 800


def test_page_needs_no_network(page):
    text, _, _ = page
    assert Page(text).addresses == []
    text = re.sub(r"base64,[\w+/=]+", "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link", text)


def test_table_holds_what_was_computed(page):
    text, found, _ = page
    cells = Page(text).cells
    expected = ["nodes that are wrong", "in step", "S=1, D=2", "S=5, D=2", "S=5, D=10", "S=10, D=2",
                "S=5, D=2, 30% lost", "updates", "packets", "bytes"]  # fmt: skip
    for model, (name, *_) in ROWS.items():
        runs, y = found.results[model], torch.cat([g.y for g in Rumour(3, seed=3).graphs[4:]])
        expected.append(name)
        before = ((runs[5, 2, 0.0].prediction[:, 0] > 0) != (y == 1)).double().mean()
        expected.append(f"{100 * float(before):.1f} %")
        for setting in SETTINGS:
            outputs = runs[setting].run.predictions[..., 0]  # [Q, N]
            after = ((outputs > 0) != (y == 1)).double().mean(1)
            assert (runs[setting].settings.stagger, runs[setting].settings.delay) == setting[:2]
            lost = (BernoulliLoss(setting[2]),) if setting[2] else ()
            assert runs[setting].settings.impairments == lost
            expected.append(f"{100 * float(after.mean()):.1f} % ± {100 * float(after.std()):.1f}")
        lossy = runs[5, 2, 0.3].run
        expected += [shown(float(lossy.updates.double().mean())),
                     shown(float(lossy.packets.double().mean())),
                     size(float(lossy.bytes.double().mean()))]  # fmt: skip
    assert cells == expected
    assert found.guessing == 0.5
    assert "50 % of the nodes" in text


@pytest.mark.slow
def test_a_seed_gives_the_same_numbers(page):
    assert study(TINY, 3).rows() == page[1].rows()


def test_progress(page):
    lines = page[2]
    steps = len(MODELS) + len(ROWS)
    begun = [line[:5].rstrip("]") for line in lines if line.startswith("[")]
    assert begun == [f"[{i}/{steps}"[:5] for i in range(1, steps + 1)]


@pytest.mark.parametrize("seed", [0, 7])
def test_task(seed):
    task = Rumour(6, seed=seed)
    for g, data in enumerate(task.graphs):
        n = data.num_nodes
        assert is_undirected(data.edge_index)
        hops = shortest_path(
            to_scipy_sparse_matrix(data.edge_index, num_nodes=n).tocsr(), unweighted=True
        )
        assert hops.max() <= 5  # five layers suffice
        told = int(data.x.sum(1).argmax())
        assert data.x.sum() == data.x[told, data.y[0]] == 1
        assert data.hops.tolist() == hops[told].tolist()
        assert data.y.tolist() == [g % 2] * n
    assert [len(x) for x in (task.fixed.train, task.fixed.val, task.fixed.test)] == [8, 2, 2]
    for a, b in zip(task.graphs[::2], task.graphs[1::2], strict=True):
        assert torch.equal(a.edge_index, b.edge_index)
    with pytest.raises(ConfigError, match="pairs=2"):
        Rumour(2)
