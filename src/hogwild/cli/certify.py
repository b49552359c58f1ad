"""``hogwild certify``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hogwild.cli.common import NODES, Outcome, Setting
from hogwild.cli.flags import in_flags
from hogwild.cli.options import option


@dataclass(frozen=True, kw_only=True)
class Options(Setting):
    """Say what is proved about a trained model under asynchrony.

    It speaks of hogwild simulate with the same options, with the constants on these graphs. Your
    own --step is compared with the certified one. Unlimited loss leaves the staleness unbounded,
    and no theorem applies; --impair loss=0.3,burst=5 bounds it.

    Examples:
      hogwild certify runs/chains
      hogwild certify runs/chains --rule gradient --step certified
      hogwild certify runs/chains --rule gradient --step certified
      hogwild certify runs/chains --stagger 10 --delay 5 --step 0.01 --exchange exact
      hogwild certify runs/chains --impair loss=0.3,burst=5 --json
      hogwild certify runs/chains --rule gradient --step certified --drift 0.001
    """

    drift: float | None = option(
        None,
        "how far an entry of the exact answer moves in a tick, at most: how far behind are nodes?",
        group=NODES,
    )


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.certify`."""
    from hogwild.analysis.certify import certify
    from hogwild.executors.simulation import Settings

    found = options.chosen()
    passed = options.passed(Settings)
    seen = certify(found.model, found.some(options.graphs), drift=options.drift, **passed)
    seen = replace(seen, reason=in_flags(seen.reason, options))
    data = {"stagger": options.stagger, "delay": options.delay, **seen.data}
    data["impairments"] = [repr(impairment) for impairment in passed["impairments"]]
    return options.outcome(found, seen, data)
