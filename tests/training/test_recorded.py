"""Recorded steps: what a recording computes on a CPU, and recordings themselves on a GPU."""

import pytest
import torch
from tiny_runs import parameters, poison
from tiny_tasks import Sums

from hogwild import train
from hogwild.kernels.native import library
from hogwild.linalg import solution
from hogwild.linalg.solution import Solution, postpone, postponed
from hogwild.training.recorded import NotRecorded, RecordedStep, Recorder, Replay

SUMS = {"epochs": 7, "replicas": 3, "validate_every": 3, "log_every": 1, "batch_size": 10}
SUMS |= {"reshuffle": False, "task_options": {"num_graphs": 24, "sizes": 5}, "lr": 0.02}
CHAINS = {"epochs": 7, "replicas": 2, "log_every": 1, "task_options": {"length": 9}}
ROUTES = [
    ("sums", "energy-edge", SUMS),
    ("sums", "gcn", SUMS),
    ("chains", "gcn", CHAINS),
    ("chains", "energy-attention", CHAINS),
    ("chains", "energy-node", CHAINS),
]


@pytest.fixture
def at_once(monkeypatch):
    """Steps run as a recording has them, but kernel by kernel, on any device; counts them. While
    they run, no status can be read."""
    made, running = [], []
    inner, body = RecordedStep.__call__, RecordedStep.body

    def unread(self):
        running.append(self)
        try:
            return body(self)
        finally:
            running.pop()

    def counted(self):
        found = inner(self)
        made.append(found)
        return found

    monkeypatch.setattr(Recorder, "applies", lambda loop: True)
    monkeypatch.setattr(RecordedStep, "body", unread)
    monkeypatch.setattr(RecordedStep, "_record", lambda self: self.body)
    monkeypatch.setattr(RecordedStep, "__call__", counted)
    monkeypatch.setattr(solution, "unreadable", lambda x: bool(running))
    return made


def losses(result):
    return torch.tensor([row["loss"] for row in result.history])


@pytest.mark.parametrize(("task", "model", "options"), ROUTES)
def test_a_recording_computes_the_step(task, model, options, at_once, monkeypatch):
    if model.startswith("energy") and library() is None:
        pytest.skip("the kernels are not compiled: energies are not recorded")
    recorded = train(task, model=model, **options)
    count = len(at_once)
    assert count == (6 if task == "chains" else 18)  # all epochs but the first
    assert not any(step is None for step in at_once)
    monkeypatch.setattr(Recorder, "applies", lambda loop: False)
    plain = train(task, model=model, **options)
    assert len(at_once) == count
    torch.testing.assert_close(losses(recorded), losses(plain), rtol=0, atol=1e-12)
    torch.testing.assert_close(parameters(recorded), parameters(plain), rtol=0, atol=1e-10)
    for one, other in zip(recorded.history, plain.history, strict=True):
        assert one["iterations"] == other["iterations"]


def test_a_broken_step_is_repeated_by_the_loop(at_once, monkeypatch):
    """A replica that breaks stops with its reason, and the others go on as if it was not there."""
    options = SUMS | {"callback": poison(1, 3), "model": "gcn"}
    recorded = train("sums", **options)
    assert sum(step is None for step in at_once) == 1
    monkeypatch.setattr(Recorder, "applies", lambda loop: False)
    plain = train("sums", **options)
    assert recorded.failed == plain.failed == [1]
    assert recorded.stops == plain.stops
    torch.testing.assert_close(parameters(recorded), parameters(plain), rtol=0, atol=1e-10)


@pytest.mark.skipif(library() is None, reason="the kernels are not compiled")
def test_a_replica_that_has_stopped_may_fail(at_once):
    """The steps of the others are recorded all the same."""

    def broken(loop):
        if loop.epoch >= 3:
            poison(1, loop.epoch)(loop)

    result = train("sums", model="energy-edge", callback=broken, **SUMS)
    assert result.failed == [1]
    assert sum(step is None for step in at_once) == 1


def test_other_tensors_are_recorded_anew(at_once, monkeypatch):
    """A recording knows where its tensors lie: it would go on reading the old ones."""
    made = []
    monkeypatch.setattr(RecordedStep, "_record", lambda self: made.append(self) or self.body)

    def moved(loop):
        if loop.epoch == 3:
            first = loop.rows.parameters[0]
            first.data = first.data.clone()

    train("chains", model="gcn", callback=moved, **CHAINS)
    assert len(made) == 2


@pytest.mark.parametrize("model", ["gsdgnn", "ignn", "gat"])
def test_steps_that_wait_for_the_device_are_not_recorded(model, at_once):
    train("chains", model=model, **CHAINS)
    assert at_once == []


def test_a_users_loss_is_not_recorded():
    """It may do anything, such as count its calls."""
    found = []
    train(Sums(), model="gcn", epochs=2, callback=lambda loop: found.append(loop.recorder))
    assert found == [None, None]


def test_failures_are_kept_while_nothing_can_be_read():
    failed = torch.tensor([True])
    postpone(failed)  # nobody waits for it
    with postponed() as outer, postponed() as inner:
        postpone(failed)
    assert [len(outer), len(inner)] == [0, 1]
    assert inner[0] is failed


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnGPU:
    @pytest.mark.parametrize(("task", "model", "options"), ROUTES)
    def test_replays_equal_eager_steps(self, task, model, options, monkeypatch):
        steps = []
        options = options | {"callback": lambda loop: steps.append(loop.recorder)}
        recorded = train(task, model=model, device="cuda", **options)
        made = steps[-1]._steps.values()
        assert len(made) == (1 if task == "chains" else 3)
        assert not any(step is None for step in made)
        monkeypatch.setattr(Recorder, "applies", lambda loop: False)
        plain = train(task, model=model, device="cuda", **options)
        torch.testing.assert_close(losses(recorded), losses(plain), rtol=0, atol=1e-10)
        torch.testing.assert_close(parameters(recorded), parameters(plain), rtol=0, atol=1e-8)

    def test_a_replica_that_breaks_stops_alone(self, monkeypatch):
        options = SUMS | {"callback": poison(1, 3), "model": "energy-edge", "device": "cuda"}
        recorded = train("sums", **options)
        monkeypatch.setattr(Recorder, "applies", lambda loop: False)
        plain = train("sums", **options)
        assert recorded.failed == plain.failed == [1]
        assert recorded.stops == plain.stops
        ours, theirs = (parameters(result)[[0, 2]] for result in (recorded, plain))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)

    def test_a_step_that_waits_is_not_recorded(self):
        """The next recording works all the same."""

        def waits():
            return (torch.ones(3, device="cuda").nonzero(),)

        device = torch.device("cuda", torch.cuda.current_device())
        with pytest.raises(NotRecorded, match="capturing"):
            Replay(waits, device, lambda: None)
        x = torch.zeros(2, device="cuda")
        twice = Replay(lambda: (2 * x,), device, lambda: None)
        x += 1
        assert twice()[0].tolist() == [2, 2]

    def test_failed_solves_are_seen_after_a_replay(self):
        """While kernels are recorded, ``failed`` is false and its mask is kept."""
        status = torch.zeros(2, 3, dtype=torch.long, device="cuda")
        found = Solution(status, status, status, status)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), postponed() as failed:
            assert not found.failed
            out = failed[0].any()
        status[1, 2] = 2
        graph.replay()
        assert bool(out)
