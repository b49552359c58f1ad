"""Problems cut into parts in memory, for tests of workers."""

from dataclasses import replace

import torch

from hogwild.cluster.work import Links, Solve, Work
from hogwild.cluster.worker import Worker
from hogwild.graph import Graph
from hogwild.models.gsd import GSDProblem, _links
from hogwild.ops import scatter
from hogwild.problems.base import Objective
from hogwild.solvers import Newton, SemismoothNewton


def owners(n, parts, seed=0):
    """A random owner of each node."""
    return torch.randint(parts, (n,), generator=torch.Generator().manual_seed(seed))


def cut(graph, owner, number, hops):
    """Owned nodes, halo, edges and links of one part; the edges are those of a stored part."""
    mine = owner == number
    src, dst = graph.src, graph.dst
    if hops == 1:
        edges = (mine[src] | mine[dst]).nonzero()[:, 0]
    else:
        centre = mine.clone()
        centre[dst[mine[src]]] = True
        edges = centre[dst].nonzero()[:, 0]
    nodes = mine.nonzero()[:, 0]
    touched = torch.zeros_like(mine)
    touched[src[edges]] = touched[dst[edges]] = True
    halo = (touched & ~mine).nonzero()[:, 0]
    return nodes, halo, edges


def parts(graph, owner, count, hops):
    found = [cut(graph, owner, p, hops) for p in range(count)]
    out = []
    for p, (nodes, halo, edges) in enumerate(found):
        local = torch.full((graph.num_nodes,), -1)
        everyone = torch.cat([nodes, halo])
        local[everyone] = torch.arange(everyone.numel())
        receives = {
            q: local[halo[owner[halo] == q]] for q in range(count) if bool((owner[halo] == q).any())
        }
        sends = {}
        for q, (_, theirs, _) in enumerate(found):
            some = theirs[owner[theirs] == p]
            if some.numel() and q != p:
                sends[q] = local[some]
        ends = torch.stack([local[graph.src[edges]], local[graph.dst[edges]]])
        sub = Graph.of(ends, everyone.numel()) if nodes.numel() else None
        out.append((everyone, edges, sub, Links(nodes.numel(), nodes.numel(), sends, receives)))
    return out


def workers(problem, owner, count, tol=1e-10, folder=None):
    """A worker for each part of a problem, and a function that makes one again."""
    hops = 2 if isinstance(problem, Objective) else 1
    cuts = parts(problem.graph, owner, count, hops)

    def make(p):
        everyone, edges, sub, links = cuts[p]
        if not links.owned:
            return Worker(p, Work(links, problem.start()[..., :0]))
        local = replace(problem.cut(problem.replicas, None, everyone, edges), graph=sub)
        if isinstance(local, GSDProblem):  # the pairs of nodes have other numbers
            number, rows, cols = _links(sub)
            twice = 0.5 * torch.cat([local.weight, local.weight])
            pair = scatter(twice, number, rows.numel() + 1)[:-1]
            local = replace(local, pair=pair * local.root[rows] * local.root[cols])
        solver = Newton() if isinstance(problem, Objective) else SemismoothNewton()
        work = Solve(local, links, tol, solver=solver)
        return Worker(p, work, None if folder is None else folder / f"{p}.npz")

    return [make(p) for p in range(count)], make


def gather(found, owner):
    """The embeddings of all workers, [R, k, N]."""
    first = found[0].work.h
    out = first.new_zeros(first.size(0), first.size(1), owner.numel())
    for worker in found:
        out[..., (owner == worker.number).nonzero()[:, 0]] = worker.work.own
    return out
