"""Sweeps: every cell is a robustness of its own."""

import numpy as np
import pytest
import torch
from helpers import DOUBLE, example

import hogwild
from hogwild import GCN, IGNN
from hogwild.asynchrony.impairments import BernoulliLoss, Latency, Stragglers
from hogwild.errors import ConfigError
from hogwild.progress import shown, size


def test_cells():
    model, data = (
        GCN(3, out_channels=2, num_layers=2).double(),
        example(y=torch.randn(6, 2, **DOUBLE)),
    )
    slow = Stragglers(0.5)
    found = hogwild.sweep(
        model, data, staggers=(1, 3), delays=(2, 4), losses=(0.0, 0.3), runs=2, seed=4,
        metric="mae", impairments=slow, rule="overwriting",
    )  # fmt: skip
    decrease = found.grid()
    assert decrease.shape == (2, 2, 2)
    rows = found.rows()
    assert len(rows) == 8
    for a, loss in enumerate((0.0, 0.3)):
        for b, stagger in enumerate((1, 3)):
            for c, delay in enumerate((2, 4)):
                lost = (BernoulliLoss(loss),) if loss else ()
                alone = hogwild.robustness(
                    model, data, stagger=stagger, delay=delay, runs=2, seed=4, metric="mae",
                    impairments=(slow, *lost), rule="overwriting",
                )  # fmt: skip
                cell = found.at(stagger, delay, loss)
                assert torch.equal(cell.asynchronous, alone.asynchronous)
                assert cell.verdict == alone.verdict
                assert decrease[a, b, c] == alone.summary()["decrease"]
                for name in ("spread", "distance", "converged"):
                    assert found.grid(name)[a, b, c] == alone.summary()[name]
                setting = {"stagger": stagger, "delay": delay, "loss": loss}
                (row,) = [row for row in rows if setting.items() <= row.items()]
                assert row["decrease"] == alone.summary()["decrease"]
    assert not torch.equal(decrease[0], decrease[1])
    cell = found.at(3, 4, 0.3)
    last = next(
        line for line in str(found).splitlines() if line.split()[:3] == ["30%", "3", "4"]
    ).split()
    assert last[:3] == ["30%", "3", "4"]
    assert last[3] == f"{float(decrease[1, 1, 1]):.4g}"
    assert last[6] == f"{cell.run.ticks}"
    assert last[7:9] == [shown(cell.price.updates), shown(cell.price.packets)]
    assert " ".join(last[9:11]) == size(cell.price.bytes)
    assert last[11] == shown(cell.deadlines.cone.mean)
    assert float(found.grid("light_cone")[1, 1, 1]) == cell.deadlines.cone.mean
    for name in ("ticks", "updates", "packets", "bytes"):
        assert found.grid(name)[1, 1, 1] == getattr(cell.price, name)


def test_a_sweep_solves_a_model_once(monkeypatch):
    solved, embed = [], IGNN.embed
    monkeypatch.setattr(IGNN, "embed", lambda *given: solved.append(1) or embed(*given))
    options = {"staggers": (1, 2), "delays": (0, 2), "runs": 1}
    hogwild.sweep(IGNN(3, out_channels=2).double(), example(), **options)
    assert len(solved) == 1


def test_latencies_in_place_of_delays():
    model, data = GCN(3, out_channels=2, num_layers=2).double(), example()
    found = hogwild.sweep(model, data, staggers=(3,), latencies=(0, 6), losses=(0.2,), runs=2)
    for latency, row in zip((0, 6), found.rows(), strict=True):
        lossy = (Latency(latency), BernoulliLoss(0.2))
        alone = hogwild.robustness(model, data, stagger=3, delay=latency, runs=2, impairments=lossy)
        assert found.at(3, latency).price == alone.price
        assert (row["latency"], row["light_cone"]) == (latency, alone.deadlines.cone.mean)
    ticks = found.grid("ticks").flatten().tolist()
    assert ticks[1] > ticks[0]
    assert "latency = 6, 20% lost" in str(found)
    assert found.plot().axes[0].get_xlabel() == "latency"


def test_without_a_target(capsys, monkeypatch):
    monkeypatch.setattr("hogwild.progress.DELAY", 0.0)
    found = hogwild.sweep(
        IGNN(3, out_channels=2).double(),
        iter([example()]),
        staggers=(1, 2),
        delays=(0,),
        progress=True,
    )
    assert torch.equal(found.grid(), found.grid("spread"))
    assert bool((found.grid("converged") == 1.0).all())
    assert "sweeping" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="value='decrease'; expected one of spread, distance"):
        found.grid("decrease")
    with pytest.raises(ConfigError, match="was not swept"):
        found.at(5, 0)


def test_bad_settings():
    model, data = GCN(3, out_channels=2).double(), example()
    for options, message in (
        ({"staggers": ()}, r"staggers=\(\); expected a non-empty"),
        ({"delays": 3}, "delays=3; expected a non-empty"),
        ({"latencies": 3}, "latencies=3; expected a non-empty"),
        ({"staggers": (1, 0)}, "stagger=0"),
        ({"losses": (0.1, 2.0)}, r"rate=2\.0"),
        ({"runs": 0}, "runs=0"),
        ({"stagger": [1, 5]}, r"stagger=\[1, 5\] was given to a sweep.*use staggers="),
        ({"delay": 2}, "use delays="),
        ({"loss": 0.3}, "use losses="),
    ):
        with pytest.raises(ConfigError, match=message):
            hogwild.sweep(model, data, **options)
    with pytest.raises(TypeError, match="compare"):
        hogwild.sweep(model, data, compare="all")


def test_numpy_numbers_mean_the_same_as_python_numbers():
    data = example(y=torch.ones(6, 1))
    model = hogwild.GCN(3, out_channels=1).double()
    python = hogwild.sweep(model, data, staggers=(4,), delays=(0, 2), losses=(0.0, 0.5), runs=2)
    numpy = hogwild.sweep(
        model,
        data,
        staggers=np.array([4]),
        delays=[np.int64(0), np.int64(2)],
        losses=np.array([0.0, 0.5]),
        runs=np.int64(2),
    )
    assert torch.equal(python.grid(), numpy.grid())
    assert str(python) == str(numpy)
    assert numpy.at(np.int64(4), 2).settings.stagger == 4
    with pytest.raises(ConfigError, match="non-empty"):
        hogwild.sweep(model, data, staggers=np.array([], int))
