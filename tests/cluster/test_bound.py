"""The error bar is never below the true error, in any precision and at any time of a run."""

import pytest
import torch
from cluster_parts import case, distance
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.cluster import Disorder, infer


@pytest.mark.parametrize("name", ["energy", "gsd", "ignn", "eignn"])
@settings(max_examples=25, deadline=None)
@given(draw=st.data())
def test_the_bar_is_never_below_the_true_error(name, draw):
    """Also where a run is stopped at any update, and where no tolerance can be met."""
    seed = draw.draw(st.integers(0, 10**6), "seed")
    double, standardised = (draw.draw(st.booleans(), what) for what in "ds")
    solve_dtype = draw.draw(st.sampled_from([torch.float64, torch.float32, None]), "solve_dtype")
    tol = 10.0 ** -draw.draw(st.integers(1, 15), "digits")
    workers, most = draw.draw(st.integers(1, 4), "workers"), draw.draw(st.integers(1, 12), "looks")
    dtype = torch.float64 if double else torch.float32
    given = {"seed": seed, "scale": 3.0, "shift": 7.0, "dtype": dtype}
    model, data = case(name, [11, 1, 3], **given, solve_dtype=solve_dtype)
    model.eval()
    if standardised:
        model.standardize(data)
    looks = iter(range(most))

    def watch(*_):
        return next(looks, None) is not None

    run = infer(
        model, data, workers, tol=tol, partition="search",
        disorder=Disorder(seed=seed, delay=seed % 3), watch=watch,
    )  # fmt: skip
    assert distance(run, model, data) <= run.error_bar.error


def test_the_bar_of_parts_is_the_root_of_the_sum_of_their_squares():
    """Where nothing couples the nodes, the Hessian is 2γ, and the bar equals the error of the four
    parts that have not moved."""
    model, data = case("gsd", [40], beta=0.0)
    run = infer(
        model, data, 5, partition="search", disorder=Disorder(),
        watch=lambda *_: False, tol=0.5,
    )  # fmt: skip
    assert run.error_bar.error == pytest.approx(distance(run, model, data), rel=1e-9)
    assert run.error_bar.error > 1.0
