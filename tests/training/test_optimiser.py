"""The optimiser against torch's, row by row."""

import pytest
import torch

from hogwild.training.optimiser import AdamW, Rows, clip


def test_agrees_with_torch():
    start = torch.randn(3, 7, dtype=torch.float64)
    theirs = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    ours, mine = start.clone(), AdamW(start, 0.1)
    everyone = torch.ones(3, dtype=torch.bool)
    for step in range(50):
        grad = torch.randn(3, 7, dtype=torch.float64)
        optimiser.param_groups[0]["lr"] = lr = 0.01 / (1 + step)
        theirs.grad = grad
        optimiser.step()
        ours = mine.step(ours, grad, lr, everyone)
        torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-14)


def test_rows_that_pause_keep_their_state():
    """A row with pauses ends where it would have ended without the paused steps."""
    start = torch.randn(2, 5, dtype=torch.float64)
    gradients = torch.randn(20, 2, 5, dtype=torch.float64)
    active = torch.rand(20, 2) < 0.6
    together, optimiser = start.clone(), AdamW(start, 0.1)
    for g, a in zip(gradients, active, strict=True):
        together = optimiser.step(together, g, 0.01, a)
    for r in range(2):
        alone, own = start[r : r + 1].clone(), AdamW(start[r : r + 1], 0.1)
        for g, a in zip(gradients, active, strict=True):
            if a[r]:
                alone = own.step(alone, g[r : r + 1], 0.01, torch.tensor([True]))
        assert torch.equal(together[r], alone[0])


def test_clip():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert torch.equal(clip(rows, float("inf")), rows)
    norms = clip(rows, 1.0).norm(dim=1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.5, 0.0]))


@pytest.mark.parametrize("replicas", [None, 3])
def test_rows_read_and_write(replicas):
    module = torch.nn.Module()
    lead = () if replicas is None else (replicas,)
    module.a = torch.nn.Parameter(torch.randn(*lead, 2, 3))
    module.b = torch.nn.Parameter(torch.randn(*lead, 4))
    module.frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)
    rows = Rows(module, replicas)
    values = rows.values()
    assert values.shape == (replicas or 1, 10)
    assert torch.equal(rows.gradients(), torch.zeros_like(values))
    (module.a.sum() + 2 * module.b.sum()).backward()
    expected = torch.tensor([1.0] * 6 + [2.0] * 4).expand_as(values)
    assert torch.equal(rows.gradients(), expected)
    rows.write(values + 1)
    assert torch.equal(rows.values(), values + 1)
    rows.forget()
    assert torch.equal(rows.gradients(), torch.zeros_like(values))


def test_rows_write_notices():
    """What was saved for a backward pass is not overwritten unnoticed."""
    module = torch.nn.Module()
    module.a = torch.nn.Parameter(torch.randn(2, 3).T)  # not contiguous
    rows = Rows(module, None)
    loss = module.a.square().sum()
    rows.write(rows.values() + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
