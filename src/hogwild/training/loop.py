"""The one training loop: full batch or mini-batches, one model or an ensemble of them.

Every replica has its own loss, gradient norm, validation metric, best parameters, and reason for
stopping. A replica whose loss is not finite, or whose solve fails, goes back to its best parameters
and stays there; the other replicas go on as if it was not there. An epoch is a function of the
parameters, the optimiser's memory, the warm starts, the random state and its own number. A
checkpoint holds all of them, so a run that was killed and resumed ends in the same bits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Batch

from hogwild.config import Config
from hogwild.errors import ConvergenceWarning, InputError
from hogwild.linalg.solution import Solution
from hogwild.metrics import cost
from hogwild.models.base import Kind
from hogwild.models.gnn import ConvGNN
from hogwild.models.scarselli import ScarselliGNN
from hogwild.models.warm import EmbeddingCache
from hogwild.progress import bar
from hogwild.tasks.base import Task
from hogwild.training import checkpoint
from hogwild.training.batches import Batches, Taken, inputs_of, mini_batches, predict_levels
from hogwild.training.checkpoint import Log, Stop
from hogwild.training.optimiser import AdamW, Rows, clip, diagnose, failed_adjoints
from hogwild.training.recorded import Recorder
from hogwild.training.registry import Members, device_of, set_on_failure
from hogwild.training.task import of_nodes, one_mean_each


class Loop:
    """A training run in progress.

    Args:
        config: The configuration.
        task: The graphs, the loss and the metric.
        model: A model with or without replicas; its parameters change in place.
        members: The graphs that each replica trains on.
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
        folder: Path | None,
        log: Log,
        callback: Callable[[Loop], None] | None = None,
    ) -> None:
        device = device_of(config)
        config = config.completed(getattr(task, "defaults", {}))
        assert config.validate_every is not None
        assert config.log_every is not None
        self.validate_every, self.log_every = config.validate_every, config.log_every
        self.config, self.task, self.members = config, task, members
        self.folder, self.log, self.callback = folder, log, callback
        self.model = model.to(device, config.precision)
        # A failed solve stops its own replica, and must not end the run.
        set_on_failure(self.model, "ignore" if config.on_failure == "ignore" else "warn")
        self.model.features.advises = False  # the configuration says whether to standardise
        self.implicit = model.kind != Kind.EXPLICIT
        self.batches = Batches(task.graphs, config.precision, device)
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
        self.best = {name: row.clone() for name, row, _ in self._wide(self.alive)}
        self.warm = EmbeddingCache(self.batches.num_nodes)  # of all graphs, in training only
        self.loss = worst.clone()  # of the last epoch
        self.score = worst.clone() * torch.nan  # the last validation metric
        self.iterations = 0  # of the last epoch, the largest
        self.recorder = Recorder(self) if Recorder.applies(self) else None
        self._resumed: dict[str, Tensor] | None = None  # the random state of a checkpoint
        self._warned: set[tuple[object, ...]] = set()  # warnings that were shown before

    # -- running ----------------------------------------------------------------------------------

    def run(self, progress: bool | None = False) -> None:
        """Train to the last epoch, or until every replica has stopped. The model then holds the
        best parameters of every replica."""
        saved = time.monotonic()
        devices = [self.batches.device] if self.batches.device.type == "cuda" else []
        show = bar(self.config.epochs, progress, "epoch", "training", done=self.epoch)
        with torch.random.fork_rng(devices=devices), show:
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
                show.update()
                if not show.disable:
                    show.set_postfix_str(self._describe())
                if self.callback is not None:
                    self.callback(self)  # before the checkpoint of this epoch is saved
                if time.monotonic() - saved >= self.config.checkpoint_every:
                    self.save()
                    saved = time.monotonic()
            self.save()
            if self.judged != self.epoch:
                self.judge()
        self._warn_unchosen()
        self._restore(torch.ones_like(self.alive))
        self.model.eval()

    def improve(self) -> None:
        """One epoch of optimiser steps."""
        self.model.train()
        total, weight = torch.zeros_like(self.best_loss), torch.zeros_like(self.best_loss)
        self.iterations = 0
        for taken in self._batches():
            mask = self.members.train[:, taken.ids]
            loss = None if self.recorder is None else self.recorder.step(taken, mask)
            loss = self._step(taken, mask) if loss is None else loss
            share = mask.sum(1)
            total += torch.where(share > 0, loss * share, 0.0)
            weight += share
        self.loss = total / weight

    def _step(self, taken: Taken, mask: Tensor) -> Tensor:
        """One optimiser step; the loss of every replica, [R]."""
        config = self.config
        counts = mask.any(1)
        mask = mask | ~counts.unsqueeze(1)  # a mean over nothing would be NaN
        self.rows.forget()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            losses, found, h = self.losses(taken, mask, self.warm.get(taken.nodes))
            count = len(caught)
            learning = self.alive & counts
            torch.where(learning, losses, 0.0).sum().backward()
        if self.implicit and config.warm_start:
            self.warm.put(h, taken.nodes)  # before a replica stops, which then begins at zero
        gradients = self.rows.gradients()
        losses = losses.detach()
        self._pass_on(caught)
        failures = ~found.converged & mask, failed_adjoints(caught[count:], mask) & mask
        if config.on_failure != "raise":
            failures = torch.zeros_like(mask), torch.zeros_like(mask)
        for r, reason in diagnose(losses, gradients, found, *failures).items():
            if bool(learning[r] & self.alive[r]):
                self.stop(r, True, reason)
        self.update(gradients, self.alive & counts, config.lr_at(self.epoch))
        self.iterations = max(self.iterations, int(found.iterations.max()))
        return losses.double()

    def losses(
        self, taken: Taken, mask: Tensor, h0: Tensor | None
    ) -> tuple[Tensor, Solution, Tensor]:
        """The loss of every replica [R] on its graphs ``mask`` [R, G], the solution, and the
        embeddings of all levels side by side [R, N, K]."""
        data = taken.data
        out, found, h = predict_levels(self.model, data, h0)
        losses = self.task_loss(out, data, mask)
        if not losses.requires_grad:
            raise InputError(
                f"the loss of {self.task.name!r} has no gradient; expected a differentiable "
                f"function of the predictions"
            )
        if isinstance(self.model, ScarselliGNN) and self.config.penalty:
            penalty = self._penalty(self.model, found, data, mask)
            losses = losses + self.config.penalty * penalty
        return losses, found, h

    def update(self, gradients: Tensor, learning: Tensor, lr: float | Tensor) -> None:
        """Clip the gradients [R, P] of the replicas that are ``learning`` [R], and move their
        parameters."""
        gradients = torch.where(learning.unsqueeze(1), gradients, 0.0)
        gradients = clip(gradients, self.config.clip)
        self.rows.write(self.optimiser.step(self.rows.values(), gradients, lr, learning))

    def task_loss(self, out: Tensor, data: Batch, mask: Tensor) -> Tensor:
        """The task's loss of every replica [R]. Rows that do not count for a replica get no
        gradient. A mask in the loss is not enough: where a target is NaN, it leaves 0 · NaN."""
        keep = (mask[:, data.batch] if of_nodes(self.task, out, data) else mask).unsqueeze(-1)
        out.register_hook(lambda gradient: torch.where(keep, gradient, 0.0))
        return self._mean("loss", out, data, mask)

    def _mean(self, name: str, out: Tensor, data: Batch, mask: Tensor) -> Tensor:
        """The task's loss or metric of every replica, [R]."""
        measure = self.task.loss if name == "loss" else self.task.metric
        return one_mean_each(self.task, name, measure(out, data, mask), self.replicas)

    def _penalty(self, model: ScarselliGNN, found: Solution, data: Batch, mask: Tensor) -> Tensor:
        """Scarselli's penalty, the mean over the graphs that count, [R]."""
        h = found.value if model.replicas is not None else found.value[0]
        each = model.penalty(h, inputs_of(model, data))
        return (each * mask).sum(-1) / mask.sum(-1)

    def _batches(self) -> Iterator[Taken]:
        """The mini-batches of this epoch."""
        size, seed, fresh = self.config.batch_size, self.config.data_seed, self.reshuffles
        turn = self.epoch if fresh else 0
        for ids in mini_batches(self.members.train.any(0), size, seed, turn):
            yield self.batches.take(ids, keep=not fresh)

    @property
    def reshuffles(self) -> bool:
        """Whether every epoch has mini-batches of its own."""
        size = self.config.batch_size
        return self.config.reshuffle and size is not None and size < len(self.batches.graphs)

    # -- judging ----------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(
        self, *members: Tensor, quiet: bool = False, warm: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """(loss, metric) of every replica on the graphs in each of ``members`` [R, G]; NaN for a
        replica without graphs.

        The model predicts once for all of them: with as many folds as replicas every graph is in
        the training, the validation and the test set of some replica. Failed solves give a warning
        unless ``quiet``. ``warm`` solves start at the embeddings of the last epoch.
        """
        self.model.eval()
        used = torch.cat(members).any(0)
        if not used.any():
            nothing = torch.full_like(self.best_loss, torch.nan)
            return [(nothing, nothing.clone()) for _ in members]
        numbers = used.cpu().nonzero()[:, 0]
        chunks = numbers.split(self.config.batch_size or len(numbers))
        pieces = [self.batches.take(ids, keep=True) for ids in chunks]
        taken = self.batches.take(torch.cat([p.ids for p in pieces]), keep=True)
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", ConvergenceWarning)
            starts = [self.warm.get(p.nodes) if warm else None for p in pieces]
            found = [
                predict_levels(self.model, p.data, h0)[0]
                for p, h0 in zip(pieces, starts, strict=True)
            ]
            out = torch.cat(found, -2)
        pairs = []
        for member in members:
            some = member.any(1)
            part, rows = self._part(taken, out, member.any(0) if bool(some.any()) else used)
            mask = member[:, part.ids] | ~some.unsqueeze(1)  # a mean over nothing would be NaN
            loss = self._mean("loss", rows.clone(), part.data, mask).double()
            metric = self._mean("metric", rows.clone(), part.data, mask).double()
            pairs.append((torch.where(some, loss, torch.nan), torch.where(some, metric, torch.nan)))
        return pairs

    def _part(self, taken: Taken, out: Tensor, wanted: Tensor) -> tuple[Taken, Tensor]:
        """The graphs ``wanted`` [G] among those taken, and their predictions. Others are left out,
        since a NaN among their targets would pass through a mask."""
        chosen = wanted[taken.ids]
        if bool(chosen.all()):
            return taken, out
        rows = chosen[taken.data.batch] if of_nodes(self.task, out, taken.data) else chosen
        return self.batches.take(taken.ids[chosen].cpu(), keep=True), out[:, rows]

    def judge(self) -> None:
        """Keep the parameters of replicas that are better than ever on their validation graphs (or
        training graphs, where a task has no others), and stop replicas that have not been for
        ``patience`` epochs. Where solves may end before they converge, the start decides the
        result: they start cold, as at the end of training."""
        some = self.members.val.any(1, keepdim=True)
        member = torch.where(some, self.members.val, self.members.train)
        warm = self.config.on_failure == "raise"
        [(loss, self.score)] = self.measure(member, quiet=True, warm=warm)
        self.judged = self.epoch
        score = cost(self.score, self.task.higher_is_better)
        tie = (score == self.best_score) & (loss < self.best_loss)
        better = ((score < self.best_score) | tie) & torch.isfinite(loss) & self.alive
        self.best_score = torch.where(better, score, self.best_score)
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        for name, row, wide in self._wide(better):
            self.best[name] = torch.where(wide, row, self.best[name])
        patience = self.config.patience
        if patience is not None:
            waited = self.epoch - self.best_epoch
            for r in ((waited >= patience) & self.alive).nonzero()[:, 0].tolist():
                name = self.task.metric_name
                self.stop(r, False, f"no better {name} on validation for {int(waited[r])} epochs")

    def stop(self, r: int, failed: bool, reason: str) -> None:
        self.stops[r] = Stop(self.epoch, failed, reason)
        self.alive[r] = False
        row = torch.zeros_like(self.alive)
        row[r] = True
        self._restore(row)
        if self.warm.value is not None:
            # The replica is solved with the others from now on. Every solve goes on where the last
            # one ended, so that it soon takes no iterations.
            self.warm.value[r] = 0.0

    @torch.no_grad()
    def _restore(self, rows: Tensor) -> None:
        """Replicas ``rows`` [R] go back to their best parameters."""
        for name, row, wide in self._wide(rows):
            row.copy_(torch.where(wide, self.best[name], row))

    def _pass_on(self, caught: list[warnings.WarningMessage]) -> None:
        """Show warnings, each of them once; those about solves only with ``on_failure="warn"``."""
        for warning in caught:
            where = (warning.category, warning.filename, warning.lineno)
            solve = isinstance(warning.message, ConvergenceWarning)
            key = where if solve else (str(warning.message), *where)
            if key not in self._warned and (not solve or self.config.on_failure == "warn"):
                self._warned.add(key)
                warnings.warn_explicit(warning.message, *where)

    def _wide(self, rows: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The names of the model's state, its tensors with the replicas in front, and the mask
        ``rows`` [R] as wide as each of them."""
        for name, value in self.model.state_dict().items():
            row = value if self.model.replicas is not None else value.unsqueeze(0)
            yield name, row, rows.view(-1, *[1] * (row.dim() - 1))

    def _warn_unchosen(self) -> None:
        """Warn about replicas without any best parameters."""
        for r in ((self.best_epoch < 0) & self.alive).nonzero()[:, 0].tolist():
            warnings.warn(
                f"replica {r} never had a finite loss and {self.task.metric_name} on its "
                f"validation graphs (the last {self.task.metric_name}: {float(self.score[r])}), so "
                f"it keeps its initial parameters; expected finite numbers: look at the task's "
                f"metric, the targets and the learning rate",
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
            line = {"epoch": self.epoch, "loss": self.loss.tolist()}
            line |= {"validation": self.score.tolist(), "alive": int(self.alive.sum())}
            line |= {"iterations": self.iterations, "lr": self.config.lr_at(self.epoch)}
            self.log.write(line | {"seconds": seconds})

    # -- checkpoints ------------------------------------------------------------------------------

    def _random(self) -> None:
        """Set the random state: the restored one, or one from the seed."""
        if self.epoch == 0:
            # Not torch.manual_seed: the generators of other devices are the user's.
            torch.default_generator.manual_seed(self.config.seed)
            if self.batches.device.type == "cuda":
                with torch.cuda.device(self.batches.device):
                    torch.cuda.manual_seed(self.config.seed)
        elif self._resumed is not None:
            torch.set_rng_state(self._resumed["cpu"])
            if "cuda" in self._resumed:
                torch.cuda.set_rng_state(self._resumed["cuda"], self.batches.device)

    def save(self) -> None:
        """Write a checkpoint from which :meth:`resume` goes on in the same bits."""
        if self.folder is not None:
            checkpoint.save(self.folder, *checkpoint.state_of(self))

    def resume(self) -> None:
        """Go on where the checkpoint in the folder was written."""
        assert self.folder is not None
        self._resumed = checkpoint.restore(self, checkpoint.load(self.folder), str(self.folder))
