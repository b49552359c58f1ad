"""Pictures of tracked runs."""

import pytest
import torch
from motion import ring

from hogwild import GSDGNN, Scenario, track
from hogwild.asynchrony.scenarios import join_and_leave, swarm
from hogwild.plots import tracking


@pytest.fixture(scope="module")
def seen():
    torch.manual_seed(0)
    whole = swarm(8, degree=3, changes=0, every=5).frames[0].data
    scenario = join_and_leave(whole, changes=3, every=15, share=0.3)
    return track(GSDGNN(1, out_channels=1), scenario, every=3)


def test_error_lag_and_score_over_time(seen, tmp_path):
    fig = seen.plot(tmp_path / "track.png")
    assert (tmp_path / "track.png").stat().st_size > 10_000
    error, lag, score = fig.axes
    assert error.get_yscale() == "log"
    assert [ax.get_ylabel() for ax in (lag, score)] == ["lag (ticks)", "rmse"]
    marked = {line.get_xdata()[0] for line in error.lines if len(line.get_xdata()) == 2}
    assert marked == {15, 30, 45}
    (middle,) = [line for line in error.lines if len(line.get_xdata()) == len(seen.times)]
    size = float(seen.answers.square().nanmean().sqrt())
    expected = seen.error[:, 0].nanmedian(-1).values / size
    # NumPy's median of an even number of nodes lies between torch's and the next number.
    assert (torch.as_tensor(middle.get_ydata()) >= expected.clamp_min(1e-9) - 1e-12).all()


def test_several_models_in_one_picture(seen, tmp_path):
    fig = tracking({"one": seen, "two": seen}, tmp_path / "both.svg")
    text = (tmp_path / "both.svg").read_text()
    assert "one" in text
    assert "two" in text
    assert len(fig.legends) == 1


def test_many_changes_are_ticks_at_the_edge():
    frames = [ring([0, 1, 2]) for _ in range(70)]
    for i, frame in enumerate(frames):
        frame.x = frame.x + i
    seen = track(GSDGNN(3, out_channels=1).double(), Scenario(frames, list(range(70)), length=71))
    (marks,) = [line for line in seen.plot().axes[0].lines if line.get_marker() == "|"]
    assert len(marks.get_xdata()) == 69
