"""``hogwild keys``."""

from __future__ import annotations

from dataclasses import dataclass

from hogwild.cli.common import Outcome
from hogwild.cli.options import Verb, argument, option
from hogwild.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Options(Verb):
    """Make certificates and keys for the agents of a swarm, so that strangers cannot take part.

    The folder gets a small certificate authority and one folder for each agent. Copy each agent's
    folder to its machine, and nothing else. The authority's private key (authority.key) can let
    new agents in: it stays at home. Call the command again with other names to add agents. Nothing
    is overwritten.

    Examples:
      hogwild keys keys --ids 0-19
      hogwild keys keys --ids alice,bob --days 90
      hogwild keys keys --controller base
    """

    folder: str = argument("folder of the keys")
    ids: str | None = option(None, "names of agents: 0-19, or a,b,c", metavar="NAMES")
    controller: str | None = option(
        None,
        "also make keys for whoever may send agents new features and neighbours; agents are told "
        "this name with hogwild-agent --controller",
        metavar="NAME",
    )
    days: int = option(365, "how long the certificates are valid")


def run(options: Options) -> Outcome:
    """Call :func:`hogwild.keys.make_keys`."""
    from hogwild.keys import AUTHORITY_KEY, make_keys, names_of

    agents = [] if options.ids is None else names_of(options.ids)
    more = [] if options.controller is None else [options.controller]
    if not agents and not more:
        raise ConfigError("nobody is named; expected --ids 0-19, --ids a,b,c or --controller NAME")
    made = make_keys(options.folder, [*agents, *more], days=options.days)
    where = made.folder
    lines = [f"{where}: {'a new authority' if made.created else 'the authority that was there'}"]
    if agents:
        first = agents[0]
        shown = f"{where / first}" + (f" … {where / agents[-1]}" if len(agents) > 1 else "")
        lines += [
            f"{shown}: keys of {len(agents)} agents; copy each folder to its agent's machine, and "
            f"start",
            f"  hogwild-agent --id {first} --certificates FOLDER …",
        ]
    for name in more:
        lines += [
            f"{where / name}: keys of the controller; copy them to the machine that controls the "
            f"agents, and start agents with --controller {name}",
        ]
    lines += [
        f"{where / AUTHORITY_KEY} can let new agents in: keep it here, and copy it to no robot",
        f"the new certificates are valid until {made.end:%F}",
    ]
    data = {
        "folder": str(where), "agents": agents, "controller": options.controller,
        "until": made.end.isoformat(), "new_authority": made.created,
    }  # fmt: skip
    return Outcome("\n".join(lines), data)
