"""Generated C computes what the NumPy rules compute."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from c_nodes import CC, CNode, Library, compiled, filed
from helpers import DOUBLE
from models.test_export import MODELS as EXPORTED

from hogwild import GCN, GNN, EnergyGNN, SoftEnergyGNN
from hogwild.models import Features, GSDConv
from hogwild_node import model as node_models
from hogwild_node.c99 import generate
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.model import Neighbour
from hogwild_node.packets import HEADER, Edge, Link
from hogwild_node.registers import Registers

needs_compiler = pytest.mark.skipif(CC is None, reason="there is no C compiler")

MODELS = {name: make for name, make in EXPORTED.items() if not name.startswith(("gcn", "learned"))}
MODELS |= {
    "affine": lambda: EnergyGNN(
        3, out_channels=2, heads=2, concat=False, message="node", edge_dim=2, message_channels=3,
        widths=(),
    ),
    "soft, sums": lambda: SoftEnergyGNN(
        3, out_channels=2, hidden_channels=3, aggr="sum", max_degree=6, local_channels=4
    ),
    "soft, layer norm": lambda: SoftEnergyGNN(
        3, out_channels=2, hidden_channels=4, condition=9.0, norm="layer"
    ),
    "soft, batch norm": lambda: SoftEnergyGNN(
        3, out_channels=2, hidden_channels=4, condition=9.0, norm="batch", encoder=None
    ),
    "encoded": lambda: GNN(GSDConv(4), out_channels=2, features=Features(3, encoder=(5, 4))),
}  # fmt: skip


def trained(make):
    """A model whose features are standardised, as training leaves it."""
    torch.manual_seed(0)
    model = make().double().eval()
    if isinstance(model, SoftEnergyGNN):  # fresh parameters ignore half of what they read
        for p in model.conv.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.3)
        for name, statistic in model.named_buffers():
            if name.endswith(("mean", "variance")):
                statistic.uniform_(0.5, 1.5)
    for part in (model.features.nodes, model.features.edges):
        if part is not None:
            part.fit(5.0 + 3.0 * torch.randn(20, part.channels, **DOUBLE))
    return model


class Reference:
    """A node in NumPy, as an agent has it."""

    def __init__(self, file, features):
        self.model = node_models.of(file)
        self.features, self.links = self.model.encode(features), {}
        rule = "gradient" if "gradient" in self.model.rules else "fixed-point"
        self.work = Registers(
            self.model, rule, self.features, precision="float64", tolerance=0.0, h=None
        )

    def join(self, slot, near):
        told = [near.features] + ([near.back_attr] if self.work.extra(near).size else [])
        edge = Edge(None, near.edge_attr, near.weight)
        link = self.links.get(slot, Link(edge, incarnation=1))
        features = np.concatenate(told)
        self.links[slot] = replace(link, edge=edge, degree=near.degree, features=features)

    def hear(self, slot, numbers):
        raw = bytes(HEADER.size) + numbers.astype("<f8").tobytes()
        self.links[slot].broadcast, self.links[slot].letter = self.work.format.read_data(raw)

    def update(self):
        self.work.meet(self.features, dict(sorted(self.links.items())), 0.0)
        self.work.update(0.0, lambda: None)

    def say(self, slot):
        (raw,) = self.work.data(self.work.format.header(1), slot, 0.0)
        return np.frombuffer(raw, "<f8", offset=HEADER.size)


def packet(random, k, numbers):
    """Random numbers as a neighbour might send them: curvature blocks are positive definite."""
    if numbers == k:
        return random.normal(size=k)
    root = random.normal(size=(k, k))
    block = 0.1 * root @ root.T + 0.1 * np.eye(k)
    return np.concatenate([random.normal(size=2 * k), block[np.triu_indices(k)]])


def pair(file, library, degree, random):
    """The same node in C and in NumPy, with neighbours that have said something. Slots are not in
    order, and all numbers are exact in the library's precision."""

    def drawn(*size):
        return (5.0 + random.normal(size=size)).astype(library.dtype).astype(np.float64)

    x, edge_dim = drawn(3), file.config["edge_dim"]
    ours, theirs = CNode(library, x), Reference(file, x)
    q = theirs.model.told_channels
    for slot in random.permutation(8)[:degree].tolist():
        attr, back = (None if edge_dim is None else drawn(edge_dim) for _ in range(2))
        weight, there = random.integers(1, 8) / 4, 1 + random.integers(1, 20) / 4
        near = Neighbour(drawn(q), there, attr, weight, back)
        said = packet(random, library.channels, library.numbers).astype(library.dtype)
        assert ours.join(slot, near)
        assert ours.hear(slot, said)
        theirs.join(slot, near)
        theirs.hear(slot, said)
    return ours, theirs


def compare(ours, theirs, rtol):
    """Embeddings, residuals and packets agree, relative to the largest entry."""
    found, expected = [ours.h], [theirs.work.h[0, :, 0]]
    for slot in theirs.links:
        k = len(found[0])
        one, two = ours.say(slot), theirs.say(slot)
        found += [one[:k], one[k : 2 * k], one[2 * k :]]
        expected += [two[:k], two[k : 2 * k], two[2 * k :]]
    for one, two in zip(found, expected, strict=True):
        scale = max(np.abs(two).max(initial=0.0), 1.0)
        np.testing.assert_allclose(one, two, rtol=0, atol=rtol * scale)
    residual = theirs.work.residual
    assert abs(ours.residual - residual) <= rtol * max(residual, 1.0)


@needs_compiler
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("name", MODELS)
def test_updates_are_those_of_the_rule(name, dtype, rtol):
    file = filed(trained(MODELS[name]))
    library = Library(file, dtype)
    for degree in (0, 1, 3, 8):
        ours, theirs = pair(file, library, degree, np.random.default_rng(degree))
        assert ours.update()
        theirs.update()
        compare(ours, theirs, rtol)
        prediction = theirs.model.predict(ours.h)
        np.testing.assert_allclose(
            ours.predict(), prediction, rtol=max(rtol, 1e-11), atol=max(rtol, 1e-11)
        )
        if dtype == "float64":
            for _ in range(100):
                assert ours.update()
                theirs.update()
            compare(ours, theirs, 1e-7)


@needs_compiler
@pytest.mark.parametrize("name", ["heads", "denoising", "soft", "ignn"])
def test_neighbours_come_and_go(name):
    """As in an agent: memory stays when features change, and is lost when neighbours do."""
    file = filed(trained(MODELS[name]))
    library, random = Library(file), np.random.default_rng(3)
    ours, theirs = pair(file, library, 4, random)

    def both(times=3):
        for _ in range(times):
            assert ours.update()
            theirs.update()
            compare(ours, theirs, 1e-11)

    both()
    x = random.normal(size=3)
    theirs.features = theirs.model.encode(x)
    assert ours.set_features(x)
    slot, link = next(iter(theirs.links.items()))
    q, attr = theirs.model.told_channels, link.edge.edge_attr
    back = None if attr is None else attr - 1.0
    old = Neighbour(link.features[:q], link.degree, attr, link.edge.weight, back)
    moved = [None if a is None else a + 1.0 for a in (attr, back)]
    new = Neighbour(old.features + 0.5, 7.0, moved[0], old.weight, moved[1])
    assert ours.join(slot, new)
    assert ours.say(slot) is None  # the letters do not fit the new features yet
    theirs.join(slot, new)
    both()
    del theirs.links[slot]
    assert ours.leave(slot)
    both()
    assert ours.join(slot, old)
    theirs.join(slot, old)  # nothing was heard of the new neighbour
    both()
    assert ours.degree == 1.0 + sum(link.edge.weight for link in theirs.links.values())


@needs_compiler
def test_what_does_not_fit_is_refused_and_changes_nothing():
    file = filed(trained(MODELS["edge features"]))
    library = Library(file, max_degree=2)
    x, edge = np.ones(3), np.ones(2)
    good = Neighbour(x, 2.0, edge, 1.0)
    node = CNode(library, x)
    assert node.join(0, good)
    assert node.update()
    before = node.state.raw
    for bad in (
        Neighbour(x * np.nan, 2.0, edge, 1.0),
        Neighbour(x, 0.5, edge, 1.0),
        Neighbour(x, np.inf, edge, 1.0),
        Neighbour(x, 2.0, None, 1.0),
        Neighbour(x, 2.0, edge * np.inf, 1.0),
        Neighbour(x, 2.0, edge, -1.0),
        Neighbour(x, 2.0, edge, np.nan),
    ):
        assert not node.join(0, bad)
        assert not node.join(1, bad)
    for slot in (-1, 2):
        assert not node.join(slot, good)
    numbers = np.ones(library.numbers)
    for slot in (-1, 1, 2):
        assert not node.leave(slot)
        assert not node.hear(slot, numbers)
        assert node.say(slot) is None
    assert not node.hear(0, numbers * np.nan)
    assert not node.set_features([0.0, np.inf, 0.0])
    assert node.state.raw == before


@needs_compiler
def test_numbers_that_overflow_begin_anew():
    """As an agent does; the node is well again when its neighbour is."""
    library = Library(filed(trained(MODELS["edge"])), "float32")
    node = CNode(library, np.ones(3))
    assert node.join(0, Neighbour(np.ones(3)))
    assert node.hear(0, np.full(library.numbers, 3e38))
    assert not node.update()
    assert np.array_equal(node.h, np.zeros(2))
    assert np.isfinite(node.say(0)).all()
    assert node.hear(0, np.zeros(library.numbers))
    assert node.leave(0)
    assert node.update()


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda: GCN(3, out_channels=1), {}, ModelFileError, "kind 'gcn' cannot be written in C"),
        (MODELS["edge"], {"dtype": "float16"}, SetupError, "dtype='float16'; expected one of"),
        (MODELS["edge"], {"max_degree": 0}, SetupError, "max_degree=0; expected a positive"),
        (MODELS["edge"], {"max_degree": 2.5}, SetupError, "max_degree=2.5; expected a positive"),
    ],
)
def test_what_cannot_be_written_is_refused(make, options, error, words):
    with pytest.raises(error, match=words):
        generate(filed(trained(make)), **options)


def test_parameters_that_are_not_finite_are_refused():
    file = filed(trained(MODELS["edge"]))
    file.tensors["readout.node.bias.0"][0] = 1e300
    with pytest.raises(ModelFileError, match=r"1e\+300, which is not finite in float32"):
        generate(file)
    assert "1e+300" in generate(file, dtype="float64")


PROGRAM = """
#include <stdlib.h>
static hog_real number(void) { return (hog_real)rand() / (hog_real)RAND_MAX - (hog_real)0.5; }
static void draw(hog_real *x, int n) { for (int i = 0; i < n; i++) x[i] = number(); }
/* Two agents exchange packets; whether they have met. Damaged packets may keep them apart, because
 * packets have no checksum of their own. */
static int speak(int damage)
{
    hog_agent agent[2];
    hog_real x[HOG_FEATURES], edge[HOG_EDGE_FEATURES + 1];
    uint8_t raw[HOG_LONGEST];
    draw(edge, HOG_EDGE_FEATURES + 1);
    for (int i = 0; i < 2; i++) {
        draw(x, HOG_FEATURES);
        hog_agent_init(&agent[i], x, (uint32_t)(7 + i), 0);
        hog_agent_link(&agent[i], i, 1, HOG_EDGE_FEATURES ? edge : 0, 0);
    }
    for (int turn = 0; turn < 600; turn++) {
        int from = turn % 2;
        double now = 0.05 * turn;
        hog_agent_turn(&agent[from], now);
        for (int slot = -1; slot <= HOG_SLOTS; slot++)
            for (int kind = 0; kind < 2; kind++) {
                size_t size = kind ? hog_agent_data(&agent[from], slot, raw, now)
                                   : hog_agent_hello(&agent[from], slot, raw, now);
                size_t at = size ? (size_t)rand() % size : 0;
                if (damage && size && rand() % 4 == 0) raw[at] ^= (uint8_t)(rand() % 256);
                if (damage && rand() % 9 == 0) size /= 2;
                if (size) hog_agent_receive(&agent[!from], !from, raw, size, now);
            }
    }
    return agent[0].node.near[0].taken && agent[1].node.near[1].taken && agent[0].updates > 100;
}

int main(void)
{
    hog_node node;
    hog_real x[HOG_FEATURES], edge[HOG_JOIN_FEATURES + 1], heard[HOG_NUMBERS], out[HOG_OUTPUTS];
    srand(1);
    draw(x, HOG_FEATURES);
    if (!hog_init(&node, x)) return 1;
    for (int turn = 0; turn < 300; turn++) {
        int slot = rand() % (HOG_SLOTS + 2) - 1;
        draw(x, HOG_FEATURES);
        draw(edge, HOG_JOIN_FEATURES + 1);
        draw(heard, HOG_NUMBERS);
        if (rand() % 3 == 0) hog_join(&node, slot, 1, x, 2, HOG_EDGE_FEATURES ? edge : 0);
        if (rand() % 9 == 0) hog_leave(&node, slot);
        hog_hear(&node, slot, heard);
        hog_update(&node);
        hog_say(&node, slot, heard);
        hog_predict(&node, out);
    }
    speak(1);
    return isfinite(node.h[0]) && speak(0) ? 0 : 2;
}
"""


FLAGS = {
    "sanitizers": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0"],
    "optimised": ["-O2", "-Wshadow"],  # compilers warn of more, and every warning is an error
}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_programs_end_well(name, dtype, flags):
    text = generate(filed(trained(MODELS[name])), dtype=dtype, max_degree=5)
    program = compiled(text, *FLAGS[flags], out="node", main=PROGRAM)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    shutil.rmtree(program.parent)
    assert done.returncode == 0, done.stderr
