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
    padded, number = np.array(shapes, float), np.array(counts, float)
    found: list[list[int]] = [[c] for c in range(len(number))]
    alone = _work(padded, number)
    added = _work(np.maximum(padded[:, None], padded), number[:, None] + number)
    added -= alone[:, None] + alone
    np.fill_diagonal(added, np.inf)
    every = np.arange(len(number))
    partner = added.argmin(1)  # of every batch the one whose union with it adds least
    for _ in every[1:]:
        i = int(added[every, partner].argmin())
        j = int(partner[i])
        if added[i, j] > call:
            break
        found[i] += found[j]
        found[j] = []
        padded[i] = np.maximum(padded[i], padded[j])
        number[i] += number[j]
        alone[i] = _work(padded[i], number[i])
        with_i = _work(np.maximum(padded[i], padded), number[i] + number) - alone[i] - alone
        with_i[[c == i or not batch for c, batch in enumerate(found)]] = np.inf
        added[i] = added[:, i] = with_i
        added[j] = added[:, j] = np.inf
        lost = (partner == i) | (partner == j)
        partner[lost] = added[lost].argmin(1)
        partner[with_i < added[every, partner]] = i
    return [batch for batch in found if batch]


def _work(shape: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Of so many fronts padded to this shape […, 2]."""
    return np.asarray(number * shape.sum(-1) ** 3)
