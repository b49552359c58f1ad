"""The one training loop: full batch or mini-batches, one model or an ensemble of them.

Every number that matters is kept per replica: loss, gradient norm, validation metric, best
parameters, and why it stopped. A replica whose loss is not a number, or whose solve fails, goes
back to its best parameters and stays there; the others do not notice. An epoch is a function of the
parameters, the optimiser's memory, the warm starts, the random state and its own number: what a
checkpoint holds, and why a run that was killed and resumed ends in the same bits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.data import Batch
from tqdm import tqdm

from hogwild.config import Config
from hogwild.errors import ConvergenceWarning, InputError
from hogwild.linalg.solution import Solution, Status
from hogwild.metrics import cost
from hogwild.models.base import Kind
from hogwild.models.gnn import ConvGNN
from hogwild.models.scarselli import ScarselliGNN
from hogwild.training import checkpoint, state
from hogwild.training.ensemble import Members
from hogwild.training.log import Log
from hogwild.training.optimiser import AdamW, Rows, clip
from hogwild.training.predict import inputs_of, predict
from hogwild.training.registry import device_of, set_on_failure
from hogwild.training.shelf import Shelf, Taken
from hogwild.training.state import Stop
from hogwild.training.task import Task


@runtime_checkable
class Projected(Protocol):
    """A model whose parameters are put back into their bounds after every step."""

    def project_(self, *, warn: bool = True) -> object: ...


class Loop:
    """A training run in progress.

    Args:
        config: What to do.
        task: The graphs, the loss, the metric.
        model: With or without replicas; changed in place.
        members: What each replica trains on.
        edges: Whether the model reads edge features.
        folder: Where checkpoints go; ``None``: there are none.
        log: Where the history goes.
        callback: Called as ``callback(loop)`` after every epoch.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        model: ConvGNN,
        members: Members,
        edges: bool,
        folder: Path | None,
        log: Log,
        callback: Callable[[Loop], None] | None = None,
    ) -> None:
        device = device_of(config)
        config = config.completed(getattr(task, "defaults", {}))
        assert config.validate_every is not None
        assert config.log_every is not None
        self.validate_every, self.log_every = config.validate_every, config.log_every
        self.config, self.task, self.members, self.edges = config, task, members, edges
        self.folder, self.log, self.callback = folder, log, callback
        self.model = model.to(device, config.precision)
        set_on_failure(self.model, "warn" if config.on_failure == "stop" else "ignore")
        self.implicit = model.kind != Kind.EXPLICIT
        self.shelf = Shelf(task.graphs, config.precision, device)
        self.rows = Rows(self.model, model.replicas)
        self.optimiser = AdamW(self.rows.values(), config.weight_decay)
        self.replicas = self.rows.replicas
        self.epoch = 0
        self.judged = -1  # the epoch of the last judgement
        self.stops: list[Stop | None] = [None] * self.replicas
        self.alive = torch.ones(self.replicas, dtype=torch.bool, device=device)
        worst = torch.full((self.replicas,), torch.inf, dtype=torch.float64, device=device)
        self.best_score, self.best_loss = worst, worst.clone()
        self.best_epoch = torch.full_like(worst, -1, dtype=torch.long)
        self.best = {k: self._row(t).clone() for k, t in self.model.state_dict().items()}
        self.warm: Tensor | None = None  # [R, N, k] of all graphs, in training only
        self.loss = worst.clone()  # of the last epoch
        self.score = worst.clone() * torch.nan  # the last validation metric
        self.iterations = 0  # of the last epoch, the largest
        self._resumed: dict[str, Tensor] | None = None  # a random state to go on from
        self._warned: set[tuple[object, ...]] = set()  # what has been said before

    # -- running ----------------------------------------------------------------------------------

    def run(self, progress: bool = False) -> None:
        """To the last epoch, or until no replica is left; the model then holds the best parameters
        of every replica."""
        saved = time.monotonic()
        devices = [self.shelf.device] if self.shelf.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices=devices),
            tqdm(
                total=self.config.epochs,
                initial=self.epoch,
                disable=not progress,
                unit="epoch",
                desc="training",
            ) as bar,
        ):
            self._random()
            while self.epoch < self.config.epochs and bool(self.alive.any()):
                began = time.monotonic()
                if self.epoch % self.validate_every == 0 and self.judged != self.epoch:
                    self.judge()
                    if not bool(self.alive.any()):
                        break
                self.improve()
                self._note(time.monotonic() - began)
                self.epoch += 1
                bar.update()
                if progress:
                    bar.set_postfix_str(self._describe())
                if self.callback is not None:  # before saving: what it keeps of an epoch is there
                    self.callback(self)  # whenever a checkpoint of that epoch is
                if time.monotonic() - saved >= self.config.checkpoint_every:
                    self.save()
                    saved = time.monotonic()
            self.save()
            if self.judged != self.epoch:
                self.judge()
        self._admit()
        self._restore(torch.ones_like(self.alive))
        self.model.eval()

    def improve(self) -> None:
        """One epoch of optimiser steps."""
        self.model.train()
        total, weight = torch.zeros_like(self.best_loss), torch.zeros_like(self.best_loss)
        self.iterations = 0
        for taken in self._batches():
            mask = self.members.train[:, taken.ids]
            loss = self._step(taken, mask)
            share = mask.sum(1)
            total += torch.where(share > 0, loss * share, 0.0)
            weight += share
        self.loss = total / weight

    def _step(self, taken: Taken, mask: Tensor) -> Tensor:
        """One optimiser step; the loss of every replica, [R]."""
        config, data = self.config, taken.data
        counts = mask.any(1)
        mask = mask | ~counts.unsqueeze(1)  # a mean over nothing is not a number
        self.model.zero_grad(set_to_none=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            out, found = predict(self.model, data, self.edges, self._start(taken))
            # What does not count for a replica has no gradient, also where its target is no number
            # and a mask alone would leave 0 · NaN.
            keep = (mask[:, data.batch] if self._of_nodes(out, data) else mask).unsqueeze(-1)
            out.register_hook(lambda gradient: torch.where(keep, gradient, 0.0))
            losses = self._means("loss", self.task.loss(out, data, mask))
            if not losses.requires_grad:
                raise InputError(
                    f"the loss of {self.task.name!r} has no gradient; expected a differentiable "
                    f"function of the predictions"
                )
            if isinstance(self.model, ScarselliGNN) and config.penalty:
                losses = losses + config.penalty * self._penalty(found, data, mask)
            forward = len(caught)
            learning = self.alive & counts
            torch.where(learning, losses, 0.0).sum().backward()
        gradients = self.rows.gradients()
        losses = losses.detach()
        self._diagnose(losses, found, caught[forward:], gradients, mask, learning)
        self._pass_on(caught)
        learning = self.alive & counts
        gradients = torch.where(learning.unsqueeze(1), gradients, 0.0)
        gradients = clip(gradients, config.clip)
        lr = config.lr_at(self.epoch)
        self.rows.write(self.optimiser.step(self.rows.values(), gradients, lr, learning))
        if isinstance(self.model, Projected):
            self.model.project_(warn=False)
        if self.implicit and config.warm_start:
            h = found.value.detach()
            if self.warm is None:
                self.warm = h.new_zeros(h.size(0), self.shelf.num_nodes, h.size(-1))
            usable = self.alive.view(-1, 1, 1) & torch.isfinite(h)
            self.warm[:, taken.nodes] = torch.where(usable, h, 0.0)
        self.iterations = max(self.iterations, int(found.iterations.max()))
        return losses.double()

    def _means(self, name: str, values: Tensor) -> Tensor:
        """What the task's loss or metric returned, if that is one mean for each replica."""
        if not isinstance(values, Tensor) or values.shape != (self.replicas,):
            shape = getattr(values, "shape", None)
            what = f"is {values!r}" if shape is None else f"has shape {list(shape)}"
            raise InputError(
                f"the {name} of {self.task.name!r} {what} with {self.replicas} replicas; "
                f"expected [{self.replicas}], a tensor with one mean for each"
            )
        return values

    def _start(self, taken: Taken) -> Tensor | None:
        """Where solves begin, [R, N, k]: at the embeddings of the last epoch."""
        return None if self.warm is None else self.warm[:, taken.nodes]

    def _penalty(self, found: Solution, data: Batch, mask: Tensor) -> Tensor:
        """Scarselli's penalty, the mean over what counts, [R]."""
        assert isinstance(self.model, ScarselliGNN)
        h = found.value if self.model.replicas is not None else found.value[0]
        each = self.model.penalty(h, inputs_of(data, self.edges))
        return (each * mask).sum(-1) / mask.sum(-1)

    def _batches(self) -> Iterator[Taken]:
        """The training graphs of this epoch."""
        size = self.config.batch_size
        fresh = self.config.reshuffle and size is not None and size < len(self.shelf.graphs)
        for ids in self._chunks(self.members.train.any(0), self.epoch if fresh else 0):
            yield self.shelf.take(ids, keep=not fresh)

    def _chunks(self, used: Tensor, turn: int = 0) -> list[Tensor]:
        """The graphs ``used`` [G] in mini-batches. Their order is one of *all* graphs and a
        function of ``turn``, so that a replica meets its own ones in the same company whichever
        others are trained beside it."""
        used = used.cpu()
        if self.config.batch_size is None:
            return [used.nonzero()[:, 0]]
        random = torch.Generator().manual_seed(self.config.data_seed * 1_000_003 + turn)
        order = torch.randperm(len(used), generator=random)
        chunks = [c[used[c]].sort().values for c in order.split(self.config.batch_size)]
        return [c for c in chunks if c.numel()]

    def _portions(self, used: Tensor) -> list[Tensor]:
        """The graphs ``used`` [G] in as few batches as measuring them takes. Where those trained on
        are among them these come in the batches of training: unless they are reshuffled, their
        analysis is at hand."""
        trained = self.members.train.any(0)
        if not bool((trained & ~used).any()):
            chunks, rest = self._chunks(trained), used & ~trained
        else:
            chunks, rest = [], used
        size = self.config.batch_size or len(used)
        others = rest.cpu().nonzero()[:, 0].split(size) if bool(rest.any()) else ()
        return [*chunks, *others]

    # -- judging ----------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(
        self, *members: Tensor, quiet: bool = False, warm: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """(loss, metric) of every replica on the graphs in each of ``members`` [R, G]; NaN without
        any. The model is asked once for all of them: with as many folds as replicas every graph is
        in the training, the validation and the test set of some. Solves that fail are warned about
        unless ``quiet``; ``warm`` ones begin where training left off."""
        self.model.eval()
        used = torch.cat(members).any(0)
        if not used.any():
            nothing = torch.full_like(self.best_loss, torch.nan)
            return [(nothing, nothing.clone()) for _ in members]
        pieces = [self.shelf.take(ids, keep=True) for ids in self._portions(used)]
        taken = self.shelf.take(torch.cat([p.ids for p in pieces]), keep=True)
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", ConvergenceWarning)
            starts = [self._start(p) if warm else None for p in pieces]
            pairs = zip(pieces, starts, strict=True)
            out = torch.cat([predict(self.model, p.data, self.edges, h)[0] for p, h in pairs], -2)
        found = []
        for member in members:
            some = member.any(1)
            part, said = self._part(taken, out, member.any(0) if bool(some.any()) else used)
            mask = member[:, part.ids] | ~some.unsqueeze(1)  # a mean over nothing is not a number
            both = (("loss", self.task.loss), ("metric", self.task.metric))
            values = (self._means(k, fn(said.clone(), part.data, mask)).double() for k, fn in both)
            loss, metric = (torch.where(some, value, torch.nan) for value in values)
            found.append((loss, metric))
        return found

    def _part(self, taken: Taken, out: Tensor, wanted: Tensor) -> tuple[Taken, Tensor]:
        """The graphs ``wanted`` [G] among those taken, and what was said of them: a target that is
        no number must not reach other sets through a mask."""
        chosen = wanted[taken.ids]
        if bool(chosen.all()):
            return taken, out
        rows = chosen[taken.data.batch] if self._of_nodes(out, taken.data) else chosen
        return self.shelf.take(taken.ids[chosen].cpu(), keep=True), out[:, rows]

    def _of_nodes(self, out: Tensor, data: Batch) -> bool:
        """Whether predictions [R, …, c] are of nodes rather than of graphs; where there are as many
        of these, it does not matter."""
        if out.size(-2) not in (data.num_graphs, data.num_nodes):
            raise InputError(
                f"predictions for {self.task.name!r} have shape {list(out.shape)}; expected a row "
                f"for each of {data.num_graphs} graphs or {data.num_nodes} nodes"
            )
        return int(out.size(-2)) != data.num_graphs

    def look(self, *members: Tensor) -> list[tuple[Tensor, Tensor]]:
        """As judging does: :meth:`measure` without a word about failed solves. Where solves may end
        unfinished, where they begin decides; they then begin as when all is done: cold."""
        return self.measure(*members, quiet=True, warm=self.config.on_failure == "stop")

    def judge(self, *more: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keep the parameters of replicas that are better than ever on their validation graphs
        (their training graphs, where a task has no others); stop those that have not been for too
        long. Returns loss and metric on ``more`` sets of graphs [R, G] by the same pass."""
        some = self.members.val.any(1, keepdim=True)
        member = torch.where(some, self.members.val, self.members.train)
        (loss, self.score), *others = self.look(member, *more)
        self.judged = self.epoch
        score = cost(self.score, self.task.higher_is_better)
        tie = (score == self.best_score) & (loss < self.best_loss)
        better = ((score < self.best_score) | tie) & torch.isfinite(loss) & self.alive
        self.best_score = torch.where(better, score, self.best_score)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        for name, value in self.model.state_dict().items():
            row = self._row(value)
            wide = better.view(-1, *[1] * (row.dim() - 1))
            self.best[name] = torch.where(wide, row, self.best[name])
        patience = self.config.patience
        if patience is not None:
            waited = self.epoch - self.best_epoch
            for r in ((waited >= patience) & self.alive).nonzero()[:, 0].tolist():
                name = self.task.metric_name
                self._stop(r, False, f"no better {name} on validation for {int(waited[r])} epochs")
        return others

    def _diagnose(
        self,
        losses: Tensor,
        found: Solution,
        caught: list[warnings.WarningMessage],
        gradients: Tensor,
        mask: Tensor,
        learning: Tensor,
    ) -> None:
        """Stop every replica with which something is wrong, and say what."""
        failed = ~found.converged & mask
        adjoint = torch.zeros_like(failed)
        for warning in caught:
            about = warning.message
            if isinstance(about, ConvergenceWarning) and about.failed is not None:
                adjoint |= about.failed & mask
        if self.config.on_failure == "ignore":
            failed, adjoint = torch.zeros_like(failed), torch.zeros_like(failed)
        unbounded = ~torch.isfinite(losses) | ~torch.isfinite(gradients).all(1)
        for r in ((unbounded | failed.any(1) | adjoint.any(1)) & learning).nonzero()[:, 0].tolist():
            if bool(failed[r].any()):
                g = int(failed[r].nonzero()[0, 0])
                reason = (
                    f"the forward solve failed on {int(failed[r].sum())} graphs (residual "
                    f"{float(found.residual[r, g]):.2g} after {int(found.iterations[r, g])} "
                    f"iterations): {Status(int(found.status[r, g])).advice}"
                )
            elif not bool(torch.isfinite(losses[r])):
                reason = (
                    f"the loss was {float(losses[r])}: look for NaN in the targets (y), and at the "
                    f"features, the loss and the learning rate"
                )
            elif bool(adjoint[r].any()):
                reason = f"the adjoint solve failed on {int(adjoint[r].sum())} graphs"
            else:
                reason = f"the gradient was not finite: {Status.NOT_FINITE.advice}"
            self._stop(r, True, reason)

    def _stop(self, r: int, failed: bool, reason: str) -> None:
        self.stops[r] = Stop(self.epoch, failed, reason)
        self.alive[r] = False
        row = torch.zeros_like(self.alive)
        row[r] = True
        self._restore(row)

    @torch.no_grad()
    def _restore(self, rows: Tensor) -> None:
        """Replicas ``rows`` [R] go back to their best parameters."""
        for name, value in self.model.state_dict().items():
            row = self._row(value)
            wide = rows.view(-1, *[1] * (row.dim() - 1))
            row.copy_(torch.where(wide, self.best[name], row))

    def _pass_on(self, caught: list[warnings.WarningMessage]) -> None:
        """Warnings that are not about solves are not ours to keep, nor to repeat every step."""
        for warning in caught:
            where = (warning.category, warning.filename, warning.lineno)
            key = (str(warning.message), *where)
            if not isinstance(warning.message, ConvergenceWarning) and key not in self._warned:
                self._warned.add(key)
                warnings.warn_explicit(warning.message, *where)

    def _row(self, t: Tensor) -> Tensor:
        """A tensor of the model's state with the replicas in front."""
        return t if self.model.replicas is not None else t.unsqueeze(0)

    def _admit(self) -> None:
        """Say so where nothing could be chosen."""
        for r in ((self.best_epoch < 0) & self.alive).nonzero()[:, 0].tolist():
            warnings.warn(
                f"replica {r} never had a finite loss and {self.task.metric_name} on the graphs "
                f"that parameters are chosen on (the last ones: {float(self.score[r])}): it ends "
                f"with those it began with; expected numbers: look at the task's metric, the "
                f"targets and the learning rate",
                stacklevel=4,
            )

    # -- telling ----------------------------------------------------------------------------------

    def _describe(self) -> str:
        alive = self.alive if bool(self.alive.any()) else ~self.alive
        text = f"loss {float(self.loss[alive].mean()):.3g}"
        text += f", {self.task.metric_name} {float(self.score[alive].mean()):.3g}"
        text += f", {self.iterations} iterations" if self.implicit else ""
        stopped = self.replicas - int(self.alive.sum())
        return text + (f", {stopped} stopped" if stopped else "")

    def _note(self, seconds: float) -> None:
        if self.epoch % self.log_every == 0 or self.epoch + 1 == self.config.epochs:
            self.log.write(
                {
                    "epoch": self.epoch,
                    "loss": self.loss.tolist(),
                    "validation": self.score.tolist(),
                    "alive": int(self.alive.sum()),
                    "iterations": self.iterations,
                    "lr": self.config.lr_at(self.epoch),
                    "seconds": seconds,
                }
            )

    # -- checkpoints ------------------------------------------------------------------------------

    def _random(self) -> None:
        """The random state: as restored, or a function of the seed."""
        if self.epoch == 0:
            # Not torch.manual_seed: the generators of other devices are the user's.
            torch.default_generator.manual_seed(self.config.seed)
            if self.shelf.device.type == "cuda":
                with torch.cuda.device(self.shelf.device):
                    torch.cuda.manual_seed(self.config.seed)
        elif self._resumed is not None:
            torch.set_rng_state(self._resumed["cpu"])
            if "cuda" in self._resumed:
                torch.cuda.set_rng_state(self._resumed["cuda"], self.shelf.device)

    def save(self) -> None:
        """Write a checkpoint from which :meth:`resume` goes on in the same bits."""
        if self.folder is not None:
            checkpoint.save(self.folder, *state.of(self))

    def resume(self) -> None:
        """Go on where the checkpoint in the folder was written."""
        assert self.folder is not None
        self._resumed = state.restore(self, checkpoint.load(self.folder), str(self.folder))
