"""From a trained model to one file for every robot (:mod:`hogwild_node.model_file`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import AsynchronyError, ConfigError
from hogwild.files import write_atomically
from hogwild.graph.inputs import Inputs
from hogwild.models.base import Conv
from hogwild.models.contraction import ContractionConv, IGNNConv
from hogwild.models.energy import EnergyConv
from hogwild.models.gnn import ConvGNN
from hogwild.models.gsd import GSDConv
from hogwild.models.layered import Layers, activation, layers_of
from hogwild.models.soft import SoftEnergyConv
from hogwild.models.stars import normalises
from hogwild.models.validation import evaluating
from hogwild.models.wrapped import check_model
from hogwild.nn.networks import PICNN
from hogwild.ops import as_field
from hogwild.problems.base import Objective
from hogwild_node import c99, model_file
from hogwild_node.activations import ACTIVATIONS, NONEXPANSIVE, identity, leaky_relu, tanh
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
        if not name.startswith("conv.coupling.")  # of soft energies; the facts have what follows
    }
    about, more = facts(model.conv)
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


@singledispatch
def facts(conv: Conv) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration of a convolution, and tensors that are not in its ``state_dict``."""
    raise AsynchronyError(
        f"a {type(conv).__name__} cannot run without torch; expected a SoftEnergyConv, EnergyConv, "
        f"GSDConv, IGNNConv or EIGNNConv (a model of one layer, num_layers=1), or the layers of a "
        f"GCN"
    )


def _known(act: Any, known: Mapping[str, Any]) -> str:
    """The name of an activation that robots have; one of the user's own may have the same name."""
    function = getattr(act.value, "func", act.value)  # of a leaky ReLU with its slope
    if act.name not in known or known[act.name].value is not function:
        raise AsynchronyError(
            f"act={act.name!r} is an activation of your own, which a robot does not have; expected "
            f"one of {', '.join(known)}"
        )
    return act.name


@facts.register
def _energy(conv: EnergyConv) -> tuple[dict[str, Any], dict[str, Tensor]]:
    net = conv.update_nets[0]
    assert isinstance(net, PICNN)  # all networks have one activation and one kind of gate
    act = _known(net.act, ACTIVATIONS)
    config = {"kind": "energy", "act": act, "gate": net.gate, "beta": conv.beta}
    options = ("message", "message_channels", "heads", "concat", "aggr", "normalize")
    return config | {name: getattr(conv, name) for name in options}, {}


@facts.register
def _denoising(conv: GSDConv) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return {"kind": "denoising", "gamma": conv.gamma, "beta": conv.beta}, {}


@facts.register
def _soft(conv: SoftEnergyConv) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if conv.heads is not None:
        raise AsynchronyError(
            f"heads={conv.heads}: the scale of an edge depends on the attention of the sender's "
            f"neighbours, and a node hears the features of its own neighbours only; expected "
            f"heads=None"
        )
    config = {
        "kind": "soft", "aggr": conv.aggr, "max_degree": conv.max_degree, "beta": conv.beta,
        "residual": conv.residual, "condition": conv.condition,
    }  # fmt: skip
    terms = conv.terms(torch.float64)
    single = conv.replicas is None
    return config, {f"conv.{name}": t[0] if single else t for name, t in terms.items()}


@facts.register
def _contraction(conv: ContractionConv) -> tuple[dict[str, Any], dict[str, Tensor]]:
    act, options = _known(conv.act, NONEXPANSIVE), {}
    if isinstance(conv, IGNNConv):
        slope = getattr(conv.act.value, "keywords", {}).get("negative_slope", 0.0)
        options = {"negative_slope": slope}
    return {"kind": "contraction", "act": act, **options}, {"matrix": conv.matrix}


@facts.register
def _layers(conv: Layers) -> tuple[dict[str, Any], dict[str, Tensor]]:
    layers = layers_of(conv.layers)
    acts, convs = {activation(layer) for layer in layers}, [layer.conv for layer in layers]
    known: dict[Any, str] = {identity: "identity", leaky_relu: "relu", tanh: "tanh"}
    plain = all(normalises(c) and c.add_self_loops and not c.improved for c in convs)
    if not plain or len(acts) != 1 or not acts <= known.keys():
        raise AsynchronyError(
            "the layers are not those of a plain GCN (GCNConv with its default normalisation, one "
            "activation for all layers, no norm), and only these run without torch; expected "
            "hogwild.GCN, or an EnergyGNN"
        )
    return {"kind": "gcn", "act": known[acts.pop()], "num_layers": conv.num_layers}, {}


__all__ = ["export"]
