"""A first look at an energy GNN: exact embeddings, exact gradients, whatever the starting point.

Run with ``make demo`` or ``python examples/demo.py``. Under a minute on two cores; no downloads.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from hogwild import LBFGS, EnergyGNN

LENGTH = 30
EPOCHS = 400


def chains(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two linear graphs; only the first node of each knows which of the two it is in."""
    a = torch.arange(length - 1)
    one = torch.cat([torch.stack([a, a + 1]), torch.stack([a + 1, a])], 1)
    edge_index = torch.cat([one, one + length], 1)
    x = torch.zeros(2 * length, 2)
    x[0, 0] = x[length, 1] = 1.0
    batch = torch.arange(2).repeat_interleave(length)
    return x, edge_index, batch, batch.float()


def main() -> None:
    torch.manual_seed(0)
    x, edge_index, batch, y = chains(LENGTH)
    model = EnergyGNN(in_channels=2, out_channels=1)
    print(__doc__.splitlines()[0], end="\n\n")
    print(
        f"Task: two chains of {LENGTH} nodes; every node must tell which chain it is in, but only"
    )
    print("the first node of each is told. Embeddings are two numbers a node.\n")

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    h0, start = None, time.perf_counter()
    print("epoch    loss  error  Newton iterations  residual")
    for epoch in range(EPOCHS + 1):
        optimizer.zero_grad()
        found = model.embed(x, edge_index, batch=batch, h0=h0)  # warm start: the last solution
        logits = model.readout(found.value)[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        h0 = found.value.detach()
        if epoch % (EPOCHS // 8) == 0:
            error = 100 * float(((logits > 0).float() != y).float().mean())
            count, residual = int(found.iterations.max()), float(found.residual.max())
            print(f"{epoch:5d}  {loss:6.4f}  {error:4.1f}%  {count:17d}  {residual:.1e}")
    print(f"\n{EPOCHS} epochs in {time.perf_counter() - start:.1f} s.\n")

    with torch.no_grad():
        answer = model.conv(x, edge_index, batch=batch)
        print("The answer is a property of the graph, not of the way to it:")
        for scale in (1.0, 10.0, 100.0):
            found = model.conv.embed(
                x, edge_index, batch=batch, h0=scale * torch.randn_like(answer)
            )
            gap = float((found.value - answer).abs().max() / answer.abs().max())
            print(
                f"  Newton from random embeddings of size {scale:5.0f}: relative gap {gap:.0e} "
                f"({int(found.iterations.max())} iterations)"
            )
        model.conv.solver = LBFGS(max_iter=20_000)
        found = model.conv.embed(x, edge_index, batch=batch)
        gap = float((found.value - answer).abs().max() / answer.abs().max())
        print(
            f"  another solver (L-BFGS) from zero: relative gap {gap:.0e} "
            f"({int(found.iterations.max())} iterations)"
        )
    print("\nNothing about the order in which nodes update can change it. Next: README.md.")


if __name__ == "__main__":
    main()
