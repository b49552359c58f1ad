r"""Which fronts are factorised together.

A batch of fronts is one sequence of dense operations on matrices of one size, that of the largest
front: smaller fronts are padded. Few large batches waste arithmetic on padding, many small batches
waste time on calls. With :math:`n_c` fronts of :math:`p_c` pivots and :math:`b_c` boundary unknowns
in class c, the batches :math:`B` should minimise

.. math:: \sum_B \Bigl[ \gamma + \sum_{c \in B} n_c
          \bigl(\max_{c \in B} p_c + \max_{c \in B} b_c\bigr)^3 \Bigr]

:math:`\gamma` is the cost of a call. We start with a batch for every class, and join the two
batches whose union adds least, until it adds more than :math:`\gamma`.
"""

from __future__ import annotations

import numpy as np


def batches(
    shapes: np.ndarray, counts: np.ndarray, call: float, widest: float = np.inf
) -> list[list[int]]:
    """Classes that are factorised together.

    Args:
        shapes: Pivots and boundary of every class, in unknowns, [C, 2].
        counts: Number of fronts of every class, [C].
        call: The cost of one more batch, in units of a front's width³.
        widest: The largest width of a union.
    """
    padded, number = np.array(shapes, float), np.array(counts, float)
    found: list[list[int]] = [[c] for c in range(len(number))]
    alone = _work(padded, number)
    every = np.arange(len(number))

    def added(i: int) -> np.ndarray:
        """The work that the unions with batch i add, [C]; infinite where a union is not allowed."""
        union = np.maximum(padded[i], padded)
        more = _work(union, number[i] + number) - alone[i] - alone
        more[(union.sum(-1) > widest) | (number == 0.0) | (every == i)] = np.inf
        return more

    pairs = np.array([added(c) for c in every.tolist()])
    partner = pairs.argmin(1)  # the best partner of every batch
    for _ in every[1:]:
        i = int(pairs[every, partner].argmin())
        j = int(partner[i])
        if pairs[i, j] > call or pairs[i, j] == np.inf:
            break
        found[i] += found[j]
        padded[i] = np.maximum(padded[i], padded[j])
        number[i] += number[j]
        number[j] = 0.0  # batch j is gone
        alone[i] = _work(padded[i], number[i])
        pairs[i] = pairs[:, i] = added(i)
        pairs[j] = pairs[:, j] = np.inf
        lost = (partner == i) | (partner == j)
        partner[lost] = pairs[lost].argmin(1)
        # The union may be a better partner for a third batch.
        partner[pairs[i] < pairs[every, partner]] = i
    return [batch for batch, there in zip(found, number, strict=True) if there]


def _work(shape: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The work of ``number`` fronts padded to this shape […, 2]."""
    return np.asarray(number * shape.sum(-1) ** 3)
