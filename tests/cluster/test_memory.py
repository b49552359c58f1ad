"""Memory is predicted, linear in the part, and refused where it does not fit."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from hogwild import GSDGNN, IGNN, EnergyGNN, SoftEnergyGNN
from hogwild.cluster import infer, setup
from hogwild.cluster.setup import available, predict, require_memory
from hogwild.errors import CapacityError
from hogwild.testing import random_graph

LARGE = 10_000_000


@pytest.mark.parametrize("make", [EnergyGNN, GSDGNN, IGNN])
def test_linear_and_growing_with_the_model(make):
    small, wide = make(2, out_channels=1), make(200, out_channels=1, hidden_channels=8)
    found = predict(small, 10**6, 6 * 10**6)
    assert found < 3 << 30
    assert predict(small, 2 * 10**6, 6 * 10**6) - found == predict(small, 10**6, LARGE) - predict(
        small, 0, LARGE
    )
    twice, thrice = (predict(small, 10**6, n * 6 * 10**6) for n in (2, 3))
    assert thrice - twice == twice - found > 0
    assert predict(wide, 10**6, 6 * 10**6) > found
    assert predict(make(2, out_channels=1, replicas=3), 10**6, 6 * 10**6) > found


def test_features_before_they_are_encoded():
    """1,433 features of a node and their standardised copy, as float64."""
    narrow, wide = (SoftEnergyGNN(p, out_channels=1, hidden_channels=4) for p in (4, 1433))
    more = predict(wide, 10**6, LARGE) - predict(narrow, 10**6, LARGE)
    assert more == 2 * 8 * (1433 - 4) * 10**6


def test_parts_that_do_not_fit_are_refused_before_they_start(monkeypatch):
    graph = random_graph([40])
    data = Data(x=torch.ones(40, 2), edge_index=torch.stack([graph.src, graph.dst]))
    monkeypatch.setattr(setup, "available", lambda: 1 << 30)
    with pytest.raises(CapacityError, match="3 workers would need"):
        infer(EnergyGNN(2, out_channels=1), data, 3)


def test_too_much_is_refused():
    require_memory([1 << 20, 1 << 20], limit=2 << 20)
    with pytest.raises(CapacityError, match=r"2 workers would need 3 MiB \(the largest 2 MiB\)"):
        require_memory([1 << 20, 2 << 20], limit=2 << 20)
    with pytest.raises(CapacityError, match="GiB are available"):
        require_memory([1 << 60])


def test_available_memory_is_read_from_the_system(tmp_path, monkeypatch):
    real = Path

    def elsewhere(path):
        return tmp_path / real(path).relative_to("/")

    monkeypatch.setattr(setup, "Path", elsewhere)
    assert available() is None
    require_memory([1 << 60])  # the system does not say
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2048 kB\n")
    assert available() == 2 << 20
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert available() == 2 << 20
    (group / "memory.max").write_text("3000\n")
    assert available() == 2000
