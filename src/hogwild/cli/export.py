"""``hogwild export``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import FILES, MODEL, Finished, Outcome
from hogwild.cli.options import option


@dataclass(frozen=True, kw_only=True)
class Options(Finished):
    """Write a trained model to one file that agents run without torch.

    Copy the file to every robot and start hogwild-agent there. An agent needs NumPy, hogwild-node
    and, for the default network, Zenoh. The name that is printed is the model's name on the
    network: agents with other models do not hear each other.

    Examples:
      hogwild export runs/chains --out model.hog
      hogwild export runs/chains --replica 3 --out model.hog --json
    """

    out: str = option("model.hog", "where to write the model", group=FILES, metavar="FILE")
    replica: int | None = option(
        None, "which replica; by default, the best one on validation", group=MODEL
    )


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.models.export.export`."""
    from pathlib import Path

    from hogwild.models.export import export

    result = options.load()
    r = result.best if options.replica is None else options.replica
    model = result.replica(r).cpu().eval()
    name = export(model, options.out)
    size = Path(options.out).stat().st_size
    text = (
        f"{options.out}: {result.config.model}, replica {r}, {size / 1000:.1f} kB, named {name} on "
        f"the network\nnext: hogwild-agent --model {options.out} --id NAME --features … "
        f"--neighbours NAME=HOST:PORT,…"
    )
    data = {"file": options.out, "model": result.config.model, "name": name, "bytes": size}
    return Outcome(text, data, True, {"replica": r})
