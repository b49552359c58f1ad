"""The compiled readout equals torch's, with its gradients, and leaves the rest to torch."""

import pytest
import torch
from helpers import DOUBLE
from kernel_cases import needs_library

from hogwild.errors import GraphError
from hogwild.models import Readout

pytestmark = needs_library

BATCH = torch.tensor([0] * 5 + [1] * 3 + [3] * 11 + [4])  # graph 2 has no nodes


def case(pool, replicas, transposed=False, dtype=torch.float64, widths=(4, 3), **options):
    """A readout and embeddings of 20 nodes."""
    torch.manual_seed(3)
    options |= {"widths": widths, "pool": pool, "replicas": replicas}
    net = Readout(5, out_channels=2, **options).to(dtype)
    lead = () if replicas is None else (replicas,)
    h = torch.randn(*lead, 5, 20, dtype=dtype).mT if transposed else torch.randn(*lead, 20, 5)
    return net, h.to(dtype).requires_grad_()


def on_torch(net, h, batch, size):
    return net.on_torch(net.node, net.graph, h, batch, size)


def gradients(out, net, h, **options):
    torch.manual_seed(4)
    return torch.autograd.grad(
        (out * torch.randn_like(out)).sum(), [h, *net.parameters()], **options
    )


def is_compiled(out):
    return type(out.grad_fn).__name__ == "_ReadBackward"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("replicas", [None, 1, 3])
@pytest.mark.parametrize("pool", [None, "mean"])
def test_equals_torch(pool, replicas, transposed, dtype):
    net, h = case(pool, replicas, transposed, dtype)
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    for batch, size in ((BATCH, 6), (BATCH, None), (None, None)):
        found, expected = net(h, batch, size), on_torch(net, h, batch, size)
        assert is_compiled(found)
        torch.testing.assert_close(found, expected, **close)
        for mine, other in zip(gradients(found, net, h), gradients(expected, net, h), strict=True):
            torch.testing.assert_close(mine, other, **close)


@pytest.mark.parametrize("replicas", [None, 2])
def test_equals_torch_where_outputs_of_another_width_are_pooled(replicas):
    net, h = case("mean", replicas, pooled=9)
    found, expected = net(h, BATCH, 6), on_torch(net, h, BATCH, 6)
    assert is_compiled(found)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(found, net, h), gradients(expected, net, h), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_dropout_and_attention_are_left_to_torch():
    net, h = case("mean", None, dropout=0.5)
    assert not is_compiled(net(h, BATCH, 6))
    assert is_compiled(net.eval()(h, BATCH, 6))
    net, h = case("attention", None)
    assert not is_compiled(net(h, BATCH, 6))


def test_one_layer_many_widths_and_few_rows():
    """No hidden layer; and every number of rows around whole vectors."""
    for widths in ((), (1,), (17, 2, 9)):
        net, _ = case("mean", 2, widths=widths)
        for rows in (0, 1, 7, 8, 9, 33):
            h = torch.randn(2, rows, 5, **DOUBLE).requires_grad_()
            batch = torch.zeros(rows, dtype=torch.long)
            found, expected = net(h, batch, 1), on_torch(net, h, batch, 1)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            pairs = zip(gradients(found, net, h), gradients(expected, net, h), strict=True)
            for mine, other in pairs:
                torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pool", [None, "mean"])
def test_gradients_of_gradients(pool):
    net, h = case(pool, None)

    def twice(out):
        first = gradients(out, net, h, create_graph=True)
        return torch.autograd.grad(
            sum(g.square().sum() for g in first), [h, *net.parameters()], allow_unused=True
        )

    found, expected = twice(net(h, BATCH, 6)), twice(on_torch(net, h, BATCH, 6))
    for mine, other in zip(found, expected, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other)


def test_only_what_is_asked_for():
    """Frozen parameters and detached embeddings get no gradient."""
    net, h = case("mean", None)
    net.node.requires_grad_(False)
    net(h.detach(), BATCH, 6).sum().backward()
    assert h.grad is None
    assert all(p.grad is None for p in net.node.parameters())
    assert all(p.grad is not None for p in net.graph.parameters())


def test_rows_apart_in_memory():
    """Embeddings that are a part of a wider tensor, or repeat one row."""
    net, _ = case(None, None)
    wide = torch.randn(20, 9, **DOUBLE).requires_grad_()
    one = torch.randn(1, 5, **DOUBLE).requires_grad_()
    for leaf, h in ((wide, wide[:, 2:7]), (one, one.expand(20, 5))):
        found, expected = net(h), on_torch(net, h, None, None)
        assert is_compiled(found)
        pairs = zip(gradients(found, net, leaf), gradients(expected, net, leaf), strict=True)
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_a_tensor_that_is_read_and_reads_counts_once():
    """The embeddings are a function of a parameter of the readout."""
    net, h = case(None, None)
    weight = net.node.weight[0]
    code = h.detach() * weight.sum()
    found, expected = (
        torch.autograd.grad(y.square().sum(), weight, create_graph=True)[0]
        for y in (net(code), on_torch(net, code, None, None))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_changes_in_place_are_noticed():
    net, h = case(None, None)
    out = net(h).sum()
    with torch.no_grad():
        net.node.weight[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_batch_out_of_range():
    net, h = case("mean", None)
    with pytest.raises(GraphError, match="from 0 to 3 in batch"):
        net(h, BATCH, 4)


def test_what_torch_must_see():
    """Hooks, transformed functions, forward gradients, other dtypes, and large inputs."""
    net, h = case(None, None)
    assert is_compiled(net(h))
    jacobian = torch.func.jacrev(lambda x: net(x).sum())(h)
    torch.testing.assert_close(jacobian, torch.autograd.grad(net(h).sum(), h)[0])
    torch.func.vmap(net)(h[None])
    _, moved = torch.func.jvp(net, (h,), (torch.ones_like(h),))
    torch.testing.assert_close(moved, torch.autograd.functional.jvp(net, h, torch.ones_like(h))[1])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(h.detach(), torch.ones_like(h))
        assert torch.autograd.forward_ad.unpack_dual(net(dual)).tangent is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_compiled(net.float()(h.float()))
    net.double()
    assert not is_compiled(net(h.detach().repeat(10_000, 1)))
    seen = []
    net.node.register_forward_hook(lambda *_: seen.append(1))
    assert not is_compiled(net(h))
    assert seen


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2.0 * x


def test_parameters_that_are_functions_of_others():
    """Gradients go through what computes them."""
    net, h = case(None, None)
    torch.nn.utils.parametrize.register_parametrization(net.node.weight, "1", Doubled())
    found, expected = net(h), on_torch(net, h, None, None)
    assert is_compiled(found)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, net, h), gradients(expected, net, h), strict=True):
        torch.testing.assert_close(one, other)


def test_tensors_without_numbers_are_left_to_torch():
    net, h = case("mean", None)
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        assert net(mode.from_tensor(h.detach()), BATCH, 5).shape == (5, 2)
        assert net(h.detach(), BATCH, 5).shape == (5, 2)
    with pytest.raises((RuntimeError, NotImplementedError)):
        net.to("meta")(h, BATCH, 5)


def test_parameters_of_other_shapes_are_left_to_torch():
    net, h = case(None, None)
    short = {"node.bias.0": torch.zeros(1, **DOUBLE)}
    found = torch.func.functional_call(net, short, (h,))
    assert not is_compiled(found)
    assert found.shape == (20, 2)


def test_the_mean_of_no_nodes_is_torchs():
    net, _ = case("mean", None)
    none = torch.zeros(0, 5, **DOUBLE)
    torch.testing.assert_close(net(none), on_torch(net, none, None, None), equal_nan=True)
