r"""A trained model as one C99 file, for microcontrollers: one node, without Python.

:func:`generate` writes a file with the model's parameters and the functions of one node: the node
joins and leaves neighbours, hears packets, makes updates and predicts. The file needs ``math.h``,
``string.h`` and ``stdint.h``. It allocates nothing, prints nothing and has no global variables: all
memory is in ``hog_node``, whose size is fixed by the model and the largest degree.

Energies use the rule ``"gradient"`` with the step ``"auto"``
(:class:`~hogwild_node.rules.gradient.GradientRule`), contractions the rule ``"fixed-point"``. An
update computes the numbers that :class:`~hogwild_node.agent.Agent` computes, up to rounding.

A kind of model has a function here, which writes its sizes and tables, and two files in ``parts``:
the types of what a node keeps of features (``NAME.h``), and its functions (``NAME.c``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hogwild_node import model as node_models
from hogwild_node import networks, soft
from hogwild_node.activations import NONEXPANSIVE, Activation
from hogwild_node.c99.text import Network, defined, function, literal, mlp, part, table
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.model import ContractionModel, EnergyModel, NodeModel, SoftModel
from hogwild_node.model_file import ModelFile
from hogwild_node.packets import RULES, VERSION
from hogwild_node.rules import RULES as node_rules
from hogwild_node.rules.gradient import DAMPING

DTYPES = ("float32", "float64")
_RESIDUALS = {
    "gradient": "The largest entry of the gradient at this node, as far as packets have told.",
    "fixed-point": "How far the last update moved the embedding, in its largest entry.",
}


def generate(file: ModelFile, *, dtype: str = "float32", max_degree: int = 8) -> str:
    """The text of a C99 file for one node of a model.

    Args:
        file: The model (:func:`hogwild_node.model_file.load`).
        dtype: Numbers of the node and of its packets: ``"float32"`` or ``"float64"``.
        max_degree: Most neighbours of a node.

    Raises:
        SetupError: An option does not fit.
        ModelFileError: The model cannot be written in C, with the reason.
    """
    if dtype not in DTYPES:
        raise SetupError(f"dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    if isinstance(max_degree, bool) or not isinstance(max_degree, int) or max_degree < 1:
        raise SetupError(f"max_degree={max_degree!r}; expected a positive whole number")
    model, kind = node_models.of(file), file.config["kind"]
    if kind not in WRITERS:
        raise ModelFileError(
            f"a model of kind {kind!r} cannot be written in C; expected an energy (EnergyGNN, "
            f"SoftEnergyGNN, GSDGNN) or a contraction (IGNN, EIGNN): train one of these, or run "
            f"this model with hogwild-agent"
        )
    rule = next(name for name in _RESIDUALS if name in model.rules)
    written, name = WRITERS[kind](model, dtype), rule.replace("-", "_")
    letter = node_rules[rule].curves and not model.sees_both_sides(rule)
    return "\n".join(
        [
            _about(model, rule, dtype, max_degree, letter),
            "#ifndef HOG_H\n#define HOG_H\n\n"
            "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n",
            _sizes(model, rule, dtype, max_degree, letter) + defined(**written.sizes),
            written.types,
            part(f"{kind}.h"),
            part(f"{name}.h"),
            part("declarations.h").replace("HOG_RESIDUAL", _RESIDUALS[rule]),
            part("agent.h"),
            "#endif /* HOG_H */\n",
            "#ifndef HOG_DECLARATIONS\n",
            part("precision.h"),
            part("arithmetic.c"),
            written.tables,
            _shared(model, dtype),
            part(f"{kind}.c"),
            part(f"{name}.c"),
            part("node.c"),
            part("agent.c"),
            "#endif /* HOG_DECLARATIONS */\n",
        ]
    )


def _sizes(model: NodeModel, rule: str, dtype: str, max_degree: int, letter: bool) -> str:
    k, edges, single = model.channels, model.edge_dim or 0, dtype == "float32"
    letters = k + k * (k + 1) // 2 if letter else 0
    return f"typedef {'float' if single else 'double'} hog_real;\n\n" + defined(
        HOG_MODEL=f'"{model.name}"',
        HOG_SINGLE=int(single),
        HOG_SLOTS=max_degree,
        HOG_RAW_FEATURES=model.in_channels,
        HOG_FEATURES=model.told_channels,
        HOG_EDGE_FEATURES=edges,
        HOG_JOIN_FEATURES=edges * (1 + model.sees_both_sides(rule)),
        HOG_CHANNELS=k,
        HOG_LETTER=letters,
        HOG_NUMBERS=k + letters,
        HOG_OUTPUTS=model.out_channels,
        HOG_TOLD=1,
        HOG_JOINED=2,
        HOG_VERSION=VERSION,
        HOG_CODE=16 * RULES.index(rule) + (4 if single else 8),
        HOG_WIDTH=min(k, 255),
        HOG_TOLERANCE=f"((hog_real){model.tolerance(dtype):.8e})",
        HOG_MODEL_NUMBER=f"0x{model.name[:8]}UL",
        HOG_DAMPING=literal(DAMPING, dtype),
    )


def _about(model: NodeModel, rule: str, dtype: str, max_degree: int, letter: bool) -> str:
    """The first comment: what the file is, and how it is used."""
    text, numbers = part("about.h"), "its embedding"
    if letter:
        numbers += (
            "\n * [HOG_CHANNELS], then its letter: a gradient [HOG_CHANNELS] and the upper "
            "triangle of a\n * curvature block"
        )
    given = {
        "MODEL": model.name, "RULE": rule, "DTYPE": dtype, "DEGREE": max_degree,
        "EDGE": "0" if model.edge_dim is None else "edge_features", "NUMBERS": numbers,
    }  # fmt: skip
    for name, value in given.items():
        text = text.replace(f"@{name}@", str(value))
    return text


# -- the models ------------------------------------------------------------------------------------


class Written(NamedTuple):
    """What a model adds to the C file beside its parts."""

    sizes: Mapping[str, object]
    """Macros."""
    tables: str
    """Parameters, and functions of numbers that know nothing of agents."""
    types: str = ""


def _energy(model: Any, dtype: str) -> Written:
    """The energy GNN. Attention has for each head one row for the node's own features, one for the
    neighbour's, one for the edge's."""
    assert isinstance(model, EnergyModel)
    names = ("hog_net_message", "hog_net_loop", "hog_net_update")
    nets = [Network(name, net, dtype) for name, net in zip(names, model.nets, strict=True)]
    heads, config = model.heads or 1, model.config
    sizes = {
        "HOG_HEADS": heads,
        "HOG_CONCAT": int(config["concat"] or heads == 1),
        "HOG_ENDS": 2 if config["message"] == "edge" else 1,
        "HOG_MESSAGE": config["message_channels"],
        "HOG_MERGED": nets[1].widths[-1],
        "HOG_MESSAGE_FEATURES": nets[0].features,
        "HOG_NORMALISED": int(config["normalize"]),
        "HOG_MEAN": int(config["aggr"] == "mean" and not config["normalize"]),
        "HOG_ATTENTION": int(model.heads is not None),
        "HOG_ATTENTION_SLOPE": literal(networks.ATTENTION_SLOPE, dtype),
        "HOG_RELU_GATES": int(config["gate"] == "relu"),
        "HOG_BETA": literal(config["beta"], dtype),
    }
    code = _activation(model.act) + part("picnn.c") + "".join(net.code() for net in nets)
    if model.heads is not None:
        theta: Any = {n: model.tensors.get(f"conv.attention.theta_{n}") for n in "xae"}
        q, row = theta["x"].shape[-2], theta["a"][:, None]
        code += table("hog_attention_own", row[..., :q] @ theta["x"], dtype)
        code += table("hog_attention_there", row[..., q : 2 * q] @ theta["x"], dtype)
        if theta["e"] is not None:
            code += table("hog_attention_edge", row[..., 2 * q :] @ theta["e"], dtype)
    return Written(sizes, code + "\n", "\n".join(net.types() for net in nets))


def _activation(act: Activation) -> str:
    if act.c is None:
        raise ModelFileError(
            f"the activation {act.name!r} has no text in C; expected Activation(..., c=...) "
            f"(hogwild_node/activations.py), or run the model with hogwild-agent"
        )
    first, second = act.c
    return (
        f"/* The activation is {act.name}. */\n"
        f"HOG_INLINE void hog_activation(hog_real a, hog_real *value, hog_real *slope)\n"
        f"{{\n{first}}}\n\n"
        f"/* Curvature of a parabola that touches the activation at a and lies above it. */\n"
        f"HOG_INLINE hog_real hog_majoriser(hog_real a, hog_real slope)\n{{\n{second}}}\n\n"
    )


def _denoising(model: NodeModel, dtype: str) -> Written:
    """Graph signal denoising."""
    sizes = {
        f"HOG_{name.upper()}": literal(model.config[name], dtype) for name in ("gamma", "beta")
    }
    return Written(sizes, _encoder(model, dtype))


def _soft(model: Any, dtype: str) -> Written:
    """Soft energies."""
    assert isinstance(model, SoftModel)
    shared = {name: x[0] for name, x in model.shared.items()}
    w, v, u = (shared[name] for name in ("receiver", "sender", "inner"))
    bias, inner_bias = model.tensors["conv.bias"], model.tensors["conv.inner_bias"]
    steepest = np.maximum(shared["low"], shared["high"])
    bent = u.T @ (np.maximum(shared["inner_low"], shared["inner_high"]) * u)
    p, beta, k = model.told_channels + 1, model.config["beta"], model.channels
    squares = soft.AGGREGATIONS[model.config["aggr"]].c
    sizes = {
        "HOG_SOFT": w.shape[0],
        "HOG_SOFT_WIDTH": literal(soft.WIDTH, dtype),
        "HOG_INNER": u.shape[0],
        "HOG_RESIDUAL": int(model.config["residual"]),
        "HOG_LIMIT": literal(1.0 + (model.config["max_degree"] or 0.0), dtype),
        **dict(zip(("HOG_HERE(d, e)", "HOG_THERE(d, e)"), squares, strict=True)),
        "HOG_BETA": literal(beta, dtype),
    }
    tables = shared | {
        "block": w.T @ (steepest * w) + v.T @ (steepest * v), "alone": beta * np.eye(k) + bent,
        "own": bias[:, :p], "near": bias[:, p : 2 * p], "edges": bias[:, 2 * p :],
        "offset": inner_bias,
    }  # fmt: skip
    written = (table(f"hog_soft_{name}", x, dtype) for name, x in tables.items() if x.size)
    norm = _norm(model, "conv", model.told_channels, dtype)
    return Written(sizes, norm + _encoder(model, dtype) + "".join(written) + "\n")


def _contraction(model: Any, dtype: str) -> Written:
    """IGNN and EIGNN."""
    assert isinstance(model, ContractionModel)
    act = model.config["act"]
    slope = model.config["negative_slope"] if act == "leaky_relu" else 0.0
    sizes = {"HOG_PHI(a)": NONEXPANSIVE[act].c.format(s=literal(slope, dtype))}
    matrix = table("hog_matrix", model.tensors["matrix"], dtype)
    return Written(sizes, _encoder(model, dtype) + matrix + "\n")


WRITERS = {
    "energy": _energy, "denoising": _denoising, "soft": _soft, "contraction": _contraction,
}  # fmt: skip
"""By the kind of model, which is also the name of its parts."""


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
    return text + function(f"hog_norm_{of}", [body])


def _shared(model: NodeModel, dtype: str) -> str:
    """What all models have: the standardisation of features, their encoder, and the readout."""
    text = ""
    for kind in ("node",) if model.edge_dim is None else ("node", "edge"):
        for name in ("offset", "scale"):
            values = np.asarray(model.tensors[f"features.{kind}s.{name}"]).reshape(-1)
            text += table(f"hog_{kind}_{name}", values, dtype)
    encoder, how = model._layers("features.encoder"), "hog_node_offset, hog_node_scale"
    encode = ["hog_copy(x, HOG_FEATURES, out);"]
    standard = [f"hog_standardise(x, {how}, HOG_FEATURES, out);"]
    if encoder[0]:
        slope = literal(networks.FEATURE_SLOPE, dtype)
        text += mlp("hog_net_features", *encoder, model.in_channels, dtype)
        lines = [
            "hog_real standard[HOG_RAW_FEATURES];",
            f"hog_standardise(x, {how}, HOG_RAW_FEATURES, standard);",
            "hog_net_features(standard, out);",
            f"hog_leak(out, HOG_FEATURES, {slope}, out);",
        ]
        encode, standard = lines, encode
    text += function("hog_encode", encode) + function("hog_standard", standard)
    layers, norm = model._layers("readout.node"), _norm(model, "readout", model.channels, dtype)
    return f"{text}{norm}\n" + mlp("hog_net_readout", *layers, model.channels, dtype)


__all__ = ["DTYPES", "generate"]
