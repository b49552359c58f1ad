r"""The constants of the theorem on gradient steps of certified size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hogwild.graph import Graph


@dataclass(frozen=True)
class Descent:
    r"""The constants of the theorem on certified steps, for steps α = a / r.

    Where nodes compute both sides of their edges (``apart``, q), the theorem on one hop holds: only
    what a node reads of others is old, and :math:`\rho = \max_i q_i / r_i`. With letters
    :math:`\rho = 1`, and r are row sums.
    """

    rows: Tensor  # r, [R, k, N]
    beta: Tensor  # β, [R, G]
    steps: Tensor | float  # α, [R, k, N] or a number
    age: int  # D'
    stagger: int  # S
    graph: Graph
    apart: Tensor | None = None  # q, [R, k, N]; None: neighbours send gradients

    @property
    def mu(self) -> Tensor:
        """Strong convexity in the norm of the rows, [R, G]."""
        return self.beta / self.graph.norm(self.rows)

    @property
    def share(self) -> Tensor:
        """ρ, [R, G]."""
        one = torch.ones_like(self.rows)
        return self.graph.norm(one if self.apart is None else self.apart / self.rows)

    @property
    def margin(self) -> Tensor:
        """c, [R, G]: the least 1 / a - 1/2 - D' q / r."""
        late = 1.0 if self.apart is None else self.apart / self.rows
        each = 1.0 / (self.steps * self.rows) - 0.5 - self.age * late
        top = each.max()
        return top - self.graph.norm(top - each)

    @property
    def span(self) -> int:
        """T, how many changes may lie between what a node used and one tick of a window."""
        return self.age + self.stagger if self.apart is None else max(self.age, self.stagger - 1)

    def _window(self) -> Tensor:
        """1 / a² + ρ² T, [R, G]."""
        largest = self.graph.norm(1.0 / (self.steps * self.rows))
        return largest.square() + self.share.square() * self.span

    def shrink(self) -> float:
        r"""c / C of the slowest graph: Φ shrinks by 1 / (1 + c / C).

        Where steps are not in proportion to 1 / r, another C is smaller, with the gradient's
        Euclidean norm: :math:`C = \tfrac{1}{2\beta} \bigl(\max_a \tfrac{1}{\alpha_a \sqrt{r_a}} +
        \rho \sqrt{T \max_a r_a}\bigr)^2 + \rho \tfrac{D'}{2}`.
        """
        norm, late = self.graph.norm, self.share * self.span**0.5
        scaled = (norm(1.0 / (self.steps * self.rows)) + late).square() / self.mu
        plain = norm(1.0 / (self.steps * self.rows.sqrt())) + late * norm(self.rows).sqrt()
        big = 0.5 * torch.minimum(scaled, plain.square() / self.beta)
        return float((self.margin / (big + 0.5 * self.share * self.age)).min())

    def near(self, error: float) -> float:
        r"""Distance from the answer in the end, where gradients are wrong by ε: with
        :math:`\bar\epsilon^2 = \sum_a \epsilon_a^2 / r_a`,

        .. math::
            \limsup \Phi \le \Bigl(\frac{C' (D' + S)}{c^2} + \frac{3}{2\mu} + \frac{S}{2c}\Bigr)
            \bar\epsilon^2, \qquad
            C' = \frac{3}{2\mu}\Bigl(\frac{1}{\underline a^2} + \rho^2 T\Bigr)
            + \rho \frac{D'}{2},

        and :math:`\|h - h^*\|^2 \le 2 \Phi / \beta`. Views wrong by δ make a gradient wrong by at
        most :math:`\delta r_a`, and each of the letters it is the sum of adds δ. Without letters
        :math:`\bar\epsilon^2 \le \rho \delta^2 \sum_a q_a`.
        """
        wrong = error * (self.rows + self.graph.in_degree.to(self.rows.dtype))
        square = self.graph.sum((wrong.square() / self.rows).sum(1))
        if self.apart is not None:
            square = self.share * error**2 * self.graph.sum(self.apart.sum(1))
        c, age, stagger = self.margin, self.age, self.stagger
        big = 1.5 * self._window() / self.mu + 0.5 * self.share * age
        gap = square * (big * (age + stagger) / c**2 + 1.5 / self.mu + 0.5 * stagger / c)
        return float((2.0 * gap / self.beta).sqrt().max())

    def tracking(self, drift: float, rows: Tensor) -> float:
        r"""Distance from a minimiser that moves, in the end, where a tick changes the gradient of
        the energy by at most :math:`d R_a` in every entry, d being the ``drift`` and R bounds on
        the absolute row sums of the Hessian, ``rows``: with
        :math:`T = D' + S`, :math:`\bar\gamma^2 = d^2 \sum_a R_a^2 / r_a`,
        :math:`b = \bar\gamma \sqrt{2 / \mu}`, :math:`e = D' \bar\gamma / \sqrt{2c}`,
        :math:`A = 2C' / c` and C' of :meth:`near`,

        .. math::
            W = A T + S, \qquad
            Z = W (e^2 + b T (e + b)) + \frac{3 T^2 \bar\gamma^2}{2 \mu}, \qquad
            \limsup \sqrt\Phi \le p = \frac{W b + \sqrt{W^2 b^2 + 4 Z}}{2},

        and :math:`\|h - h^*\| \le p \sqrt{2 / \beta}`. The proof is in the documentation
        ("The mathematics").
        """
        window, c, mu = self.age + self.stagger, self.margin, self.mu
        gamma = drift * self.graph.sum((rows.square() / self.rows).sum(1)).sqrt()  # [R, G]
        b, e = gamma * (2.0 / mu).sqrt(), self.age * gamma / (2.0 * c).sqrt()
        big = 1.5 * self._window() / mu + 0.5 * self.share * self.age
        w = 2.0 * big / c * window + self.stagger
        z = w * (e**2 + b * window * (e + b)) + 1.5 * (window * gamma) ** 2 / mu
        p = 0.5 * (w * b + ((w * b) ** 2 + 4.0 * z).sqrt())
        return float((p * (2.0 / self.beta).sqrt()).max())
