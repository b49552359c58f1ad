"""Explainers of PyG find the edge that decides; a mask of edges multiplies the edge weights."""

from functools import cache

import pytest
import torch
from helpers import chain
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer

from experiments.maximum import MaxGNN
from hogwild import GCN, GSDGNN, IGNN, EnergyGNN
from hogwild.errors import ConfigError
from hogwild.models import Explained

INWARD = torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]])
STAR = torch.cat([INWARD, INWARD.flip(0)], 1)
MODELS = {
    "energy": lambda: EnergyGNN(1, out_channels=1),
    "denoising": lambda: GSDGNN(1, out_channels=1),
    "layers": lambda: GCN(1, out_channels=1, num_layers=1),
}


@cache
def trained(name, count=64):
    """A model that gives the centre of a star the sum of the leaves that it hears."""
    torch.manual_seed(0)
    model = MODELS[name]()
    x, heard = torch.randn(count, 5, 1), torch.rand(count, 4) < 0.6
    x[:, 0] = 0.0
    y = (x[:, 1:, 0] * heard).sum(1)
    inward = (INWARD.unsqueeze(1) + 5 * torch.arange(count).view(1, -1, 1))[:, heard]
    edges, batch = torch.cat([inward, inward.flip(0)], 1), torch.arange(count).repeat_interleave(5)
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(100):
        out = model(x.flatten(0, 1), edges, batch=batch).view(count, 5)[:, 0]
        loss = (out - y).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.1 * float(y.var())
    return model.eval()


def explained(model, algorithm, x, edges, **options):
    explainer = Explainer(
        model, algorithm, explanation_type="model", edge_mask_type="object",
        model_config={"mode": "regression", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    return explainer(x, edges, index=0, **options).edge_mask.detach()


def wrapped(name):
    return trained(name) if name == "layers" else Explained(trained(name))


@pytest.mark.parametrize("leaf", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_the_edge_that_decides_is_found(name, leaf):
    """One leaf has a reading and the others none: without its edge the sum is another one."""
    torch.manual_seed(0)
    x = torch.zeros(5, 1)
    x[leaf] = 2.0
    before = [p.clone() for p in trained(name).parameters()]
    algorithm = GNNExplainer(epochs=150, lr=0.1, edge_size=0.2, edge_ent=0.0)
    mask = explained(wrapped(name), algorithm, x, STAR)
    assert int(mask.argmax()) % 4 == leaf - 1  # the edge from the leaf, or the one back to it
    after = list(trained(name).parameters())
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_edges_without_influence_have_a_mask_of_zero():
    """Those of another component."""
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    mask = explained(Explained(trained("energy")), GNNExplainer(5), torch.randn(4, 1), edges)
    assert bool((mask[:2] > 0).all())
    assert mask[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, IGNN])
def test_a_mask_multiplies_the_edge_weights(make):
    """As Captum's explainers set it; and nothing is left of it afterwards."""
    torch.manual_seed(0)
    model, x, edges = make(2, out_channels=1), torch.randn(5, 2), chain(5)
    wrapper, mask, weight = Explained(model), torch.rand(8), torch.rand(8)
    assert torch.equal(wrapper(x, edges), model(x, edges))
    wrapper.edges.explain, wrapper.edges._edge_mask = True, mask
    wrapper.edges._apply_sigmoid = False
    assert torch.equal(wrapper(x, edges), model(x, edges, edge_weight=mask))
    out, product = wrapper(x, edges, edge_weight=weight), mask * weight
    assert torch.equal(out, model(x, edges, edge_weight=product))
    assert len(list(wrapper.parameters())) == len(list(model.parameters()))


def test_captum():
    """Saliency is the gradient with respect to the edge weights, at ones."""
    pytest.importorskip("captum", reason="captum is not installed")
    model = trained("energy")
    x = torch.randn(5, 1, generator=torch.Generator().manual_seed(1))
    weight = torch.ones(8, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x, STAR, edge_weight=weight)[0].sum(), weight)
    mask = explained(Explained(model), CaptumExplainer("Saliency"), x, STAR)
    torch.testing.assert_close(mask, slope.abs())


def test_models_that_need_no_wrapper_or_cannot_have_one():
    with pytest.raises(ConfigError, match=r"GCN; expected an implicit model .*as they are"):
        Explained(GCN(2, out_channels=1))
    with pytest.raises(ConfigError, match="MaxConv does not read edge weights"):
        Explained(MaxGNN(2, out_channels=1))
