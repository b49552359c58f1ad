"""From a frozen dataclass to arguments and back."""

import inspect

import pytest

import hogwild
from hogwild.cli.options import Option, argument, names, parameters, parse, taken, value, verb
from hogwild.errors import ConfigError


@verb(
    argument("cake", "which one"),
    Option("eggs", "int", 2, "how many", "dough"),
    Option("sugar", "float | None", 0.5, "kilograms", "dough"),
    Option("icing", "str | float", "auto", "how thick"),
    Option("layers", "Sequence[int]", (1, 2), "how high", metavar="N,..."),
    Option("shape", "str", "round", "seen from above", choices=("round", "square")),
    Option("topping", "tuple[str, ...]", (), "any number of times"),
    Option("rising_time", "int | None", None, "minutes"),
    Option("quick", "bool", False, "less of everything"),
    Option("heat", "Any", 180.0, "degrees", "oven", if_given=True),
    Option("fan", "Any", True, "100 % air", "oven", if_given=True),
    Option("tray_options", "dict", {}, "of a tray", if_given=True),
)
def bake(options):
    """Bake a cake.

    It takes a while.

    Examples:
      hogwild bake sponge --eggs 3
    """


def read(*words):
    return parse(bake, ["sponge", *words], "hogwild bake")


def test_defaults():
    assert read().as_dict() == {
        "json": False, "cake": "sponge", "eggs": 2, "sugar": 0.5, "icing": "auto",
        "layers": (1, 2), "shape": "round", "topping": (), "rising_time": None, "quick": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ("--eggs 3", "eggs", 3),
        ("--eggs -3", "eggs", -3),
        ("--sugar 1e-2", "sugar", 0.01),
        ("--sugar none", "sugar", None),
        ("--icing 2", "icing", 2.0),
        ("--icing thick", "icing", "thick"),
        ("--layers 3", "layers", (3,)),
        ("--layers 3,4", "layers", (3, 4)),
        ("--shape square", "shape", "square"),
        ("--topping nuts:a=1,b=2 --topping cream", "topping", ("nuts:a=1,b=2", "cream")),
        ("--rising-time 20", "rising_time", 20),
        ("--quick", "quick", True),
        ("--heat 200", "heat", 200),
        ("--heat none", "heat", None),
        ("--fan false", "fan", False),
        ("--tray-option d=3 --tray-option lid=true", "tray_options", {"d": 3, "lid": True}),
    ],
)
def test_values(words, name, expected):
    found = getattr(read(*words.split()), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--eggs many", "argument --eggs: 'many'; expected an integer"),
        ("--eggs 2.5", "argument --eggs: '2.5'; expected an integer"),
        ("--eggs none", "argument --eggs: 'none'; expected an integer"),
        ("--sugar much", "argument --sugar: 'much'; expected a number"),
        ("--layers 1;2", "'1;2'; expected an integer, or several with commas between them"),
        ("--shape rund", "argument --shape: invalid choice: 'rund' (choose from"),
        ("--eggs", "argument --eggs: expected one argument"),
        ("--eg 3", "unknown argument '--eg'; did you mean '--eggs'?"),
        ("--sugr=3", "unknown argument '--sugr'; did you mean '--sugar'?"),
        ("more", "unknown argument 'more'; expected one of: --eggs"),
        ("--settings x", "unknown argument '--settings'"),
    ],
)
def test_what_is_wrong_is_said(words, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        read(*words.split())
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("usage: hogwild bake CAKE [options]\n")


def test_a_table_takes_keys_and_values():
    with pytest.raises(ConfigError, match="--tray-option 'depth'; expected KEY=VALUE"):
        read("--tray-option", "depth")


def test_help():
    text = bake.parser("hogwild bake").format_help()
    assert "Bake a cake.\n\nIt takes a while.\n" in text
    assert text.endswith("examples:\n  hogwild bake sponge --eggs 3\n")
    dough, oven = text.index("\ndough:\n"), text.index("\noven:\n")
    assert dough < text.index("--eggs") < text.index("--sugar") < oven < text.index("--heat")
    flat = " ".join(text.split())
    for words in (
        "how many; default: 2", "how high; default: 1,2", "{round,square}",
        "100 % air; default: true", "minutes --quick", "less of everything --",
    ):  # fmt: skip
        assert words in flat


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("eggs=0; expected more", "--eggs 0; expected more"),
        ("rising_time=0, eggs=1", "--rising-time 0, --eggs 1"),
        ("with quick=True", "with --quick"),
        ("heat=3, fan=False", "--heat 3, --fan False"),
        ("depth=3; expected less", "--tray-option depth=3; expected less"),
        ("resume=True goes on", "--resume goes on"),
        ("in a/eggs=2, 'eggs=2', more_eggs=2, crashes:eggs=2", None),
    ],
)
def test_keywords_are_said_as_flags(said, expected):
    options = read("--tray-option", "depth=3")
    assert options.in_flags(said) == (said if expected is None else expected)


def test_a_key_that_a_flag_has_too_is_left_as_it_is():
    assert read("--tray-option", "eggs=3").in_flags("eggs=3") == "eggs=3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a,b", "a,b"), ("(a)", "(a)"), ("4,4", [4, 4]), ("none", None), ("x.py:T", "x.py:T")]
    + [(text, [0.9, 500]) for text in ("(0.9, 500)", "(0.9,500)", "0.9,500", "[0.9, 500]")],
)
def test_values_of_flags(text, expected):
    assert value(text) == expected


def test_parameters_are_read_from_the_source():
    """Defaults are those of the function, and descriptions lose the marks of a docstring."""
    place = "executors/simulate.py:simulate"
    wanted = inspect.signature(hogwild.simulate).parameters.values()
    found = parameters(place)
    assert [(p.name, p.annotation) for p in wanted] == [(o.name, o.kind) for o in found.values()]
    for each in wanted:
        assert each.default in (each.empty, found[each.name].default)
    assert found["stagger"].help == (
        "S, the largest number of ticks between two turns of a node; 1: all together"
    )
    assert found["radius"].help.startswith("with --rule balls: the hops within which")
    loss = parameters("executors/swarm_result.py:Faults")["loss"]
    assert (loss.kind, loss.default) == ("float", 0.0)
    assert loss.help == "probability that a packet is lost"
    (runs,) = taken(place, "runs", "how often", default=5)
    assert (runs.default, runs.group) == (5, "how often")
    assert names("rules/__init__.py", "RULES") == tuple(hogwild.rules.RULES)
