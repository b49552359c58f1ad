"""What a function takes, its verb takes: the two cannot drift apart unnoticed."""

import inspect
from dataclasses import MISSING, fields

import pytest

import hogwild
from hogwild.cli import VERBS, module
from hogwild.config import Config
from hogwild.demo import demo
from hogwild.executors.simulation import Settings
from hogwild.training import load

TRAINED = "a folder, --replica and --graphs name it"
IMPAIRED = "--impair builds them"
QUIET = "--quiet and --json switch it off"
TENSOR = "a tensor or a function, which no flag can hold"
RUN_ON_PARTS = "a result of hogwild.cluster.infer, which `hogwild cluster` prints itself"
LATER = "what it keeps is for a program that goes on with the result"

RUN = {
    "model": TRAINED,
    "data": TRAINED,
    "impairments": IMPAIRED,
    "keep_embeddings": LATER,
    "progress": QUIET,
}
"""Parameters of all runs that are no flags, with why."""
SCORED = {
    "higher_is_better": "only of a metric of one's own",
    "target": TENSOR,
    "mask": TENSOR,
}
"""How runs are scored."""
MEASURED = RUN | SCORED | {"history": LATER}
ALL_RUNS = "what is proved holds for all runs"

PAIRS = {
    "train": (
        [hogwild.train],
        {
            "loss": TENSOR,
            "metric": TENSOR,
            "higher_is_better": "only of a metric of one's own",
            "callback": "Ctrl-C uses it",
            "progress": QUIET,
        },
    ),
    "evaluate": ([load], {}),
    "simulate": ([hogwild.simulate], RUN | SCORED),
    "track": (
        [hogwild.track],
        {
            "model": TRAINED,
            "impairments": IMPAIRED,
            "score": "the task's metric",
            "keep_embeddings": LATER,
            "progress": QUIET,
        },
    ),
    "robustness": ([hogwild.robustness, hogwild.simulate], MEASURED),  # its other options go there
    "sweep": (
        [hogwild.sweep, hogwild.robustness, hogwild.simulate],
        MEASURED
        | {"stagger": "--staggers", "delay": "--delays"}
        | dict.fromkeys(["record", "replay"], "every setting has a schedule of its own"),
    ),
    "certify": (
        [hogwild.certify, Settings],
        {"model": TRAINED, "data": TRAINED, "impairments": IMPAIRED, "run": RUN_ON_PARTS}
        | dict.fromkeys(["seed", "runs", "ticks", "tol", "history", "keep_embeddings"], ALL_RUNS),
    ),
    "demo": ([demo], {"scale": "--quick", "say": "it prints", "progress": QUIET}),
}
"""Of every verb: the functions whose parameters it offers, and those that it does not, with why."""
MODEL = {"json", "folder", "task", "replica", "graphs", "impair"}
ONLY_HERE = {
    "train": {"json", "quiet"},
    "evaluate": {"json"},
    "simulate": MODEL | {"quiet", "plot", "tick"},
    "track": (MODEL - {"graphs"})
    | {"quiet", "plot", "graph", "changes", "spacing", "animate", "rerun"},
    "robustness": MODEL | {"quiet", "plot", "tick"},
    "sweep": MODEL | {"quiet", "plot", "value"},
    "certify": MODEL,
    "demo": {"json", "quick"},
}
"""Fields that are no parameter: which model, how to print, and what the result draws
(``tick``: how long a tick lasts, of the result's own method)."""
OTHER_DEFAULTS = {
    ("simulate", "runs"): "a command answers a question, for which one schedule is few",
    ("simulate", "record"): "no file, where the function says False",
    ("robustness", "record"): "no file, where the function says False",
    ("evaluate", "folder"): "an argument",
    ("track", "scenario"): "by default, a sequence of the task",
}


def parameters(verb):
    """Name and default of everything the functions take; where several take it, the first says."""
    out = {}
    for function in PAIRS[verb][0]:
        for p in inspect.signature(function).parameters.values():
            if p.kind is not p.VAR_KEYWORD:
                out.setdefault(p.name, p.default)
    return out


def offered(verb):
    """Name and default of every field."""
    found = {f.name: f for f in fields(module(verb).Options) if "each" not in f.metadata}
    return found


def test_every_verb_is_compared():
    assert (
        set(PAIRS)
        == set(ONLY_HERE)
        == set(VERBS) - {"info", "export", "swarm", "keys", "cluster", "serve"}
    )  # they call no function, or name its arguments otherwise


@pytest.mark.parametrize("verb", PAIRS)
def test_parameters_are_fields(verb):
    left_out = PAIRS[verb][1]
    taken = {name for name in parameters(verb) if name not in left_out}
    if verb == "train":  # its other options are those of a configuration
        assert module(verb).Options.__dataclass_fields__["settings"].metadata["each"] is Config
        taken -= {f.name for f in fields(Config)} - {"task"}
    assert taken == set(offered(verb)) - ONLY_HERE[verb]
    assert set(left_out) <= set(parameters(verb))  # no exception that is none


@pytest.mark.parametrize("verb", PAIRS)
def test_defaults_are_the_same(verb):
    wanted = parameters(verb)
    for name, f in offered(verb).items():
        if name in wanted and (verb, name) not in OTHER_DEFAULTS:
            assert f.default == wanted[name], name
        elif (verb, name) in OTHER_DEFAULTS:
            assert f.default is MISSING or f.default != wanted[name], name
