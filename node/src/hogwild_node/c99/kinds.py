"""The models that can be written in C: their sizes, their types and their code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hogwild_node import networks, soft
from hogwild_node.activations import NONEXPANSIVE
from hogwild_node.c99.networks import Network, mlp
from hogwild_node.c99.text import defined, literal, part, table
from hogwild_node.model import (
    ContractionModel,
    DenoisingModel,
    EnergyModel,
    NodeModel,
    SoftModel,
)
from hogwild_node.rules.gradient import DAMPING


@dataclass(frozen=True)
class Written:
    """What a model adds to the C file.

    Attributes:
        rule: The rule of its nodes.
        sizes: Macros.
        types: The types of what a node keeps of its features and those of its neighbours.
        networks: The section of networks: functions of numbers, without agents.
        model: The section of the model: ``hog_pose``, and ``hog_refresh`` or ``hog_apply``.
    """

    rule: str
    sizes: str
    types: str
    networks: str
    model: str


def _structs(**fields: str) -> str:
    """One type for each name; an empty type has a member that is not used."""
    return "\n".join(
        f"typedef struct {{\n    {text or 'char none;'}\n}} hog_{name};\n"
        for name, text in fields.items()
    )


_GRADIENT = (
    "hog_real own[HOG_CHANNELS], block[HOG_CHANNELS * HOG_CHANNELS], last[HOG_CHANNELS], trust;"
)


def energy(model: EnergyModel, dtype: str) -> Written:
    """The energy GNN."""
    names = ("hog_net_message", "hog_net_loop", "hog_net_update")
    nets = [Network(name, net, dtype) for name, net in zip(names, model.nets, strict=True)]
    heads, config = model.heads or 1, model.config
    sizes = defined(
        HOG_HEADS=heads,
        HOG_CONCAT=int(config["concat"] or heads == 1),
        HOG_ENDS=2 if config["message"] == "edge" else 1,
        HOG_MESSAGE=config["message_channels"],
        HOG_MERGED=nets[1].widths[-1],
        HOG_MESSAGE_FEATURES=nets[0].features,
        HOG_NORMALISED=int(config["normalize"]),
        HOG_MEAN=int(config["aggr"] == "mean" and not config["normalize"]),
        HOG_ATTENTION=int(model.heads is not None),
        HOG_ATTENTION_SLOPE=literal(networks.ATTENTION_SLOPE, dtype),
        HOG_RELU_GATES=int(config["gate"] == "relu"),
        HOG_BETA=literal(config["beta"], dtype),
        HOG_DAMPING=literal(DAMPING, dtype),
    )
    types = "\n".join(net.types() for net in nets) + "\n"
    types += _structs(
        edge_model="hog_real weight[HOG_HEADS];\n    hog_net_message_gates gates[HOG_HEADS];",
        node_model="hog_real loop_weight;\n    hog_net_loop_gates loop;\n"
        "    hog_net_update_gates update;",
        rule=_GRADIENT,
        work="hog_net_message_tape message[HOG_SLOTS][HOG_HEADS];\n    hog_net_loop_tape loop;\n"
        "    hog_net_update_tape update;",
    )
    code = part(f"{config['act']}.c") + part("picnn.c") + "".join(net.code() for net in nets)
    return Written("gradient", sizes, types, code, _attention(model, dtype) + part("energy.c"))


def _attention(model: EnergyModel, dtype: str) -> str:
    """For each head one row for the node's own features, one for the neighbour's, one for the
    edge's."""
    if model.heads is None:
        return ""
    theta_x, theta_a = (model.tensors[f"conv.attention.theta_{n}"] for n in "xa")
    theta_e = model.tensors.get("conv.attention.theta_e")
    q, row = theta_x.shape[-2], theta_a[:, None]
    text = table("hog_attention_own", row[..., :q] @ theta_x, dtype)
    text += table("hog_attention_there", row[..., q : 2 * q] @ theta_x, dtype)
    if theta_e is not None:
        text += table("hog_attention_edge", row[..., 2 * q :] @ theta_e, dtype)
    return text + "\n"


def denoising(model: DenoisingModel, dtype: str) -> Written:
    """Graph signal denoising."""
    sizes = defined(
        HOG_GAMMA=literal(model.config["gamma"], dtype),
        HOG_BETA=literal(model.config["beta"], dtype),
        HOG_DAMPING=literal(DAMPING, dtype),
    )
    types = _structs(
        edge_model="hog_real root;", node_model="hog_real target[HOG_CHANNELS], root;",
        rule=_GRADIENT, work="",
    )  # fmt: skip
    return Written("gradient", sizes, types, _encoder(model, dtype), part("denoising.c"))


def soft_energy(model: SoftModel, dtype: str) -> Written:
    """Soft energies."""
    shared = {name: x[0] for name, x in model.shared.items()}
    w, v, u = (shared[name] for name in ("receiver", "sender", "inner"))
    bias, inner_bias = model.tensors["conv.bias"], model.tensors["conv.inner_bias"]
    steepest = np.maximum(shared["low"], shared["high"])
    bent = u.T @ (np.maximum(shared["inner_low"], shared["inner_high"]) * u)
    p, beta, k = model.told_channels + 1, model.config["beta"], model.channels
    squares = soft.AGGREGATIONS[model.config["aggr"]].c
    sizes = defined(
        HOG_SOFT=w.shape[0],
        HOG_SOFT_WIDTH=literal(soft.WIDTH, dtype),
        HOG_INNER=u.shape[0],
        HOG_RESIDUAL=int(model.config["residual"]),
        HOG_LIMIT=literal(1.0 + (model.config["max_degree"] or 0.0), dtype),
        **dict(zip(("HOG_HERE(d, e)", "HOG_THERE(d, e)"), squares, strict=True)),
        HOG_BETA=literal(beta, dtype),
        HOG_DAMPING=literal(DAMPING, dtype),
    )
    tables = shared | {
        "block": w.T @ (steepest * w) + v.T @ (steepest * v), "alone": beta * np.eye(k) + bent,
        "own": bias[:, :p], "near": bias[:, p : 2 * p], "edges": bias[:, 2 * p :],
        "offset": inner_bias,
    }  # fmt: skip
    types = _structs(
        edge_model="hog_real here, there, into[HOG_SOFT], out[HOG_SOFT];",
        node_model="hog_real anchor[HOG_CHANNELS];"
        + ("\n    hog_real offset[HOG_INNER];" if u.size else ""),
        rule=_GRADIENT,
        work="",
    )
    written = (table(f"hog_soft_{name}", x, dtype) for name, x in tables.items() if x.size)
    norm = _norm(model, "conv", model.told_channels, dtype)
    code = norm + _encoder(model, dtype) + "".join(written) + "\n"
    return Written("gradient", sizes, types, code, part("soft.c"))


def contraction(model: ContractionModel, dtype: str) -> Written:
    """IGNN and EIGNN."""
    act = model.config["act"]
    slope = model.config["negative_slope"] if act == "leaky_relu" else 0.0
    sizes = defined(**{"HOG_PHI(a)": NONEXPANSIVE[act].c.format(s=literal(slope, dtype))})
    types = _structs(
        edge_model="hog_real share;", node_model="hog_real bias[HOG_CHANNELS], loop;",
        rule="", work="",
    )  # fmt: skip
    code = _encoder(model, dtype) + table("hog_matrix", model.tensors["matrix"], dtype) + "\n"
    return Written("fixed-point", sizes, types, code, part("contraction.c"))


def _encoder(model: NodeModel, dtype: str) -> str:
    return mlp("hog_net_encoder", *model._layers("conv.encoder"), model.told_channels, dtype)


def _norm(model: NodeModel, of: str, width: int, dtype: str) -> str:
    """Numbers of a node after the norm of a part of the model, if it has one."""
    given, text = "", ""
    for name in ("weight", "bias", "mean", "variance"):
        row = model.tensors.get(f"{of}.norm.{name}")
        given += "0, " if row is None else f"hog_{of}_{name}, "
        text += "" if row is None else table(f"hog_{of}_{name}", row, dtype)
    body = f"hog_copy(x, {width}, out);"
    if text:
        epsilon = literal(networks.NORM_EPSILON, dtype)
        body = f"hog_normalise(x, {given}{epsilon}, {width}, out);"
    head = f"HOG_INLINE void hog_norm_{of}(const hog_real *x, hog_real *out)"
    return f"{text}{head}\n{{\n    {body}\n}}\n"


WRITERS: dict[type[NodeModel], Callable[..., Written]] = {
    EnergyModel: energy,
    DenoisingModel: denoising,
    SoftModel: soft_energy,
    ContractionModel: contraction,
}


def shared(model: NodeModel, dtype: str) -> str:
    """What all models have: the standardisation of features, their encoder, and the readout."""
    text = ""
    for kind in ("node", "edge"):
        if kind == "edge" and model.edge_dim is None:
            continue
        for name in ("offset", "scale"):
            values = np.asarray(model.tensors[f"features.{kind}s.{name}"]).reshape(-1)
            text += table(f"hog_{kind}_{name}", values, dtype)
    encoder, how = model._layers("features.encoder"), "hog_node_offset, hog_node_scale"
    encode = "hog_copy(x, HOG_FEATURES, out);"
    standard = f"hog_standardise(x, {how}, HOG_FEATURES, out);"
    if encoder[0]:
        slope = literal(networks.FEATURE_SLOPE, dtype)
        text += mlp("hog_net_features", *encoder, model.in_channels, dtype)
        lines = (
            "hog_real standard[HOG_RAW_FEATURES];",
            f"hog_standardise(x, {how}, HOG_RAW_FEATURES, standard);",
            "hog_net_features(standard, out);",
            f"hog_leak(out, HOG_FEATURES, {slope}, out);",
        )
        encode, standard = "\n    ".join(lines), encode
    for verb, body in (("encode", encode), ("standard", standard)):
        head = f"HOG_INLINE void hog_{verb}(const hog_real *x, hog_real *out)"
        text += f"{head}\n{{\n    {body}\n}}\n"
    layers, norm = model._layers("readout.node"), _norm(model, "readout", model.channels, dtype)
    return f"{text}{norm}\n" + mlp("hog_net_readout", *layers, model.channels, dtype)
