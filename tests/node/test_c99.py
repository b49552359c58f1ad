"""Generated C computes what the NumPy rules compute."""

import subprocess

import numpy as np
import pytest
import torch
from c_nodes import CC, CNode, Library, compiled, filed
from helpers import DOUBLE, grid
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild import EIGNN, GCN, GSDGNN, IGNN, EnergyGNN, Inputs
from hogwild_node import model as node_models
from hogwild_node.c99 import generate
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.model import Neighbour, star_of

needs_compiler = pytest.mark.skipif(CC is None, reason="there is no C compiler")

MODELS = {
    "edge": lambda **o: EnergyGNN(3, out_channels=2, **o),
    "edge features": lambda **o: EnergyGNN(3, out_channels=2, edge_dim=2, **o),
    "node": lambda **o: EnergyGNN(3, out_channels=2, message="node", **o),
    "heads": lambda **o: EnergyGNN(3, out_channels=2, heads=3, edge_dim=2, **o),
    "averaged heads": lambda **o: EnergyGNN(
        3, out_channels=2, heads=2, concat=False, message="node", edge_dim=2, **o
    ),
    "mean": lambda **o: EnergyGNN(3, out_channels=2, aggr="mean", act="squareplus", **o),
    "normalised": lambda **o: EnergyGNN(3, out_channels=2, normalize=True, gate="relu", **o),
    "wide": lambda **o: EnergyGNN(3, out_channels=2, hidden_channels=8, widths=(6, 5, 3), **o),
    "denoising": lambda **o: GSDGNN(3, out_channels=2, **o),
    "ignn": lambda **o: IGNN(3, out_channels=2, act="leaky_relu", **o),
    "ignn, tanh": lambda **o: IGNN(3, out_channels=2, act="tanh", hidden_channels=4, **o),
    "eignn": lambda **o: EIGNN(3, out_channels=2, **o),
    "eignn, no encoder": lambda **o: EIGNN(3, out_channels=2, hidden_channels=3, **o),
}


def trained(make, seed=0):
    """A model whose features are standardised, as training leaves it."""
    torch.manual_seed(seed)
    model = make().double().eval()
    for part in (model.features.nodes, model.features.edges):
        if part is not None:
            part.fit(5.0 + 3.0 * torch.randn(20, part.channels, **DOUBLE))
    return model


class Reference:
    """A node in NumPy, as an agent uses its rule."""

    def __init__(self, file, features):
        self.model, self.features = node_models.of(file), features
        self.h = np.zeros((1, self.model.channels, 1))
        self.name = "gradient" if "gradient" in self.model.rules else "fixed-point"
        self.near, self.heard = {}, {}

    def begin(self):
        """Neighbours have joined or left."""
        self.star = star_of(len(self.near))
        self.rule = self.model.rule(self.name, self.posed(), self.star)
        self.letters = self.rule.begin(self.h, self.views()[0])

    def posed(self):
        return self.model.pose(self.features, [self.near[s] for s in sorted(self.near)])

    def views(self):
        k, m = self.model.channels, self.rule.letter
        inbox, mail = np.zeros((1, k, len(self.near))), np.zeros((1, m, len(self.near)))
        for place, slot in enumerate(sorted(self.near)):
            if slot in self.heard:
                inbox[0, :, place] = self.heard[slot][:k]
                mail[0, :, place] = unpacked(self.heard[slot][k:], k) if m else 0.0
        return inbox, mail

    def update(self):
        inbox, mail = self.views()
        before = self.h
        self.h, self.letters = self.rule.update(self.h, inbox, mail, self.star)
        gradient = self.rule.gradient_at(mail, self.star)
        moved = self.h - before if gradient is None else gradient
        self.residual = float(np.abs(moved).max())

    def say(self, slot):
        h, k = self.h[0, :, 0], self.model.channels
        if self.letters is None:
            return h
        letter = self.letters[0, :, sorted(self.near).index(slot)]
        return np.concatenate([h, letter[:k], letter[k:].reshape(k, k)[np.triu_indices(k)]])


def unpacked(letter, k):
    """A letter with the whole curvature block."""
    block = np.zeros((k, k))
    block[np.triu_indices(k)] = letter[k:]
    block = block + np.triu(block, 1).T
    return np.concatenate([letter[:k], block.ravel()])


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
    for slot in random.permutation(8)[:degree].tolist():
        attr = None if edge_dim is None else drawn(edge_dim)
        weight, there = random.integers(1, 8) / 4, 1 + random.integers(1, 20) / 4
        near = theirs.near[slot] = Neighbour(drawn(3), there, attr, weight)
        assert ours.join(slot, near)
        said = packet(random, library.channels, library.numbers)
        said = theirs.heard[slot] = said.astype(library.dtype).astype(np.float64)
        assert ours.hear(slot, said)
    theirs.begin()
    return ours, theirs


def compare(ours, theirs, rtol):
    """Embeddings, residuals and packets agree, relative to the largest entry."""
    found, expected = [ours.h], [theirs.h[0, :, 0]]
    for slot in theirs.near:
        k = len(found[0])
        one, two = ours.say(slot), theirs.say(slot)
        found += [one[:k], one[k : 2 * k], one[2 * k :]]
        expected += [two[:k], two[k : 2 * k], two[2 * k :]]
    for one, two in zip(found, expected, strict=True):
        scale = max(np.abs(two).max(initial=0.0), 1.0)
        np.testing.assert_allclose(one, two, rtol=0, atol=rtol * scale)
    assert abs(ours.residual - theirs.residual) <= rtol * max(theirs.residual, 1.0)


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_updates_are_those_of_the_rule(name):
    file = filed(trained(MODELS[name]))
    library = Library(file)
    for degree in (0, 1, 3, 8):
        ours, theirs = pair(file, library, degree, np.random.default_rng(degree))
        assert ours.update()
        theirs.update()
        compare(ours, theirs, 1e-12)
        prediction = theirs.model.predict(theirs.h[0, :, 0])
        np.testing.assert_allclose(ours.predict(), prediction, rtol=1e-11, atol=1e-11)
        for _ in range(100):
            assert ours.update()
            theirs.update()
        compare(ours, theirs, 1e-7)


@needs_compiler
@pytest.mark.parametrize("name", MODELS)
def test_single_precision(name):
    file = filed(trained(MODELS[name]))
    library = Library(file, "float32")
    for degree in (0, 1, 3, 8):
        ours, theirs = pair(file, library, degree, np.random.default_rng(degree))
        assert ours.update()
        theirs.update()
        compare(ours, theirs, 1e-5)
        prediction = theirs.model.predict(ours.h)
        np.testing.assert_allclose(ours.predict(), prediction, rtol=1e-5, atol=1e-5)
