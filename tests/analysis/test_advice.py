"""Which rule to take, and what would help, in words that the numbers bear out."""

from dataclasses import replace

import pytest
import torch
from helpers import DOUBLE, energy, graphs

import hogwild
from hogwild import GCN
from hogwild.analysis.advice import advice, remedy, table
from hogwild.asynchrony import BernoulliLoss
from hogwild.errors import ConfigError

DATA = graphs((5, 12))
DATA.y = torch.randn(17, 2, generator=torch.Generator().manual_seed(0), **DOUBLE)


def exact(model):
    """The data with the model's own answers, slightly wrong, as targets."""
    data = DATA.clone()
    with torch.no_grad():
        data.y = model(data.x, data.edge_index, batch=data.batch) + 0.01
    return data


def worst(found, wanted):
    """A metric that no start is near."""
    return float((found - wanted + 0.01).abs().max()) + 1e-6


def test_rules_are_compared():
    model = energy(beta=2.0)
    for compare in ("all", ("all",)):  # as --compare all gives it
        every = hogwild.robustness(model, exact(model), runs=1, ticks=5, compare=compare)
        assert list(every.compared) == ["messages", "gradient", "balls"]
    seen = hogwild.robustness(model, exact(model), runs=3, compare="gradient")
    messages, gradient = (one.within() for one in seen.compared.values())
    assert messages.ticks < gradient.ticks
    assert seen.advice.startswith("messages: within 5% of the synchronous rmse (0.01) after ")
    assert "gradient: after " in seen.advice
    saves = gradient.bytes < messages.bytes
    assert ("or gradient for the fewest bytes" in seen.advice) == saves
    assert table(seen.compared) in str(seen)
    alone = hogwild.simulate(model, exact(model), runs=3, rule="gradient")
    assert torch.equal(seen.others["gradient"].h, alone.h)


def test_a_radius_is_for_balls_only():
    model = energy(beta=2.0)
    data = exact(model)
    seen = hogwild.robustness(model, data, runs=2, compare="balls", radius=1)
    assert seen.others["balls"].settings.radius == 1
    assert seen.run.settings.radius is None
    alone = hogwild.simulate(model, data, runs=2, rule="balls", radius=1)
    assert torch.equal(seen.others["balls"].h, alone.h)
    again = hogwild.robustness(model, data, runs=2, rule="balls", radius=1, compare="messages")
    assert torch.equal(again.run.h, alone.h)
    assert "solves for" in again.advice


def test_layers_are_compared():
    torch.manual_seed(0)
    model = GCN(3, out_channels=2).double()
    seen = hogwild.robustness(
        model, exact(model), runs=3, rule="overwriting", impairments=BernoulliLoss(0.3),
        compare=["resending", "caching", "overwriting"],
    )  # fmt: skip
    assert list(seen.compared) == ["overwriting", "resending", "caching"]
    assert "overwriting: not in these " in seen.advice
    assert seen.advice.count("of the synchronous") == 1  # a goal that all share is said once
    assert "Take " in seen.advice
    bare = hogwild.robustness(model, exact(model), runs=2, rule="overwriting")
    assert bare.others == {}
    assert "rule='caching' gives the synchronous answer" in bare.advice


def test_models_are_compared():
    """A quick model with a larger error is not recommended, and its error is said."""
    model, worse = energy(beta=2.0), energy(beta=2.0)
    data = exact(model)
    seen = {"good": hogwild.simulate(model, data).deadlines}
    data.y = data.y + 0.05
    seen["bad"] = hogwild.simulate(worse, data).deadlines
    text = advice(seen)
    assert "but its error is 0.06, 500% more than the best here" in text
    assert "Take good" in text


def test_remedies():
    model = energy(beta=0.1)
    slow = hogwild.simulate(model, exact(model), rule="gradient").deadlines
    assert slow.cones(slow.within().ticks) > 3
    assert "rule='messages'" in remedy("gradient", slow)
    assert "rule='balls'" in remedy("gradient", slow)
    small = hogwild.simulate(model, exact(model), rule="balls", radius=0).deadlines
    assert small.cones(small.within().ticks) > 3
    assert "a larger radius" in remedy("balls", small)
    stiff = energy(beta=50.0)
    quick = hogwild.simulate(stiff, exact(stiff), metric=worst).deadlines
    assert quick.within().ticks > 0
    assert quick.cones(quick.within().ticks) <= 1.5
    assert "only a faster network" in remedy("messages", quick)
    for price, early in ((1, True), (quick.cone.ticks.mean().ceil(), False)):
        looks = replace(quick, ticks=quick.ticks * 0 + int(price))
        looks.ticks[0] = 0
        text = remedy("messages", looks)
        assert "the last node has heard of every other after " in text
        assert ("this error does not need all that, and is met before" in text) == early
    lost = hogwild.simulate(model, DATA, ticks=50, impairments=BernoulliLoss(1.0)).deadlines
    assert "on which information can cross" in remedy("messages", lost)


def test_bad_rules():
    with pytest.raises(
        ConfigError, match=r"compare='caching': this rule does not fit the model; expected "
    ):
        hogwild.robustness(energy(), DATA, compare=["caching"])
    with pytest.raises(ConfigError, match="compare='nothing': this rule does not fit"):
        hogwild.robustness(energy(), DATA, compare="nothing")
    for bad in (None, 3):
        with pytest.raises(ConfigError, match=f"compare={bad}; expected names of rules, or 'all'"):
            hogwild.robustness(energy(), DATA, compare=bad)


def test_rules_that_cannot_run_are_left_out_with_the_reason():
    stack = hogwild.EnergyGNN(3, out_channels=2, num_layers=2).double()
    deep = hogwild.robustness(stack, DATA, runs=1, compare="all", radius=1, ticks=50)
    assert list(deep.compared) == ["messages", "gradient"]
    assert "rule='balls' was given for a stack" in deep.left_out["balls"]
    assert "Left out: balls: rule='balls' was given for a stack" in str(deep)
    with pytest.raises(ConfigError, match="rule='balls' was given for a stack"):
        hogwild.robustness(stack, DATA, runs=1, compare="balls", ticks=5)


def test_rules_that_are_compared_take_the_step_that_they_have():
    model = energy(beta=2.0)
    seen = hogwild.robustness(model, exact(model), runs=1, step="certified", compare="balls")
    steps = {rule: run.settings.step for rule, run in seen.others.items()}
    assert steps == {"balls": "auto"}
    assert seen.run.settings.step == "certified"


def test_an_error_that_is_small_before_the_first_update_chooses_no_rule():
    data = DATA.clone()
    data.y = torch.full((17, 2), 1e3, **DOUBLE)
    seen = hogwild.robustness(energy(beta=2.0), data, runs=1, compare="gradient")
    assert all(one.within().ticks == 0 for one in seen.compared.values())
    assert "Which of them to take, this error does not say. Nothing would help" in seen.advice
    assert "Take " not in seen.advice
