"""Fields of small matrices equal einsum and index_add on every path; what nodes add to NumPy."""

import numpy as np
import pytest
import torch

from hogwild import ops
from hogwild_node.ops import NUMPY, namespace

SHAPES = [(1, 1, 1, 1), (2, 3, 4, 5), (3, 4, 2, 7), (1, 5, 1, 3)]  # R, a, b, n
PRODUCTS = {
    "mv": ("rabn,rbn->ran", lambda r, a, b, n: ((r, a, b, n), (r, b, n))),
    "mtv": ("rabn,ran->rbn", lambda r, a, b, n: ((r, a, b, n), (r, a, n))),
    "mtm": ("rsan,rsbn->rabn", lambda r, a, b, n: ((r, a, 2, n), (r, a, b, n))),
}


@pytest.fixture(params=["small", "large"])
def path(request, monkeypatch):
    """Force the fused loop (``large``) or the plain product (``small``), and prove it was used."""
    calls = []
    contract = ops._contract
    monkeypatch.setattr(ops, "_contract", lambda a, b: calls.append(1) or contract(a, b))
    monkeypatch.setattr(ops, "_CACHE_ELEMENTS", -1 if request.param == "large" else 1 << 40)
    yield request.param
    assert bool(calls) == (request.param == "large")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_equal_einsum(name, shape, path):
    formula, shapes = PRODUCTS[name]
    left, right = (torch.randn(s, dtype=torch.float64) for s in shapes(*shape))
    out = getattr(ops, name)(left, right)
    torch.testing.assert_close(out, torch.einsum(formula, left, right), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_rows_equal_einsum(shape):
    """As a GPU takes them from some number of terms on."""
    formula, shapes = PRODUCTS["mtm"]
    left, right = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes(*shape))
    out = ops._multiply(left, right)
    assert out.is_contiguous()
    torch.testing.assert_close(out, torch.einsum(formula, left, right), rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(ops._multiply, (left, right))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("terms", [ops._TERMS - 1, ops._TERMS, 16])
def test_products_on_a_gpu(terms):
    formula, shapes = PRODUCTS["mtm"]
    like = {"dtype": torch.float64, "device": "cuda"}
    left, right = (torch.randn(s, **like) for s in shapes(2, terms, 3, 5))
    out = ops.mtm(left, right)
    torch.testing.assert_close(out, torch.einsum(formula, left, right), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", PRODUCTS)
def test_operands_are_left_alone(name, path):
    """The in-place accumulation must not write into its operands."""
    _, shapes = PRODUCTS[name]
    left, right = (torch.randn(s, dtype=torch.float64) for s in shapes(2, 3, 3, 4))
    before = left.clone(), right.clone()
    getattr(ops, name)(left, right)
    assert torch.equal(left, before[0])
    assert torch.equal(right, before[1])


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_gradcheck(name, needs, path):
    _, shapes = PRODUCTS[name]
    inputs = [
        torch.randn(s, dtype=torch.float64, requires_grad=need)
        for s, need in zip(shapes(2, 3, 2, 3), needs, strict=True)
    ]
    assert torch.autograd.gradcheck(getattr(ops, name), inputs)


def test_shared_matrix_broadcasts_over_rows(path):
    matrix, x = torch.randn(2, 3, 4, 1), torch.randn(2, 4, 6)
    expected = torch.einsum("rab,rbn->ran", matrix[..., 0], x)
    torch.testing.assert_close(ops.mv(matrix, x), expected)


def test_scatter_equals_index_add():
    x, index = torch.randn(2, 3, 7, dtype=torch.float64), torch.tensor([4, 0, 0, 2, 4, 1, 4])
    expected = torch.zeros(2, 3, 6, dtype=torch.float64).index_add_(-1, index, x)
    torch.testing.assert_close(ops.scatter(x, index, 6), expected)
    assert torch.equal(ops.scatter(x[..., :0], index[:0], 6), torch.zeros_like(expected))


def test_scatter_is_the_transpose_of_gather():
    """⟨gather(x), y⟩ = ⟨x, scatter(y)⟩, and autograd agrees for both."""
    index = torch.tensor([1, 1, 3, 0])
    x = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    left = (ops.gather(x, index) * y).sum()
    right = (x * ops.scatter(y, index, 4)).sum()
    torch.testing.assert_close(left, right)
    assert torch.autograd.gradcheck(lambda v: ops.gather(v, index), x)
    assert torch.autograd.gradcheck(lambda v: ops.scatter(v, index, 4), y)


def test_all_finite():
    big = torch.tensor(torch.finfo(torch.float32).max)
    assert ops.all_finite(torch.empty(0))
    assert ops.all_finite(torch.stack([big, big]).requires_grad_())  # the sum overflows
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not ops.all_finite(torch.tensor([1.0, bad]))
    assert not ops.all_finite(torch.tensor([torch.inf, -torch.inf]))


@pytest.mark.parametrize("choose", ["high", "highest", "new"])
def test_solves_take_no_tf32(choose):
    """Within the context products keep single precision; what the user chose comes back."""
    if choose == "new" and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one switch")
    try:
        if choose == "new":
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision(choose)
        for _ in range(2):
            with ops.precise("cuda"):
                assert not torch.backends.cuda.matmul.allow_tf32
            assert ops._tf32() == (choose != "highest")
    finally:
        torch.set_float32_matmul_precision("highest")


# -- NumPy's part ----------------------------------------------------------------------------------


def test_singular_systems_are_not_a_number():
    """One bad system leaves the others of its batch alone."""
    a = np.stack([np.eye(2), np.zeros((2, 2))])
    x = NUMPY.solve(a, np.ones((2, 2, 1)))
    assert np.array_equal(x[0], np.ones((2, 1)))
    assert np.isnan(x[1]).all()
    assert np.isnan(NUMPY.inverse(a)[1]).all()


def test_an_unknown_library_is_named():
    with pytest.raises(TypeError, match="a list was given; expected an array"):
        namespace([1.0])
