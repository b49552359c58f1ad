"""How well nodes follow a swarm that moves, rule by rule.

A random-waypoint swarm of 50 robots with 6 neighbours on average changes every 100 updates of a
node, 200 times. The table has the error of a node 10, 25, 50 and 90 updates after a change,
relative to the size of the change (median and 90th percentile over nodes and changes), the median
error after 50 updates in the first and in the last quarter of all changes (does it grow?), the lag,
and what a node sends. The rule ``momentum`` is gradient steps with ``step="momentum"``. Models have
fresh parameters, or were trained on the mean of the swarm's numbers for ``--epochs`` epochs.

    python benchmarks/motion.py
    python benchmarks/motion.py --models energy --rules messages,gradient --epochs 300
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn

import hogwild
from hogwild.asynchrony.scenarios import swarm
from hogwild.executors.track_result import Track
from hogwild.progress import aligned, size

MODELS = {
    "energy": lambda: hogwild.EnergyGNN(1, out_channels=1),
    "gsd": lambda: hogwild.GSDGNN(1, out_channels=1),
    "ignn": lambda: hogwild.IGNN(1, out_channels=1),
    "gcn": lambda: hogwild.GCN(1, out_channels=1),
    "gat": lambda: hogwild.GAT(1, out_channels=1),
}
RULES = {
    "energy": ("messages", "gradient", "momentum"),
    "gsd": ("messages", "gradient", "momentum"),
    "ignn": ("fixed-point",),
    "gcn": ("caching", "overwriting"),
    "gat": ("caching", "overwriting"),
}


def trained(model: nn.Module, epochs: int, nodes: int, seed: int) -> float:
    """Train on the mean of other swarms' numbers; the last loss."""
    if not epochs:
        return float("nan")
    frames = [f.data for s in range(8) for f in swarm(nodes, changes=3, seed=1000 + seed + s)]
    best = torch.optim.AdamW(model.parameters(), 0.005)
    loss = torch.zeros(())
    for epoch in range(epochs):
        data = frames[epoch % len(frames)]
        best.zero_grad()
        loss = (model(data.x, data.edge_index) - data.y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        best.step()
    return float(loss.detach())


def row(name: str, rule: str, seen: Track, seconds: float) -> dict[str, object]:
    """What a run says."""
    out: dict[str, object] = {"model": name, "rule": rule}
    for updates in (10, 25, 50, 90):
        found = seen.after(updates)
        fine = found[~found.isnan()]
        out[f"median after {updates}"] = float(fine.median()) if fine.numel() else float("nan")
        out[f"90th after {updates}"] = float(fine.quantile(0.9)) if fine.numel() else float("nan")
    half = seen.after(50).flatten(1)
    quarter = max(len(half) // 4, 1)
    out["first quarter"] = float(half[:quarter].nanmedian())
    out["last quarter"] = float(half[-quarter:].nanmedian())
    out |= {key: value for key, value in seen.summary().items() if key not in out}
    out["largest error"] = float(seen.spread.max())
    out["last error"] = float(seen.spread[-1].max())
    return out | {"seconds": seconds}


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rules", default="")
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--degree", type=float, default=6.0)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--updates", type=int, default=100, help="of a node between two changes")
    parser.add_argument("--speed", type=float, default=0.02)
    parser.add_argument("--stagger", type=int, default=5)
    parser.add_argument("--delay", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = options.updates * (options.stagger + 1) // 2
    scenario = swarm(
        options.nodes, degree=options.degree, changes=options.changes, every=every,
        speed=options.speed, seed=options.seed,
    )  # fmt: skip
    print(f"{scenario!r}, a change every {options.updates} updates of a node", flush=True)
    rows = []
    for name in options.models.split(","):
        rules = options.rules.split(",") if options.rules else RULES[name]
        for rule in [rule for rule in rules if rule in RULES[name]]:
            torch.manual_seed(options.seed)
            model = MODELS[name]()
            loss = trained(model, options.epochs, options.nodes, options.seed)
            begun = time.perf_counter()
            restart = 5 * options.stagger + 1 if rule == "overwriting" else None
            how = {"rule": "gradient", "step": "momentum"} if rule == "momentum" else {"rule": rule}
            seen = hogwild.track(
                model, scenario, **how, restart=restart, stagger=options.stagger,
                delay=options.delay, seed=options.seed, every=3,
            )  # fmt: skip
            rows.append(row(name, rule, seen, time.perf_counter() - begun) | {"loss": loss})
            print(json.dumps(rows[-1]) if options.json else f"{name}, {rule}: {seen}", flush=True)
    head = ["model, rule", "10", "25", "50", "90", "first", "last", "lag", "bytes/100 ticks"]
    body = [
        [
            f"{r['model']}, {r['rule']}",
            *(f"{100 * r[f'median after {u}']:.2g} %" for u in (10, 25, 50, 90)),
            *(f"{100 * r[f'{q} quarter']:.2g} %" for q in ("first", "last")),
            f"{r['lag']:.1f}",
            size(100 * r["bytes_a_tick"]),
        ]
        for r in rows
    ]
    print(aligned([head, *body]))


if __name__ == "__main__":
    main()
