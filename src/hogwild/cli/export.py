"""``hogwild export``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild.cli.common import FILES, Outcome, Trained
from hogwild.cli.options import argument, option
from hogwild.errors import ConfigError

if TYPE_CHECKING:
    from hogwild_node.model_file import ModelFile

GRAPHS = 20
"""Graphs of the task from which the tolerances are computed."""
C = "C for microcontrollers (--out FILE.c)"


@dataclass(frozen=True, kw_only=True)
class Options(Trained):
    """Write a trained model to one file that agents run without torch.

    Copy the file to every robot and start hogwild-agent there. An agent needs NumPy, hogwild-node
    and, for the default network, Zenoh. The name that is printed is the model's name on the
    network: agents with other models do not hear each other.

    A name that ends in .c writes one C99 file instead, for machines without Python. It has the
    model's parameters and the functions of one node: join, hear, update, say, predict. Energies
    use gradient steps there, IGNN and EIGNN fixed-point updates. The first comment of the file
    shows its use.

    Examples:
      hogwild export runs/chains --out model.hog
      hogwild export runs/chains --replica 3 --out model.hog --json
      hogwild export runs/chains --out node.c --dtype float32 --max-degree 8
      hogwild export model.hog --out node.c
    """

    folder: str = argument("folder of a finished training run, or a model.hog to write as C")
    out: str = option(
        "model.hog", "where to write: a model for agents, or FILE.c", group=FILES, metavar="FILE"
    )
    dtype: str = option(
        "float32",
        "numbers of the node and of its packets",
        group=C,
        choices=("float32", "float64"),
    )
    max_degree: int = option(8, "most neighbours of a node", group=C)


@dataclass(frozen=True)
class _Found:
    """A model to write."""

    file: ModelFile
    label: str
    kind: str
    resolved: dict[str, Any]


def run(options: Options) -> Outcome:
    """Write what :func:`hogwild.models.export.export` or :func:`hogwild_node.c99.generate`
    give."""
    from pathlib import Path

    from hogwild.files import write_atomically
    from hogwild_node import c99, model_file
    from hogwild_node.errors import NodeError

    path, in_c = Path(options.out), options.out.endswith(".c")
    try:
        found = _filed(options, in_c) if Path(options.folder).is_file() else _trained(options)
        if in_c:
            text = c99.generate(found.file, dtype=options.dtype, max_degree=options.max_degree)
            content, next_ = text.encode(), f"cc -std=c99 -O2 -c {path}"
        else:
            content = model_file.serialise(found.file.config, found.file.tensors)
            next_ = f"hogwild-agent --model {path} --id NAME --features … --neighbours "
            next_ += "NAME=HOST:PORT,…"
    except NodeError as error:
        raise ConfigError(str(error)) from error
    write_atomically(path, content)
    name, size = found.file.name, len(content)
    text = (
        f"{path}: {found.label}, {size / 1000:.1f} kB, named {name} on the network\nnext: {next_}"
    )
    data = {"file": options.out, "model": found.kind, "name": name, "bytes": size}
    return Outcome(text, data, True, found.resolved)


def _trained(options: Options) -> _Found:
    """The model of a training run."""
    from hogwild.models.check import check_model
    from hogwild.models.export import described, tolerances
    from hogwild_node import model_file

    found = options.chosen()
    model, result = check_model(found.model), found.result
    config, tensors = described(model)
    some = range(min(len(result.task.graphs), GRAPHS))
    config["tolerance"] = tolerances(model, [result.graph(i) for i in some])
    file = model_file.ModelFile(config, tensors, model_file.name_of(config, tensors))
    label = f"{found.name}, replica {found.replica}"
    return _Found(file, label, found.name, {"replica": found.replica})


def _filed(options: Options, in_c: bool) -> _Found:
    """The model of a model file."""
    from hogwild_node import model_file

    if not in_c:
        raise ConfigError(
            f"{options.folder} is a model file already; expected --out FILE.c, or the folder of a "
            f"training run"
        )
    if options.replica is not None or options.task is not None:
        raise ConfigError(
            f"{options.folder} is a file with one model, which takes no --replica and no --task; "
            f"expected the folder of a training run with them"
        )
    file = model_file.load(options.folder)
    kind = str(file.config["kind"])
    return _Found(file, f"{kind}, from {options.folder}", kind, {})
