r"""A trained model as one C99 file, for microcontrollers: one node, without Python.

:func:`generate` writes a file with the model's parameters and the functions of one node: the node
joins and leaves neighbours, hears packets, makes updates and predicts. The file needs ``math.h``,
``string.h`` and ``stdint.h``. It allocates nothing, prints nothing and has no global variables: all
memory is in ``hog_node``, whose size is fixed by the model and the largest degree.

Energies use the rule ``"gradient"`` with the step ``"auto"``
(:class:`~hogwild_node.rules.gradient.GradientRule`), contractions the rule ``"fixed-point"``. An
update computes the numbers that :class:`~hogwild_node.agent.Agent` computes, up to rounding.
"""

from __future__ import annotations

from hogwild_node import model as node_models
from hogwild_node.c99.kinds import WRITERS, Written, shared
from hogwild_node.c99.text import defined, part
from hogwild_node.errors import ModelFileError, SetupError
from hogwild_node.model import NodeModel
from hogwild_node.model_file import ModelFile
from hogwild_node.packets import RULES, VERSION
from hogwild_node.rules import RULES as node_rules

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
    model = node_models.of(file)
    writer = WRITERS.get(type(model))
    if writer is None:
        raise ModelFileError(
            f"a model of kind {file.config['kind']!r} cannot be written in C; expected an energy "
            f"(EnergyGNN, SoftEnergyGNN, GSDGNN) or a contraction (IGNN, EIGNN): train one of "
            f"these, or run this model with hogwild-agent"
        )
    written: Written = writer(model, dtype)
    rule = written.rule.replace("-", "_")
    return "\n".join(
        [
            _about(model, written.rule, dtype, max_degree),
            "#ifndef HOG_H\n#define HOG_H\n\n"
            "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n",
            _sizes(model, written, dtype, max_degree),
            written.types,
            part("declarations.h").replace("HOG_RESIDUAL", _RESIDUALS[written.rule]),
            part("agent.h"),
            "#endif /* HOG_H */\n",
            "#ifndef HOG_DECLARATIONS\n",
            part("precision.h"),
            part("arithmetic.c"),
            written.networks,
            shared(model, dtype),
            written.model,
            part(f"{rule}.c"),
            part("node.c"),
            part("agent.c"),
            "#endif /* HOG_DECLARATIONS */\n",
        ]
    )


def _sizes(model: NodeModel, written: Written, dtype: str, max_degree: int) -> str:
    k = model.channels
    both, edges = model.sees_both_sides(written.rule), model.edge_dim or 0
    letter = k + k * (k + 1) // 2 if node_rules[written.rule].curves and not both else 0
    real = {"float32": "float", "float64": "double"}[dtype]
    return (
        f"typedef {real} hog_real;\n\n"
        + defined(
            HOG_MODEL=f'"{model.name}"',
            HOG_SINGLE=int(dtype == "float32"),
            HOG_SLOTS=max_degree,
            HOG_RAW_FEATURES=model.in_channels,
            HOG_FEATURES=model.told_channels,
            HOG_EDGE_FEATURES=edges,
            HOG_JOIN_FEATURES=edges * (1 + both),
            HOG_CHANNELS=k,
            HOG_LETTER=letter,
            HOG_NUMBERS=k + letter,
            HOG_OUTPUTS=model.out_channels,
            HOG_TOLD=1,
            HOG_JOINED=2,
            HOG_VERSION=VERSION,
            HOG_CODE=16 * RULES.index(written.rule) + (4 if dtype == "float32" else 8),
            HOG_WIDTH=min(k, 255),
            HOG_TOLERANCE=f"((hog_real){model.tolerance(dtype):.8e})",
            HOG_MODEL_NUMBER=f"0x{model.name[:8]}UL",
        )
        + written.sizes
    )


def _about(model: NodeModel, rule: str, dtype: str, max_degree: int) -> str:
    """The first comment: what the file is, and how it is used."""
    edge = "edge_features" if model.edge_dim is not None else "0"
    numbers = (
        "its embedding\n * [HOG_CHANNELS], then its letter: a gradient [HOG_CHANNELS] and the "
        "upper triangle of a\n * curvature block"
        if node_rules[rule].curves and not model.sees_both_sides(rule)
        else "its embedding"
    )
    return f"""\
/* One node of the model {model.name}: rule "{rule}", {dtype}, up to {max_degree} neighbours.
 *
 * `hogwild export` wrote this file. Compile it, and include its declarations where they are used:
 *
 *     #define HOG_DECLARATIONS
 *     #include "node.c"
 *
 *     hog_node node;
 *     hog_init(&node, features);
 *     hog_join(&node, 0, 1, neighbour_features, neighbour_degree, {edge});
 *     for (;;) {{
 *         hog_hear(&node, 0, received);   (when a packet has arrived)
 *         hog_update(&node);
 *         hog_say(&node, 0, sent);        (then send it)
 *         hog_predict(&node, prediction);
 *     }}
 *
 * hog_agent does the same with packets, and speaks with agents in Python.
 *
 * A node has at most HOG_SLOTS neighbours, HOG_RAW_FEATURES features, of which it tells its
 * neighbours HOG_FEATURES numbers, an embedding of HOG_CHANNELS
 * numbers and a prediction of HOG_OUTPUTS numbers; an edge has HOG_EDGE_FEATURES features. A node
 * sends HOG_NUMBERS numbers to a neighbour: {numbers}.
 * Do not compile with -ffast-math: the file tests for numbers that are not finite.
 */
"""


__all__ = ["DTYPES", "generate"]
