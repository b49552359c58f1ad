"""Workers in one process: whatever the disorder, the answers are those of the solver, and packets
say what they should."""

import pytest
from cluster_parts import case, distance, pair

from hogwild.cluster import Disorder, infer


@pytest.mark.parametrize(
    ("sizes", "count"), [((12,), 1), ((12,), 3), ((1, 1, 4), 2), ((7, 3, 1), 4), ((5,), 9)],
    ids=["one", "three", "isolated", "disconnected", "more-workers-than-nodes"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["energy", "energy-node", "gsd", "ignn"])
def test_delays_losses_and_deaths_change_no_answer(name, sizes, count, tmp_path):
    model, data = case(name, sizes)
    disorder = Disorder(seed=1, delay=4, loss=0.2, kill=0.2, kills=3)
    run = infer(model, data, count, folder=tmp_path, partition="search", disorder=disorder)
    assert run.converged
    assert run.restarts == 3 or sum(run.updates) < 12
    assert distance(run, model, data) <= run.error_bar.error + 1e-12
    assert run.error_bar.relative <= 1e-6


def test_a_restarted_worker_hears_embeddings_and_not_only_versions(tmp_path):
    with pair(tmp_path) as (a, b, make):
        a.update()
        mail = a.outgoing(1)
        assert b.receive(0, mail)
        a.has_arrived(1, mail, b.version[0])
        make(1)  # it has forgotten what it heard
        short = a.outgoing(1)
        assert short.packet is None  # the first life has the embeddings
        assert not b.receive(0, short)
        a.has_arrived(1, short, None)
        assert a.owes(1)
        assert a.outgoing(1).packet is not None


def test_mail_to_an_earlier_life_does_not_count(tmp_path):
    with pair(tmp_path) as (a, b, make):
        a.update()
        mail = a.outgoing(1)
        assert b.receive(0, mail)
        early = b.version[0]
        make(1)
        a.receive(1, b.outgoing(0))  # before the news that the mail has arrived
        a.has_arrived(1, mail, early)
        assert a.outgoing(1).packet is not None
