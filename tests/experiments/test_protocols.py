"""Protocols of the paper's tables."""

from experiments.protocols import PROTOCOLS
from hogwild.training import Config


def test_the_papers_tables_are_made_of_features_as_they_are():
    for protocol in PROTOCOLS.values():
        for recipe in ("default", "paper"):
            config = protocol.config("energy-edge", recipe=recipe)
            assert not config.standardize
            assert Config.from_dict(config.as_dict()) == config
    assert Config.of().standardize
    assert not Config.of(recipe="paper").standardize
