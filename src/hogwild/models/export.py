"""From a trained model to one file for every robot (:mod:`hogwild_node.model_file`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs
from hogwild.models.gnn import ConvGNN
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import check_model
from hogwild.ops import as_field
from hogwild.problems.base import Objective
from hogwild_node import c99, model_file
from hogwild_node.errors import NodeError
from hogwild_node.model import LEAST
from hogwild_node.model_file import ModelFile

NOISE = 32.0
"""Residuals of this many roundings count as zero. With 32, twenty agents on a trained chain settle
with room of a factor 4 (``benchmarks/swarm.py --sizes``)."""


def export(
    model: nn.Module,
    path: str | Path,
    *,
    replica: int | None = None,
    data: Any = None,
    dtype: str = "float32",
    max_degree: int = 8,
) -> str:
    """Write a model to a file that an agent without torch can run; or, where the name of the file
    ends in ``.c``, the C99 source of one node (:func:`hogwild_node.c99.generate`).

    Args:
        model: An :class:`~hogwild.EnergyGNN`, ``GSDGNN``, ``IGNN``, ``EIGNN`` or ``GCN`` of one
            layer (a GCN may have any number) that predicts for nodes.
        path: Where to write: ``model.hog`` by convention, or ``node.c``.
        replica: Which of the replicas; needed where the model has some.
        data: Graphs like those that the model will run on. The file then holds the residuals at
            which agents count as settled, which depend on the size of embeddings and curvatures
            (:func:`tolerances`); without graphs agents use 1e-3 (float16), 1e-4 (float32) and
            1e-8 (float64).
        dtype: Of C: numbers of the node and of its packets, ``"float32"`` or ``"float64"``.
        max_degree: Of C: most neighbours of a node.

    Returns:
        The model's name on the network.

    Raises:
        AsynchronyError: A node cannot run this model by itself, with the reason.
        ConfigError: The model cannot be written in C, or an option does not fit.
    """
    file = packed(model, replica=replica, data=data)
    if Path(path).suffix == ".c":
        try:
            content = c99.generate(file, dtype=dtype, max_degree=max_degree).encode()
        except NodeError as error:
            raise ConfigError(str(error)) from error
    else:
        content = model_file.serialise(file.config, file.tensors)
    write_atomically(Path(path), content)
    return file.name


def packed(model: nn.Module, *, replica: int | None = None, data: Any = None) -> ModelFile:
    """What :func:`export` writes, in memory."""
    found = check_model(model)
    config, tensors = described(found, replica)
    if data is not None:
        config["tolerance"] = tolerances(found, data, replica)
    return ModelFile(config, tensors, model_file.name_of(config, tensors))


def described(model: ConvGNN, replica: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file holds of a model: the configuration and the tensors, in float64."""
    if model.readout.pool is not None:
        raise AsynchronyError(
            f"pool={model.readout.pool!r}: the model predicts for whole graphs, and a node knows "
            f"only itself and its neighbours; expected a model that predicts for nodes (pool=None)"
        )
    if replica not in (range(model.replicas) if model.replicas is not None else (None,)):
        raise ConfigError(
            f"replica={replica} for a model with replicas={model.replicas}; expected "
            f"{'no replica' if model.replicas is None else f'0 to {model.replicas - 1}'}"
        )

    def numbers(t: Tensor) -> Any:
        chosen = t if replica is None else t[replica]
        return chosen.detach().double().cpu().numpy()

    tensors = {
        name: numbers(t)
        for name, t in model.state_dict().items()
        if not name.startswith("conv.coupling.")  # of soft energies, which export what follows
    }
    about, more = model.conv.exported()
    sizes = {
        "in_channels": model.in_channels,
        "hidden_channels": model.conv.hidden_channels,
        "out_channels": model.readout.out_channels,
        "edge_dim": model.conv.edge_dim,
    }
    return sizes | about, tensors | {name: numbers(t) for name, t in more.items()}


def tolerances(model: ConvGNN, data: Any, replica: int | None = None) -> dict[str, float]:
    r"""Residuals up to which an agent counts as settled, for packets of each precision ε.

    Neighbours know an embedding to :math:`\epsilon |h|`. The gradient of an energy with curvature
    B is then uncertain by about :math:`\epsilon |B| |h|`, and never comes to rest below that.
    """
    inputs = Inputs.of(data)
    with evaluating(model), torch.no_grad():
        problem, h = model.problem(inputs), model.embed(inputs).value
        field = as_field(h, torch.float64)
        size = field.abs().amax((1, 2))
        if isinstance(problem, Objective):
            problem = problem.detach()
            everyone, local = problem.graph.everyone, field.to(problem.start().dtype)
            found = problem.node.quadratic(local, everyone.current(local), everyone)
            size = size * found.b.abs().sum(2).amax((1, 2)).double()
    noise = NOISE * float(size[replica or 0])
    return {
        name: max(low, noise * float(torch.finfo(getattr(torch, name)).eps))
        for name, low in LEAST.items()
    }


__all__ = ["export"]
