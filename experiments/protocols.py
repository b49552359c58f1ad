"""How every column is trained. A task has one protocol for all models of its column, except for
three cells of the paper and for the rows of soft energies, which have options of their own.

A protocol has options that hold under either recipe (the splits, which the paper does not give, and
options that only affect memory), options of the default recipe, and the changes of ``--quick``:
fewer replicas, smaller tasks and fewer epochs, in under half an hour for a table on two CPU cores.
Numbers of ``--quick`` separate the models. Do not compare them with the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hogwild.config import Config
from hogwild.errors import ConfigError, among


@dataclass(frozen=True)
class Protocol:
    """How a column is trained.

    Attributes:
        task: Name of the task.
        replicas: Folds times seeds.
        always: Options of :class:`~hogwild.training.Config` under either recipe.
        default: Options of the default recipe only; ``recipe="paper"`` has its own.
        quick: What ``--quick`` changes; the decay of the learning rate in the default recipe only.
            A model with options of its own keeps them, with as many decays in fewer epochs.
        own: Options of single models in the default recipe (``model_options``: under either). Those
            of the paper's models were chosen in trials because these models stayed behind the
            paper's number under the column's options (``docs/decisions.md``, "One protocol per
            column"). Edge-wise energies have none, so that they are not tuned more than the rivals.
    """

    task: str
    replicas: int = 50
    always: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def config(
        self,
        model: str,
        *,
        recipe: str = "default",
        quick: bool = False,
        replicas: int | None = None,
        device: str = "cpu",
    ) -> Config:
        """The configuration of one of the column's models."""
        # Raw features, as in the paper: the kept records have them.
        options: dict[str, Any] = {"replicas": self.replicas, "standardize": False, **self.always}
        own = self.own.get(model, {})
        if recipe != "default":
            own = {key: value for key, value in own.items() if key == "model_options"}
        else:
            options |= self.default
        options |= own
        if quick:
            options |= self._less(options, own, recipe)
        if replicas is not None:
            options["replicas"] = replicas
        options |= {"task": self.task, "model": model.removesuffix("-wide"), "device": device}
        found = Config.of(recipe=recipe, **options)
        return found.completed({})  # as in the folder of a training

    def _less(
        self, options: Mapping[str, Any], own: Mapping[str, Any], recipe: str
    ) -> dict[str, Any]:
        """What ``--quick`` changes for a model with options of its own."""
        out = {k: v for k, v in self.quick.items() if k == "epochs" or k not in own}
        if recipe != "default":
            out.pop("decay", None)
        elif "decay" in own and "epochs" in out:
            factor, every = own["decay"]
            out["decay"] = (factor, max(1, round(every * out["epochs"] / options["epochs"])))
        return out


_QUICK = {"replicas": 2}
_SMALL: dict[str, Any] = {
    "hidden_channels": 2, "width": 8, "encoder": [], "widths": [16, 16], "readout": [4, 4],
}  # fmt: skip
"""A soft energy of the paper's size: embeddings, anchor and readout as wide as the paper's, and
fewer parameters than its edge-wise energy has."""
_AVERAGE: dict[str, Any] = {"aggr": "mean"}
"""The scaling under which all nodes of a graph weigh the same."""
_WIDE: dict[str, Any] = _AVERAGE | {"hidden_channels": 4, "readout": [32, 32]}
"""The free size of counting and sums, which need little more than averages."""
_SINGLE = {"dtype": "float32"}
"""The condition numbers of these cells are moderate, so that this precision is enough."""


def _anchored(k: int, width: int) -> dict[str, Any]:
    """A soft energy whose networks are wider than its embeddings."""
    networks = {"encoder": [width], "widths": [width], "readout": [width]}
    return {"hidden_channels": k, **networks, "bias_rate": 1.0}


PROTOCOLS: dict[str, Protocol] = {
    protocol.task: protocol
    for protocol in (
        # Two graphs, no folds: 50 seeds. Full batch. The signal travels 100 hops, and some
        # seeds learn late.
        Protocol(
            "chains",
            default={"epochs": 5000},
            quick={"replicas": 5, "epochs": 600},
            own={
                "soft": {"epochs": 500, "lr": 0.02, "decay": (0.5, 150)}
                | {"model_options": _SMALL | {"condition": 5001}},
                "soft-wide": {"epochs": 400, "lr": 0.01, "decay": (0.5, 150)}
                | {"model_options": {"hidden_channels": 8, "condition": 5001}},
            },
        ),
        # 50 graphs in all: full batch, 10 folds × 5 seeds.
        Protocol(
            "counting",
            default={"epochs": 2000, "lr": 0.01, "decay": (0.8, 200)},
            quick={"replicas": 3, "epochs": 200, "decay": (0.8, 30)},
            own={
                "energy-node": {"epochs": 5000, "lr": 0.003, "decay": (0.9, 500)},
                "soft": {"epochs": 1500, "lr": 0.05, "decay": (0.8, 120)}
                | {"model_options": _SMALL | _AVERAGE | {"condition": 20001}},
                "soft-wide": {"epochs": 1500, "lr": 0.02, "decay": (0.8, 120)}
                | {"model_options": _WIDE | {"condition": 20001}},
            },
        ),
        # 1,800 training graphs: mini-batches of 200 graphs; a replica uses its own among them.
        Protocol(
            "sums",
            always={"batch_size": 200, "reshuffle": False},
            default={"epochs": 100, "lr": 0.02, "decay": (0.85, 8)},
            quick=_QUICK
            | {"epochs": 60, "batch_size": 50, "decay": (0.85, 5)}
            | {"task_options": {"num_graphs": 300}},
            own={
                "energy-node": {"batch_size": 50, "epochs": 120, "lr": 0.005, "decay": (0.9, 12)},
                "soft": {"batch_size": 25, "epochs": 30, "lr": 0.05, "decay": (0.6, 3)}
                | {"model_options": _SMALL | _AVERAGE | {"condition": 200001}},
                "soft-wide": {"batch_size": 25, "epochs": 30, "lr": 0.02, "decay": (0.6, 3)}
                | {"model_options": _WIDE | {"condition": 200001}},
            },
        ),
        # 1,350 training graphs of 20 nodes, with about 100 edges each.
        Protocol(
            "coordinates",
            always={"batch_size": 150, "reshuffle": False},
            default={"epochs": 150, "lr": 0.02, "decay": (0.85, 12)},
            quick=_QUICK
            | {"epochs": 60, "batch_size": 40, "decay": (0.85, 5)}
            | {"task_options": {"num_graphs": 300}},
            own={
                "gsdgnn": {"lr": 0.005, "decay": (0.97, 12)},
                "soft": {"batch_size": 50, "epochs": 60, "lr": 0.05, "decay": (0.7, 6), **_SINGLE}
                | {"model_options": _SMALL | {"width": 16, "bias_rate": 1.0, "condition": 51}},
                "soft-wide": {"batch_size": 50, "epochs": 300, "decay": (0.7, 30), **_SINGLE}
                | {"model_options": _anchored(8, 32) | {"width": 32, "condition": 51}},
            },
        ),
        # 13,302 training graphs of 10 nodes: an epoch has 30 steps.
        Protocol(
            "terrain",
            always={"batch_size": 500, "reshuffle": False},
            default={"epochs": 40, "lr": 0.01, "decay": (0.9, 2)},
            quick=_QUICK | {"epochs": 20, "batch_size": 100, "task_options": {"num_graphs": 1000}},
            own={
                "soft": {"batch_size": 250, "epochs": 20, "lr": 0.03, "decay": (0.7, 2), **_SINGLE}
                | {"model_options": _SMALL | {"width": 16, "bias_rate": 1.0, "condition": 101}},
                "soft-wide": {"batch_size": 250, "epochs": 20, "lr": 0.03, "decay": (0.7, 2)}
                | _SINGLE
                | {"model_options": _anchored(16, 64) | {"condition": 101}},
            },
        ),
        # 188 graphs: full batch. Nothing is held out for validation (a fold has 19 graphs, and the
        # best of 100 judgements is chance): the epoch is the one with the best training
        # accuracy, late, when the learning rate has decayed.
        Protocol(
            "mutag",
            default={"epochs": 1000, "lr": 0.01, "decay": (0.5, 250)},
            quick=_QUICK | {"epochs": 100, "decay": (0.5, 25)},
            own={
                "soft": {"epochs": 500, "lr": 0.02, "decay": (0.5, 125), **_SINGLE}
                | {"model_options": _SMALL},
                "soft-wide": {"epochs": 300, "lr": 0.02, "decay": (0.5, 75), **_SINGLE}
                | {"model_options": {"hidden_channels": 16}},
            },
        ),
        # 1,113 graphs of 39 nodes on average; the epoch is chosen as for MUTAG. 150 epochs of six
        # training steps; larger sizes have as many as we had time for.
        Protocol(
            "proteins",
            always={"batch_size": 200, "reshuffle": False},
            default={"epochs": 150, "lr": 0.02, "decay": (0.5, 40)},
            quick=_QUICK | {"epochs": 5, "batch_size": 50},
            own={
                "soft": {"batch_size": 50, "epochs": 30, "decay": (0.5, 8)}
                | {"standardize": True, **_SINGLE}
                | {"model_options": _SMALL},
                "soft-wide": {"batch_size": 50, "epochs": 30, "lr": 0.005, "decay": (0.5, 8)}
                | {"standardize": True, **_SINGLE}
                | {"model_options": {"hidden_channels": 16}},
            },
        ),
        # 20 networks of 2,200 nodes, published split: seeds only. The paper does not say how many.
        Protocol(
            "ppi",
            5,
            always={"batch_size": 2},
            default={"epochs": 300},
            quick=_QUICK | {"replicas": 1, "epochs": 2},
        ),
        # 10,873 training graphs of 151 nodes, published split: seeds only, as for PPI. All models
        # begin on a plateau, the best constant prediction, and at higher learning rates
        # more of them stay there. An epoch has 78 steps of some 140 graphs: mini-batches are of
        # all graphs, and only those for training count. Larger sizes have as many epochs as we had
        # time for.
        *(
            Protocol(
                task,
                5,
                always={"batch_size": 200, "reshuffle": False},
                default={"epochs": 100, "lr": 0.005, "decay": (0.8, 12), "validate_every": 25},
                quick=_QUICK
                | {"replicas": 1, "epochs": 10, "batch_size": 50, "task_options": {"limit": 100}},
                own={
                    "soft": {"epochs": 20, "lr": 0.02, "decay": (0.6, 4), "validate_every": 5}
                    | {"standardize": True, **_SINGLE}
                    | {"model_options": _SMALL},
                },
            )
            for task in ("peptides-func", "peptides-struct")
        ),
    )
}


def protocol(column: str, protocols: Mapping[str, Protocol] = PROTOCOLS) -> Protocol:
    """The protocol of a column."""
    if column not in protocols:
        raise ConfigError(f"unknown column {column!r}; {among(protocols, column)}")
    return protocols[column]
