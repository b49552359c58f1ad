"""Tests, on a given graph, whether the levels of a program can run one node at a time.

* Repeated calls of the forward must agree.
* On stars, every input and every result of a level must be the same as on the whole graph.
* If the features and results of some nodes change, the inputs of all other nodes to every level
  must not change. The same holds for their predictions, if the model predicts for nodes.

Otherwise the forward combines nodes outside of its levels. The error names the module that does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hogwild.errors import AsynchronyError
from hogwild.graph import Star
from hogwild.models.program import (
    Differs,
    Fields,
    LayeredProblem,
    Program,
    Recorded,
    flat,
    named,
)

_SAMPLES, _DRAWS = 64, 3
"""Nodes on which a chain is tested, and permutations of the features on which any model is tested;
the first is the identity. Chains on large graphs get fewer."""
_EXPECTED = (
    "An asynchronous node knows only itself and its neighbours: expected norms of single nodes "
    "there (LayerNorm in mode 'node', BatchNorm in evaluation mode), and no pooling, attention or "
    "other aggregation over nodes outside of MessagePassing. A model that predicts for graphs may "
    "pool after its last convolution, inside the forward or in wrap(model, head=...)"
)
_LOCAL = (
    "Expected convolutions of one hop (several convolutions for several hops) and norms of single "
    "nodes, such as torch.nn.LayerNorm, LayerNorm(mode='node') or BatchNorm. Pass information "
    "about the whole graph as features of nodes or edges. A node hears the senders of the edges "
    "into it: in place of flow='target_to_source', flip edge_index"
)


def layered(program: Program, fields: Fields, encoded: Tensor | None = None) -> LayeredProblem:
    """The levels of a program, one node at a time. With replicas the first one is tested.

    Raises:
        AsynchronyError: The program at a node is not a function of what the node knows.
    """
    noisy = (part for part in program.model.modules() if isinstance(part, _BatchNorm | _DropoutNd))
    if any(part.training for part in noisy):
        raise AsynchronyError(
            f"{program.name} is in training mode, in which a BatchNorm reads all nodes and dropout "
            f"is random; call model.eval() before running it asynchronously"
        )
    with torch.no_grad():
        mine = replace(fields, _kept={})  # what is kept here is detached
        problem = LayeredProblem(program, mine, Recorded.of(program, mine), encoded)
        _Trial(problem).run()
    return replace(problem, fields=fields)


class _Trial:
    """Tests a program on a graph.

    Args:
        problem: The program on the graph; :meth:`run` sets ``problem.surrounded``.
    """

    def __init__(self, problem: LayeredProblem) -> None:
        self.problem, self.program, self.graph = problem, problem.program, problem.graph
        self.fields, self.recorded, self.depth = problem.fields, problem.recorded, problem.depth

    def run(self) -> None:
        """Find out whether leaves need their own edges; raise if a test fails."""
        self._require_repeatable()
        graph, random = self.graph, torch.Generator().manual_seed(0)
        n, device = graph.num_nodes, graph.src.device
        half = torch.randperm(n, generator=random)[: max(n // 2, 1)].to(device)
        draws, chain = [(self.fields, self.recorded)], self.program.layer is not None
        for _ in range(1, min(-(-_SAMPLES // n), _DRAWS) if chain else _DRAWS):
            order = torch.argsort(
                torch.rand(n, generator=random).to(device) + self.fields.nodes["batch"]
            )
            dealt = self.fields.changed(lambda _, x, order=order: x[order])  # type: ignore[misc]
            draws.append((dealt, Recorded.of(self.program, dealt)))
        if not chain:  # nothing lies between the levels of a chain
            self._try_rows(draws[1:], random)
        self._try_stars((graph.everyone, graph.star(half)), draws)

    def _require_repeatable(self) -> None:
        """Raise if repeated calls of the forward differ."""
        first, again = self.recorded, Recorded.of(self.program, self.fields)
        pairs = zip(first.calls, first.z, again.z, strict=False)
        if again.calls != first.calls:
            what = "calls other convolutions"
        elif other := [call for call, a, b in pairs if gap_between(flat(a), flat(b))]:
            what = f"gets another result of {other[0]}"
        elif gap_between(first.out, again.out):
            what = "gives other predictions"
        else:
            return
        raise AsynchronyError(
            f"{self.program.name} is random: called twice on the same data, it {what}. "
            f"Expected a forward that is a function of the data: call model.eval(); "
            f"torch.nn.functional.dropout(x, p) also drops entries in evaluation mode, so write "
            f"dropout(x, p, training=self.training), or use torch.nn.Dropout"
        )

    # -- between levels ----------------------------------------------------------------------------

    def _try_rows(self, others: Sequence[tuple[Fields, Recorded]], random: torch.Generator) -> None:
        """Raise if the forward combines nodes between, before or after its levels: some nodes get
        other features and other results, and the other nodes must not change."""
        n, device = self.graph.num_nodes, self.graph.src.device
        failure: Exception | None = None
        tried = 0
        for number, (dealt, other) in enumerate(others):
            sign = -1.0 if number % 2 else 1.0
            z = [moved(result, sign, random) for result in other.z]
            some = (torch.rand(n, generator=random) < 0.5).to(device)
            shifted = dealt.changed(lambda _, x, sign=sign: moved(x, sign, random))  # type: ignore[misc]
            for feature, nodes in product((dealt, shifted), (some, ~some)):
                fields = self.fields.changed(
                    lambda name, x, own=feature.nodes, nodes=nodes: chosen(x, own[name], nodes)  # type: ignore[misc]
                )
                pairs = zip(self.recorded.z, z, strict=True)
                given = [chosen(a, b, nodes) for a, b in pairs]
                try:
                    made = Recorded.of(self.program, fields, self.recorded, given)
                except Differs as error:
                    raise AsynchronyError(
                        f"{self.program.name} calls other convolutions when the values "
                        f"of some nodes change ({error}). Expected the same calls for all "
                        f"values: an asynchronous node knows only itself and its neighbours"
                    ) from error
                except Exception as error:  # the forward may not accept shifted features
                    failure = error
                    continue
                tried += 1
                self._require_still(made, ~nodes, fields, given)
        if not tried and failure is not None:
            raise AsynchronyError(
                f"{self.program.name} cannot be tested: with permuted features and other "
                f"results of convolutions at some nodes it raises {failure!r}. Expected a forward "
                f"that takes any features of the data at any node"
            ) from failure

    def _require_still(
        self, made: Recorded, still: Tensor, fields: Fields, given: list[Tensor]
    ) -> None:
        """Raise if nodes (a mask [N]) changed whose own features and results did not change."""
        first = self.recorded
        pairs = zip([*first.values, first.out], [*made.values, made.out], strict=True)
        for index, (before, after) in enumerate(pairs):
            if index == self.depth and before.size(0) != self.graph.num_nodes:
                return  # predictions of graphs
            gap = 1.0 if before.shape != after.shape else gap_between(before[still], after[still])
            if gap:
                culprit = self._culprit([*first.calls, ""][index], still, fields, given)
                how = (
                    f"at some nodes change by {gap:.1e}, although only the features and "
                    f"convolution results of other nodes change"
                )
                raise self._meeting(index, culprit, how)

    def _culprit(self, call: str, still: Tensor, fields: Fields, given: list[Tensor]) -> str:
        """The first module before the call whose input is the same at the nodes ``still`` (a mask
        [N]) with these fields and results, but whose output differs."""

        def same(before: Any, after: Any) -> bool:
            pair = (before, after)
            if not all(isinstance(x, Tensor) and x.shape[:1] == still.shape for x in pair):
                return True  # not tensors over the nodes
            return before.shape == after.shape and not gap_between(
                flat(before[still]), flat(after[still])
            )

        model, first = self.program.model, self.recorded
        one = _trail(model, lambda: Recorded.of(self.program, self.fields, first, first.z))
        two = _trail(model, lambda: Recorded.of(self.program, fields, first, given))
        for (path, mine, made), (_, theirs, result) in zip(one, two, strict=False):
            if path == call or not same(mine, theirs):
                break
            if not same(made, result):
                return path
        return "what the forward itself does"

    def _meeting(self, index: int, culprit: str, how: str) -> AsynchronyError:
        """The error about a forward that combines nodes outside of its levels."""
        calls = self.recorded.calls
        before = calls[index - 1] if index else "the beginning"
        if index < self.depth:
            return AsynchronyError(
                f"{culprit} between {before} and {calls[index]} reads more than single nodes: the "
                f"inputs of {calls[index]} {how}. {_EXPECTED}"
            )
        return AsynchronyError(
            f"{culprit} after {before} reads more than single nodes: the predictions {how}. "
            f"A prediction for a node may depend on the node's own convolution results only: "
            f"expected norms of single nodes there, softmax over channels (dim=-1), and "
            f"aggregation over neighbours in a MessagePassing convolution. A prediction for "
            f"the whole graph may pool over its nodes and has the shape [graphs, out]"
        )

    # -- on stars ----------------------------------------------------------------------------------

    def _try_stars(self, stars: Sequence[Star], draws: Sequence[tuple[Fields, Recorded]]) -> None:
        """Raise if inputs or results on stars differ from those on the whole graph. The stars of
        all nodes are not enough: on a regular graph, statistics over all of them could equal those
        of the graph."""
        found: AsynchronyError | None = None
        for self.problem.surrounded in (False, True):
            faults = (self._fault(at, *draw) for draw in draws for at in stars)
            found = next((fault for fault in faults if fault is not None), None)
            if found is None:
                return
        assert found is not None
        raise found

    def _fault(self, at: Star, fields: Fields, expected: Recorded) -> AsynchronyError | None:
        """The error about the first difference between the forward on stars and on the whole
        graph."""
        src = at.at_edges(self.graph.src)
        try:
            made = self.problem.run(at, (), [v[src] for v in expected.values], fields)
        except Differs as error:
            what = f"calls other convolutions on a part of the graph ({error})"
            return self._unable(what, error)
        except Exception as error:  # a foreign model may raise anything on stars
            return self._unable(f"raises {error!r}", error)

        def gap(mine: Tensor, whole: Tensor) -> float:
            return gap_between(at.at_nodes(flat(whole).mT).mT, flat(mine), loose=True)

        for index, call in enumerate(self.recorded.calls):
            inputs = gap(made.values[index], expected.values[index])
            if inputs:
                how = f"differ by {inputs:.1e} on a node and its neighbours alone"
                return self._meeting(index, "what the forward itself does", how)
            result = gap(made.z[index], expected.z[index])
            if result:
                return AsynchronyError(
                    f"{call} looks beyond a node and the neighbours it hears: evaluated on a node "
                    f"and its neighbours alone it differs by {result:.1e}. {_LOCAL}"
                )
        return None

    def _unable(self, what: str, cause: Exception) -> AsynchronyError:
        """The error about a forward that cannot run on stars."""
        found = AsynchronyError(
            f"{self.program.name} cannot be run for a node and its neighbours alone: it "
            f"{what}. Expected a forward that combines nodes in its convolutions only, and does "
            f"not use edge_index, batch or the number of nodes to do so elsewhere"
        )
        found.__cause__ = cause
        return found


def _trail(model: nn.Module, run: Callable[[], object]) -> list[tuple[str, Any, Any]]:
    """The name, the first input and the output of every module inside the model during a run, in
    the order in which the modules finish."""
    steps: list[tuple[str, Any, Any]] = []

    def keep(path: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, given, made: steps.append(
            (named(path, module), given[0] if given else None, made)
        )

    parts = [(path, module) for path, module in model.named_modules() if path]
    hooks = [module.register_forward_hook(keep(path)) for path, module in parts]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return steps


def moved(x: Tensor, sign: float, random: torch.Generator) -> Tensor:
    """Floating-point numbers shifted in one direction, by one to two times the largest of them."""
    if not x.is_floating_point():
        return x
    by = 1.0 + torch.rand(x.shape, generator=random, dtype=torch.float64).to(x)
    return x + sign * by * (float(x.abs().max()) or 1.0)


def chosen(own: Tensor, other: Tensor, nodes: Tensor) -> Tensor:
    """The rows of ``other`` at some nodes (a mask [N]), and of ``own`` elsewhere."""
    return torch.where(nodes.view(-1, *[1] * (own.dim() - 1)), other, own)


def gap_between(a: Tensor, b: Tensor, loose: bool = False) -> float:
    """The largest difference of two tensors, relative to the size of the first; 0 if it is only
    rounding. ``loose`` allows for half of the digits."""
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return float(bool((a != b).any()))
    scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    gap = float(torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf).max())
    gap /= scale or 1.0
    eps = torch.finfo(a.dtype).eps
    return gap if gap > (eps**0.5 if loose else 1e3 * eps) else 0.0
