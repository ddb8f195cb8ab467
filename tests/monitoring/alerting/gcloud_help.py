"""What gcloud's reference lists for the commands that the runbook uses: positional arguments and flags of their own.

Flags that every command takes stand in EVERYWHERE. A command that is new in the runbook is looked up and added here.
"""

from dataclasses import dataclass

EVERYWHERE = frozenset({"--project", "--format", "--quiet", "--verbosity", "--account", "--configuration"})
_LIST = frozenset({"--filter", "--limit", "--page-size", "--sort-by", "--uri"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    positional: tuple[int, int]
    """At least, at most."""
    flags: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    """Flags without a value."""


COMMANDS = {
    "compute regions describe": Command(positional=(1, 1)),
    "container clusters describe": Command(positional=(1, 1), flags=frozenset({"--location", "--region", "--zone"})),
    "container operations list": Command(positional=(0, 0), flags=_LIST | {"--location", "--region", "--zone"}),
    "logging read": Command(
        positional=(0, 1),
        flags=frozenset({"--freshness", "--limit", "--order", "--bucket", "--location", "--view", "--resource-names"}),
    ),
    "pubsub subscriptions pull": Command(positional=(1, 1), flags=_LIST, switches=frozenset({"--auto-ack"})),
    "sql instances list": Command(positional=(0, 0), flags=_LIST, switches=frozenset({"--show-edition"})),
    "sql operations list": Command(positional=(0, 0), flags=_LIST | {"--instance"}),
    "storage ls": Command(positional=(0, 999), switches=frozenset({"-l", "--long", "-r", "--recursive", "-a", "-b"})),
}
