"""Tests, on a given graph, whether a trained model can run one node at a time.

* Repeated calls of the forward must agree.
* On stars, every input and every result of a convolution must be the same as on the whole graph.
* If the features and results of some nodes change, the inputs of all other nodes to every
  convolution must not change. The same holds for their predictions, if the model predicts for
  nodes.

Otherwise the forward combines nodes outside of its convolutions. The error names the module that
does so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import JumpingKnowledge

from hogwild.errors import AsynchronyError
from hogwild.graph import Star
from hogwild.models.locality import refuse_beyond_one_hop
from hogwild.models.wrapping.fields import Fields, chosen, moved
from hogwild.models.wrapping.problem import WrappedProblem, flat
from hogwild.models.wrapping.recorded import Differs, Recorded
from hogwild.models.wrapping.tap import named

_DRAWS = 3
"""Permutations of the features on which a model is tested; the first is the identity."""
_CALLS = 3
"""Calls of the forward on the same data that must agree."""


class Trial:
    """Tests a model on a graph.

    Args:
        problem: The model on the graph; :meth:`run` sets ``problem.surrounded``.
    """

    def __init__(self, problem: WrappedProblem) -> None:
        self.problem, self.wrapped, self.graph = problem, problem.wrapped, problem.graph
        self.fields, self.recorded, self.depth = problem.fields, problem.recorded, problem.depth

    def run(self) -> None:
        """Find out whether leaves need their own edges; raise if a test fails."""
        self._require_repeatable()
        graph, random = self.graph, torch.Generator().manual_seed(0)
        n, device = graph.num_nodes, graph.src.device
        half = torch.randperm(n, generator=random)[: max(n // 2, 1)].to(device)
        stars, draws = (graph.everyone, graph.star(half)), [(self.fields, self.recorded)]
        for _ in range(1, _DRAWS):
            order = torch.argsort(
                torch.rand(n, generator=random).to(device) + self.fields.nodes["batch"]
            )
            dealt = self.fields.shuffled(order)
            draws.append((dealt, Recorded.of(self.wrapped, dealt)))
        self._try_stars(stars, draws)
        self._try_rows(draws[1:], random)

    def _require_repeatable(self) -> None:
        """Raise if repeated calls of the forward differ."""
        for _ in range(1, _CALLS):
            again = Recorded.of(self.wrapped, self.fields)
            pairs = list(zip(self.recorded.z, again.z, strict=False))
            moved = [gap_between(flat(a), flat(b)) > 0.0 for a, b in pairs]
            place = self.recorded.calls[moved.index(True)] if any(moved) else ""
            if again.calls != self.recorded.calls:
                what = "calls other convolutions"
            elif place:
                what = f"gets another result of {place}"
            elif gap_between(self.recorded.out, again.out) > 0.0:
                what = "gives other predictions"
            else:
                continue
            raise AsynchronyError(
                f"{self.wrapped.name}.forward is random: called twice on the same data in "
                f"evaluation mode, it {what}. Expected a forward that is a function of the data: "
                f"torch.nn.functional.dropout(x, p) also drops entries in evaluation mode; write "
                f"dropout(x, p, training=self.training), or use torch.nn.Dropout"
            )

    def _try_stars(self, stars: Sequence[Star], draws: Sequence[tuple[Fields, Recorded]]) -> None:
        """Raise if inputs or results on stars differ from those on the whole graph."""
        found: _Fault | None = None
        for self.problem.surrounded in (False, True):
            faults = (self._fault(at, *draw) for draw in draws for at in stars)
            found = next((fault for fault in faults if fault is not None), None)
            if found is None:
                return
        assert found is not None
        raise self._refusal(found) from found.cause

    def _try_rows(self, others: Sequence[tuple[Fields, Recorded]], random: torch.Generator) -> None:
        """Raise if the forward combines nodes between, before or after its convolutions: some nodes
        get other features and other results, and the other nodes must not change."""
        n, device = self.graph.num_nodes, self.graph.src.device
        failure: Exception | None = None
        tried = 0
        for number, (dealt, other) in enumerate(others):
            sign = -1.0 if number % 2 else 1.0
            z = [moved(result, sign, random) for result in other.z]
            some = (torch.rand(n, generator=random) < 0.5).to(device)
            for features in (dealt, dealt.shifted(sign, random)):
                for nodes in (some, ~some):
                    fields = self.fields.mixed(features, nodes)
                    pairs = zip(self.recorded.z, z, strict=True)
                    given = replace(self.recorded, z=[chosen(a, b, nodes) for a, b in pairs])
                    try:
                        made = Recorded.of(self.wrapped, fields, given)
                    except Differs as error:
                        raise AsynchronyError(
                            f"{self.wrapped.name}.forward calls other convolutions when the values "
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
                f"{self.wrapped.name}.forward cannot be tested: with permuted features and other "
                f"results of convolutions at some nodes it raises {failure!r}. Expected a forward "
                f"that takes any features of the data at any node"
            ) from failure

    def _require_still(
        self, made: Recorded, still: Tensor, fields: Fields, given: Recorded
    ) -> None:
        """Raise if nodes (a mask [N]) changed whose own features and results did not change."""
        for index in range(self.depth + 1):
            if index < self.depth:
                before, after = self.recorded.value(index), made.value(index)
            else:
                before, after = self.recorded.out, made.out
                if before.size(0) != self.graph.num_nodes:
                    return  # predictions of graphs
            gap = 1.0 if before.shape != after.shape else gap_between(before[still], after[still])
            if gap > 0.0:
                raise self._meeting(index, gap, still, fields, given)

    def _meeting(
        self, index: int, gap: float, still: Tensor, fields: Fields, given: Recorded
    ) -> AsynchronyError:
        """The error about a forward that combines nodes outside of its convolutions."""

        def same(whole: Any, part: Any) -> bool:
            pair = (whole, part)
            if not all(isinstance(x, Tensor) and x.shape[:1] == still.shape for x in pair):
                return True  # not tensors over the nodes
            return whole.shape == part.shape and not gap_between(
                flat(whole[still]), flat(part[still])
            )

        first, second = _Trail(self.wrapped.model), _Trail(self.wrapped.model)
        with first:
            Recorded.of(self.wrapped, self.fields, self.recorded)
        with second:
            Recorded.of(self.wrapped, fields, given)
        calls = [*self.recorded.calls, ""]
        culprit = _culprit(first, second, same, calls[index]) or "what the forward itself does"
        alone = (
            f"at some nodes change by {gap:.1e}, although only the features and convolution "
            f"results of other nodes change"
        )
        if index == self.depth:
            return AsynchronyError(
                f"{culprit} after {calls[index - 1]} reads more than single nodes: the predictions "
                f"{alone}. "
                f"A prediction for a node may depend on the node's own convolution results only: "
                f"expected norms of single nodes there, softmax over channels (dim=-1), and "
                f"aggregation over neighbours in a MessagePassing convolution. A prediction for "
                f"the whole graph may pool over its nodes and has the shape [graphs, out]"
            )
        before = calls[index - 1] if index else "the beginning"
        return AsynchronyError(
            f"{culprit} between {before} and {calls[index]} reads more than single nodes: the "
            f"inputs of {calls[index]} {alone}. {_EXPECTED}"
        )

    def _fault(self, at: Star, fields: Fields, expected: Recorded) -> _Fault | None:
        """The first difference between the forward on stars and on the whole graph."""
        src = at.at_edges(self.graph.src)
        heard = {i: expected.value(i)[src] for i in range(self.depth)}
        try:
            made = self.problem.run(at, (), heard, fields=fields)
        except Differs as error:
            what = f"calls other convolutions on a part of the graph ({error})"
            return _Fault(at, fields, None, None, what, None)
        except Exception as error:  # a foreign model may raise anything on stars
            return _Fault(at, fields, None, None, f"raises {error!r}", error)
        for index in range(self.depth):
            pairs = (
                (made.values[index], expected.value(index)),
                (made.results[index], flat(expected.z[index])),
            )
            for result, (mine, theirs) in zip((False, True), pairs, strict=True):
                whole = at.at_nodes(theirs.mT).mT
                scale = float(whole.nan_to_num().abs().max()) or 1.0
                same = mine.isnan() & whole.isnan()
                gap = float(torch.where(same, 0.0, (mine - whole).abs()).max()) / scale
                if not gap <= torch.finfo(mine.dtype).eps ** 0.5:
                    return _Fault(at, fields, index, result, f"differs by {gap:.1e}", None)
        return None

    def _refusal(self, found: _Fault) -> AsynchronyError:
        model, name = self.wrapped.model, self.wrapped.name
        alone = f"evaluated on a node and its neighbours alone it {found.what}"
        if found.index is None:
            return AsynchronyError(
                f"{name}.forward cannot be run for a node and its neighbours alone: it "
                f"{found.what}{_known(model)}. Expected a forward that combines nodes in its "
                f"convolutions only, and does not use edge_index, batch or the number of nodes to "
                f"do so elsewhere"
            )
        call = self.recorded.calls[found.index]
        if found.result:
            called = dict(model.named_modules()).get(call.split(" ")[0], model)
            return AsynchronyError(
                f"{call} looks beyond a node and the neighbours it hears: {alone}{_known(called)}. "
                f"Expected a convolution of one hop. Pass information about the whole graph as "
                f"features of nodes or edges"
            )
        before = self.recorded.calls[found.index - 1] if found.index else "the beginning"
        culprit = self._culprit(found, call) or "what the forward itself does"
        return AsynchronyError(
            f"{culprit} between {before} and {call} reads more than single nodes: {alone}. "
            f"{_EXPECTED}"
        )

    def _culprit(self, found: _Fault, call: str) -> str | None:
        """The module that causes a difference between stars and the whole graph."""
        whole = _Trail(self.wrapped.model)
        with whole:
            expected = Recorded.of(self.wrapped, found.fields)
        src = found.at.at_edges(self.graph.src)
        heard = {i: expected.value(i)[src] for i in range(self.depth)}
        part = _Trail(self.wrapped.model)
        with part:
            self.problem.run(found.at, (), heard, fields=found.fields)
        return _culprit(whole, part, partial(self._same, found.at), call)

    def _same(self, at: Star, whole: Any, part: Any) -> bool:
        """Whether the rows of some nodes equal those of the whole graph; true for anything that is
        not a tensor over the nodes."""
        if not isinstance(whole, Tensor) or not isinstance(part, Tensor):
            return True
        if not whole.dim() or whole.size(0) != self.graph.num_nodes or part.size(0) < at.size:
            return True
        mine, theirs = flat(part[: at.size]).double(), flat(whole).double()
        theirs = at.at_nodes(theirs.mT).mT
        return bool(torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max())))


_EXPECTED = (
    "An asynchronous node knows only itself and its neighbours: expected norms of single nodes "
    "there (LayerNorm in mode 'node', BatchNorm in evaluation mode), and no pooling, attention or "
    "other aggregation over nodes outside of MessagePassing. A model that predicts for graphs may "
    "pool after its last convolution, inside the forward or in wrap(model, head=...)"
)


@dataclass
class _Fault:
    """A difference between the forward on stars and on the whole graph."""

    at: Star
    fields: Fields
    index: int | None  # of the call; None if the forward raised an error
    result: bool | None  # whether the result of the call differs; False: its input differs
    what: str
    cause: Exception | None


class _Trail:
    """Records the first input and the output of every module, in the order in which they finish."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.steps: list[tuple[str, Any, Any]] = []

    def __enter__(self) -> None:
        def keep(path: str) -> Callable[[nn.Module, Any, Any], None]:
            def hook(module: nn.Module, given: Any, made: Any) -> None:
                self.steps.append((named(path, module), given[0] if given else None, made))

            return hook

        self.hooks = [
            module.register_forward_hook(keep(path))
            for path, module in self.model.named_modules()
            if path  # without the model itself
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()


def _culprit(
    whole: _Trail, part: _Trail, same: Callable[[Any, Any], bool], call: str
) -> str | None:
    """The first module before the call whose input is the same in two forwards, but whose output
    differs."""
    for (path, given, made), (_, mine, result) in zip(whole.steps, part.steps, strict=False):
        if path == call or not same(given, mine):
            return None
        if not same(made, result):
            return path
    return None


def _known(module: nn.Module) -> str:
    """The reason, in parentheses, if a type inside the module is known to read more than one hop;
    otherwise ``""``."""
    try:
        refuse_beyond_one_hop(module, allow=(JumpingKnowledge,))
    except AsynchronyError as error:
        return f" ({str(error).split('; expected layers')[0]})"
    return ""


def gap_between(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors, relative to their size; 0 if it is only rounding."""
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return float(bool((a != b).any()))
    scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    gap = float(torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf).max())
    gap /= scale or 1.0
    return gap if gap > 1e3 * torch.finfo(a.dtype).eps else 0.0
