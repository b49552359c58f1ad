"""PICNNs: closed-form jets, convexity and monotonicity for all parameters, bounds."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from helpers import DOUBLE, randomise
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.errors import ConfigError
from hogwild.nn import PICNN, SOFTPLUS, SQUAREPLUS
from hogwild_node.networks import FEATURE_SLOPE, Slot

DEPTHS = {"1": (2,), "2": (4, 1), "3": (4, 3, 2), "4": (2, 5, 3, 2)}
FEW = settings(max_examples=50, deadline=None, derandomize=True)


def make(channels=(4, 3, 2), d=3, p=2, *, scale=None, seed=0, **kwargs):
    torch.manual_seed(seed)
    net = PICNN(p, d, channels, **kwargs).double()
    return net if scale is None else randomise(net, scale, seed)


def points(net, rows=5, seed=0, spread=2.0):
    rng = torch.Generator().manual_seed(seed)
    lead = net.batch_shape
    x = spread * torch.randn(rows, sum(net.in_channels), generator=rng, **DOUBLE)
    y = spread * torch.randn(*lead, rows, net.convex_channels, generator=rng, **DOUBLE)
    return x, y


class Jet(NamedTuple):
    """Value [*, n, out], Jacobian [*, n, out, d] and Hessian [*, n, out, d, d] of a PICNN."""

    value: torch.Tensor
    jacobian: torch.Tensor
    hessian: torch.Tensor


def jet(net, x, y):
    """Value and derivatives with respect to ``y``, in closed form."""
    y = net.columns(y)
    tape = net.at(x).forward(y)
    jacobians, hessians = tape.jacobians(), []
    for p in torch.eye(net.channels[-1], **DOUBLE):
        weights = p[:, None].expand_as(tape.value)
        found = tape.hessian(jacobians, tape.pullback(weights)[1])
        zero = y.new_zeros(y.size(0), y.size(1), y.size(1), y.size(2))
        hessians.append(zero if found is None else found)
    found = tape.value, jacobians[-1].expand(*tape.value.shape[:2], *y.shape[1:])
    found = *found, torch.stack(hessians, 1)
    return Jet(*(t.movedim(-1, 1).reshape(*net.batch_shape, -1, *t.shape[1:-1]) for t in found))


def autograd_jet(net, x, y):
    """Value, Jacobian and Hessian from reverse mode alone; the rows are independent."""
    y = y.clone().requires_grad_()
    value = net(x, y)
    jac, hess = [], []
    for c in range(value.size(-1)):
        (g,) = torch.autograd.grad(value[..., c].sum(), y, create_graph=True)
        jac.append(g)
        rows = []
        for e in range(y.size(-1)):
            second = torch.autograd.grad(
                g[..., e].sum(), y, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append(second[0])
        hess.append(torch.stack(rows, -2))
    return value, torch.stack(jac, -2), torch.stack(hess, -3)


@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("act", ["softplus", "squareplus"])
@pytest.mark.parametrize("gate", ["softplus", "relu"])
@pytest.mark.parametrize("channels", DEPTHS.values(), ids=DEPTHS)
def test_jet_equals_autograd(channels, gate, act, batch_shape):
    """Value, Jacobian and Hessian in closed form equal automatic differentiation."""
    mask = [True, False, False]
    net = make(channels, act=act, gate=gate, batch_shape=batch_shape, monotone=mask, scale=1.0)
    x, y = points(net)
    for got, expected in zip(jet(net, x, y), autograd_jet(net, x, y), strict=True):
        assert got.shape == expected.shape
        size = max(float(expected.detach().abs().max()), 1.0)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12 * size)


def test_jacobian_of_the_map_itself():
    """The rows really are independent: torch.func's full Jacobian is the jet on the diagonal."""
    net = make((3, 2), d=2)
    x, y = points(net, rows=3)
    full = torch.func.jacrev(lambda v: net(x, v))(y)  # [n, out, n, d]
    expected = torch.zeros_like(full)
    for i in range(3):
        expected[i, :, i] = jet(net, x, y).jacobian[i]
    torch.testing.assert_close(full, expected)


@pytest.mark.parametrize("gate", ["softplus", "relu"])
@pytest.mark.parametrize("mask", [None, [True, False, True], [True] * 3], ids=str)
def test_value_equals_the_formula(gate, mask):
    """The recursion of the module docstring, row by row, with the paper's weight names."""
    net = make((4, 3, 2), gate=gate, monotone=mask, scale=1.0)
    x, y = points(net)
    mono = torch.zeros(3, dtype=torch.bool) if mask is None else torch.tensor(mask)
    positive = F.softplus if gate == "softplus" else F.relu
    for row in range(x.size(0)):
        u, z = x[row], None
        for layer, width in enumerate(net.channels):
            last = layer == len(net.channels) - 1
            sizes = (0 if last else width, 0 if z is None else len(z), 3, width)
            wt, wzu, wyu, wu = net.feature_weight[layer].split(sizes)
            bt, bz, by, b = net.feature_bias[layer].split(sizes)
            gy = wyu @ u + by
            wy = net.wy[layer]
            gy = torch.where(mono, positive(gy), gy)
            wy = torch.where(mono, F.softplus(wy), wy)
            a = wy @ (y[row] * gy) + wu @ u + b
            if z is not None:
                a = a + F.softplus(net.wz[layer - 1]) @ (z * positive(wzu @ u + bz))
            z, u = F.softplus(a), F.leaky_relu(wt @ u + bt, FEATURE_SLOPE)
        torch.testing.assert_close(net(x, y)[row], a, rtol=1e-12, atol=1e-12)


@FEW
@given(
    seed=st.integers(0, 10**6),
    scale=st.floats(0.0, 10.0),
    depth=st.sampled_from(list(DEPTHS)),
    act=st.sampled_from(["softplus", "squareplus"]),
    gate=st.sampled_from(["softplus", "relu"]),
    mask=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_convex_for_all_parameters(seed, scale, depth, act, gate, mask):
    """∇²_y f ⪰ 0 for every output, f lies below its chords, and ∂f/∂y ≥ 0 where monotone."""
    net = make(DEPTHS[depth], act=act, gate=gate, monotone=mask, scale=scale, seed=seed)
    x, y = points(net, seed=seed)
    found = jet(net, x, y)
    low = torch.linalg.eigvalsh(found.hessian)[..., 0]
    size = found.hessian.abs().amax((-2, -1))
    assert bool((low >= -1e-9 * size).all())
    assert bool((found.jacobian[..., torch.tensor(mask)] >= 0).all())

    other = points(net, seed=seed + 1)[1]
    ends = net(x, y), net(x, other)
    for t in (0.1, 0.5, 0.8):
        chord = t * ends[0] + (1 - t) * ends[1]
        size = 1.0 + ends[0].abs() + ends[1].abs()
        assert bool((net(x, t * y + (1 - t) * other) <= chord + 1e-9 * size).all())


@FEW
@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 5.0))
def test_composition_is_convex_when_monotone(seed, scale):
    """A convex nondecreasing function of convex functions is convex: u(m(h)) with ``monotone``."""
    message = make((3, 2), d=2, scale=scale, seed=seed)
    update = make((3, 1), d=2, monotone=[True, True], scale=scale, seed=seed + 1)
    x, y = points(message, seed=seed)
    _, _, hess = autograd_jet(lambda x, y: update(x, message(x, y)), x, y)
    low = torch.linalg.eigvalsh(hess)[..., 0]
    assert bool((low >= -1e-9 * hess.abs().amax((-2, -1)).clamp_min(1e-12)).all())


def test_the_papers_condition_is_not_enough():
    """u(m) = (m − 1)² is convex and m = eʰ convex and increasing, yet u(m(h)) is not convex; and
    a PICNN update without ``monotone`` fails the same way."""
    h = torch.tensor(-1.0, **DOUBLE)
    curvature = torch.func.grad(torch.func.grad(lambda h: (h.exp() - 1.0) ** 2))
    m = h.exp()
    assert float(curvature(h)) == pytest.approx(float(2 * m * (2 * m - 1)))
    assert float(curvature(h)) < -0.1

    message = make((3, 1), d=1, monotone=[True], scale=1.0, seed=0)
    lows = []
    for seed in range(20):
        update = make((3, 1), d=1, scale=1.0, seed=seed)
        x, y = points(message, seed=seed)
        lows.append(float(autograd_jet(lambda x, y, u=update: u(x, message(x, y)), x, y)[2].min()))
    assert min(lows) < -1e-3

    # With ``monotone`` the decreasing branch of (m − 1)² on m < 1 cannot be represented.
    update = make((3, 1), d=1, monotone=[True], scale=10.0)
    x, m = points(update, rows=200)
    assert float(jet(update, x, m).jacobian.detach().min()) >= 0.0


@pytest.mark.parametrize("act", ["softplus", "squareplus"])
@pytest.mark.parametrize("channels", DEPTHS.values(), ids=DEPTHS)
def test_bound_dominates_every_derivative(channels, act):
    """|J| and |∇²f| at any y are at most the bound tape's, entry by entry."""
    net = make(channels, act=act, monotone=[True, False, False], scale=1.0)
    x, _ = points(net)
    context = net.context([Slot(x.T[None])])
    bound = context.bound()
    most = bound.jacobians()
    for spread in (0.1, 1.0, 10.0, 1000.0):
        y = points(net, seed=1, spread=spread)[1].T[None]
        tape = context.forward(y)
        here = tape.jacobians()
        for a, b in zip(here, most, strict=True):
            assert bool((a.abs() <= b * (1 + 1e-12)).all())
        p = torch.rand_like(tape.value)
        ybar, s = tape.pullback(p)
        most_ybar, most_s = bound.pullback(p)
        assert bool((ybar.abs() <= most_ybar * (1 + 1e-12)).all())
        curvature = tape.hessian(here, s)
        if curvature is not None:
            assert bool((curvature.abs() <= bound.hessian(most, most_s) * (1 + 1e-12)).all())


@pytest.mark.parametrize("act", [SOFTPLUS, SQUAREPLUS], ids=lambda a: a.name)
def test_activation_derivatives_and_suprema(act):
    """Slopes and curvatures equal autograd, are nonnegative, and reach but never exceed the
    suprema."""
    a = torch.linspace(-60.0, 60.0, 2401, **DOUBLE)  # contains 0, where the curvature peaks
    first = torch.func.vmap(torch.func.grad(act.value))
    second = torch.func.vmap(torch.func.grad(torch.func.grad(act.value)))
    slope = act.slope(a)
    torch.testing.assert_close(slope, first(a), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(act.curvature(a, slope), second(a), rtol=1e-6, atol=1e-12)
    assert 0.0 <= float(slope.min()) <= float(slope.max()) <= act.max_slope
    curvature = act.curvature(a, slope)
    assert float(curvature.min()) >= 0.0
    assert float(curvature.max()) == pytest.approx(act.max_curvature, rel=1e-12)
    assert float(slope.max()) == pytest.approx(act.max_slope, abs=1e-3)


@pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)], ids=str)
def test_slots_equal_one_concatenated_input(batch_shape):
    """Reading features at several rows equals the network on the gathered, concatenated x."""
    torch.manual_seed(0)
    net = PICNN((2, 2, 1), 3, (4, 2), batch_shape=batch_shape).double()
    nodes = torch.randn(4, 2, **DOUBLE)
    attr = torch.randn(6, 1, **DOUBLE)
    src, dst = torch.tensor([0, 1, 2, 3, 3, 0]), torch.tensor([1, 0, 3, 2, 3, 2])
    y = torch.randn(6, 3, **DOUBLE)
    context = net.context([Slot(nodes.T[None], dst), Slot(nodes.T[None], src), Slot(attr.T[None])])
    b = context.layers[0].wy.size(0)
    value = context.forward(y.T.expand(b, 3, 6)).value.mT.reshape(*batch_shape, 6, 2)
    expected = net(torch.cat([nodes[dst], nodes[src], attr], 1), y)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_replica_features_are_read_by_all_their_heads():
    """Features [R, p, n] with batch_shape (R, H) equal R separate networks of H heads."""
    torch.manual_seed(0)
    net = PICNN(2, 3, (4, 2), batch_shape=(2, 3)).double()
    x, y = torch.randn(2, 5, 2, **DOUBLE), torch.randn(5, 3, **DOUBLE)
    value = net.context([Slot(x.mT)]).forward(y.T.expand(6, 3, 5)).value.view(2, 3, 2, 5)
    for r in range(2):
        torch.testing.assert_close(value[r].mT, net(x[r], y)[r], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_shape", [(3,), (2, 3)], ids=str)
def test_replicas_equal_singles(batch_shape):
    net = make(batch_shape=batch_shape)
    single = make()
    x, y = points(single)
    together = net(x, y).flatten(0, -3)
    for r in range(together.size(0)):
        one = {k: v.flatten(0, len(batch_shape) - 1)[r] for k, v in net.state_dict().items()}
        single.load_state_dict(one)
        torch.testing.assert_close(single(x, y), together[r], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"channels": ()}, ["at least one layer", "channels=()"]),
        ({"channels": (4, 0, 1)}, ["positive widths", "(4, 0, 1)"]),
        ({"d": 0}, ["positive widths", "convex_channels=0"]),
        ({"gate": "tanh"}, ["'tanh'", "relu", "softplus"]),
        ({"act": "relu"}, ["'relu'", "softplus", "squareplus"]),
        ({"monotone": [True]}, ["1 entries", "3 convex inputs"]),
    ],
    ids=str,
)
def test_config_errors(kwargs, words):
    with pytest.raises(ConfigError) as caught:
        make(**kwargs)
    for word in words:
        assert word in str(caught.value)
