"""The compiled attention equals torch's, with its gradients, and leaves the rest to torch."""

import pytest
import torch
from helpers import DOUBLE
from kernel_cases import needs_library

from hogwild.errors import GraphError
from hogwild.graph import Graph
from hogwild.nn import NeighbourhoodAttention
from hogwild.nn.attention import _fits as fits
from hogwild.nn.attention import attend

pytestmark = needs_library

NODES, EDGES = 11, 27  # no whole vectors; some nodes hear nobody
ENDS = torch.randint(NODES - 2, (2, EDGES), generator=torch.Generator().manual_seed(0))
GRAPH = Graph.of(ENDS, NODES)


def case(batch_shape=(3, 2), edge_dim=None, rows=1, heard=False, dtype=torch.float64):
    """An attention, and features of nodes, of edges and of senders as heard."""
    torch.manual_seed(1)
    net = NeighbourhoodAttention(5, edge_dim, 3, batch_shape=batch_shape).to(dtype)
    x = torch.randn(rows, NODES, 5, **DOUBLE).mT  # as models have it
    attr = None if edge_dim is None else torch.randn(1, edge_dim, EDGES, **DOUBLE)
    return net, (x, attr, GRAPH, torch.randn(rows, 5, EDGES, **DOUBLE) if heard else None)


def gradients(out, net, **options):
    torch.manual_seed(4)
    loss = (out * torch.randn_like(out)).sum()
    return torch.autograd.grad(loss, list(net.parameters()), **options)


def is_compiled(out):
    return type(out.grad_fn).__name__ == "_AttendBackward"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize(("batch_shape", "rows"), [((2,), 1), ((3, 2), 1), ((3, 2), 3)])
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_equals_torch(edge_dim, batch_shape, rows, heard, dtype):
    net, inputs = case(batch_shape, edge_dim, rows, heard, dtype)
    found, expected = attend(net, *inputs), net(*inputs)
    assert is_compiled(found)
    assert not is_compiled(expected)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    close = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {}
    for mine, other in zip(gradients(found, net), gradients(expected, net), strict=True):
        torch.testing.assert_close(mine, other, **close)


def test_large_logits():
    """The largest logit of a neighbourhood is subtracted first."""
    net, (x, *rest) = case()
    for scale in (1e3, 1e200):
        inputs = (x * scale, *rest)
        found, expected = attend(net, *inputs), net(*inputs)
        assert is_compiled(found)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


def test_nan_stays_in_its_neighbourhoods():
    net, (x, *rest) = case()
    sender = int(GRAPH.src[0])
    x = x.clone()
    x[..., sender] = torch.nan
    found = attend(net, x, *rest)
    assert is_compiled(found)
    touched = (GRAPH.dst == sender) | torch.isin(GRAPH.dst, GRAPH.dst[GRAPH.src == sender])
    assert torch.equal(found.isnan(), touched.expand_as(found))
    assert not touched.all()


def test_gradients_of_gradients():
    net, inputs = case(edge_dim=2)
    out = attend(net, *inputs)
    assert is_compiled(out)
    found = gradients(out, net, create_graph=True)
    other = gradients(net(*inputs), net, create_graph=True)
    for some in zip(
        *(torch.autograd.grad(sum(g.square().sum() for g in gs), list(net.parameters()))
          for gs in (found, other)), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(*some, rtol=1e-11, atol=1e-11)


def test_parameters_that_need_no_gradient():
    net, inputs = case(edge_dim=2)
    net.theta_a.requires_grad_(False)
    out = attend(net, *inputs)
    out.sum().backward()
    assert is_compiled(out)
    assert net.theta_a.grad is None
    assert net.theta_x.grad.shape == net.theta_x.shape


def test_the_rest_is_left_to_torch():
    net, (x, attr, graph, heard) = case(edge_dim=2)
    assert is_compiled(attend(net, x, attr, graph, heard))
    assert not is_compiled(attend(net, x.clone().requires_grad_(), attr, graph, heard))
    assert not is_compiled(attend(net, x, attr.clone().requires_grad_(), graph, heard))
    assert not is_compiled(attend(net.float(), x.float(), attr.float(), graph, heard))
    with torch.autocast("cpu"):
        assert not is_compiled(attend(net, x, attr, graph, heard))
    empty = Graph.of(torch.empty(2, 0, dtype=torch.long), NODES)
    assert attend(net.double(), x, attr[..., :0], empty).shape == (6, 0)
    seen = []
    net.register_forward_hook(lambda *_: seen.append(1))
    assert not is_compiled(attend(net.double(), x, attr, graph, heard))
    assert seen


def test_hooks_of_all_modules():
    net, inputs = case()
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        assert not is_compiled(attend(net, *inputs))
    finally:
        handle.remove()
    assert seen


def test_numbers_with_another_sign():
    """Torch may note that a tensor's numbers are to be negated, and leave them as they are."""
    net, (x, *rest) = case()
    negated = torch.complex(x, -x).conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(attend(net, negated, *rest), net(x, *rest), rtol=0, atol=1e-13)


def test_a_default_device_is_not_written_to():
    net, inputs = case()
    expected = attend(net, *inputs)
    with torch.device("meta"):
        found = attend(net, *inputs)
        assert is_compiled(found)
        assert all(g.device.type == "cpu" for g in torch.autograd.grad(found[0, 0], net.theta_x))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("change", ["dtype", "layout", "size", "one dtype"])
def test_parameters_assigned_between_the_passes(change):
    """Nobody counts what is assigned to ``.data``. Compiled code must not write gradients of the
    old sizes into arrays of the new ones."""
    net, inputs = case(edge_dim=2)
    out = attend(net, *inputs)
    expected = gradients(attend(net, *inputs), net)
    if change == "dtype":
        net.half()
    elif change == "one dtype":
        net.theta_a.data = net.theta_a.data.float()
    elif change == "layout":
        net.theta_x.data = net.theta_x.data.mT.contiguous().mT
    else:
        net.theta_a.data = net.theta_a.data[..., :1].clone()
    if change != "layout":
        with pytest.raises(RuntimeError):  # torch says that dtypes or sizes do not fit
            gradients(out, net)
        return
    for mine, other in zip(gradients(out, net), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


def test_features_changed_in_place_are_noticed():
    net, (x, *rest) = case()
    out = attend(net, x, *rest)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_parameters_changed_in_place_are_noticed():
    net, inputs = case()
    out = attend(net, *inputs)
    with torch.no_grad():
        net.theta_x.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("end", [-1, NODES])
def test_edges_that_do_not_exist(end):
    """Nobody has looked at the numbers of the nodes where a model does not validate them."""
    net, (x, attr, _, heard) = case()
    for ends in ([[0], [end]], [[end], [0]]):
        graph = Graph.of(torch.tensor(ends), NODES, validate=False)
        with pytest.raises(GraphError, match="an edge names a node that does not exist"):
            attend(net, x, attr, graph, heard)


def test_other_shapes_are_left_to_torch():
    net, (x, attr, graph, heard) = case(edge_dim=2)
    given = net.theta_x, net.theta_a, net.theta_e
    assert fits(given, (x, heard, attr), graph)
    for other in (x[:, :4], x[..., :-1], x[0], x.expand(4, -1, -1)):
        assert not fits(given, (other, heard, attr), graph)
    assert not fits(given, (x, x, attr), graph)
    assert not fits(given, (x, heard, attr[:, :1]), graph)
    assert not fits(given, (x, heard, attr.expand(3, -1, -1)), graph)
    assert not fits((given[0], given[1][..., :-1], given[2]), (x, heard, attr), graph)
