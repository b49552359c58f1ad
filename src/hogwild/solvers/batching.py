r"""Which fronts are factorised together.

A batch of fronts is one sequence of dense operations on matrices of one size, that of the largest:
smaller ones are padded. Few large batches waste arithmetic on padding, many small ones waste time
on calls. With :math:`n_c` fronts of :math:`p_c` pivots and :math:`b_c` boundary unknowns in class
c, batches :math:`B` are to make

.. math:: \sum_B \Bigl[ \gamma + \sum_{c \in B} n_c
          \bigl(\max_{c \in B} p_c + \max_{c \in B} b_c\bigr)^3 \Bigr]

small, :math:`\gamma` being what a call costs. Beginning with a batch for every class, the two whose
union adds least are joined until that is more than :math:`\gamma`.
"""

from __future__ import annotations

import numpy as np


def batches(shapes: np.ndarray, counts: np.ndarray, call: float) -> list[list[int]]:
    """Classes that are factorised together.

    Args:
        shapes: Pivots and boundary of every class, in unknowns, [C, 2].
        counts: Number of fronts of every class, [C].
        call: What one more batch costs, in units of a front's width³.
    """
    padded = np.array(shapes, float)
    number = np.array(counts, float)
    found: list[list[int]] = [[c] for c in range(len(number))]
    while len(found) > 1:
        both = np.maximum(padded[:, None], padded).sum(-1) ** 3 * (number[:, None] + number)
        alone = np.diagonal(both) / 2.0  # a class with itself was counted twice
        added = both - alone[:, None] - alone
        np.fill_diagonal(added, np.inf)
        i, j = sorted(divmod(int(added.argmin()), len(found)))
        if added[i, j] > call:
            break
        found[i] += found.pop(j)
        padded[i] = np.maximum(padded[i], padded[j])
        number[i] += number[j]
        padded, number = np.delete(padded, j, 0), np.delete(number, j)
    return found
