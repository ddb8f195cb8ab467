"""What Google's reference of gcloud lists for the commands that the runbook uses: arguments and flags of their own.

Read from the SYNOPSIS of each page under cloud.google.com/sdk/gcloud/reference. A command that is new in the runbook is
looked up and added here, with the day.
"""

from dataclasses import dataclass

REFERENCE = "cloud.google.com/sdk/gcloud/reference"
# "GCLOUD WIDE FLAGS" of compute/regions/describe, last updated 2026-04-14.
EVERYWHERE = frozenset(
    [
        "--access-token-file",
        "--account",
        "--billing-project",
        "--configuration",
        "--flags-file",
        "--flatten",
        "--format",
        "--help",
        "--impersonate-service-account",
        "--log-http",
        "--project",
        "--quiet",
        "--trace-token",
        "--user-output-enabled",
        "--verbosity",
    ]
)
_LIST = frozenset({"--filter", "--limit", "--page-size", "--sort-by"})
_PLACE = frozenset({"--location", "--region", "--zone", "-z"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    page: str
    """Below REFERENCE."""
    read: str
    """Day on which the page was looked up."""
    positional: tuple[int, int]
    """At least, at most."""
    flags: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    """Flags without a value."""


def _command(
    name: str, positional: tuple[int, int], flags: frozenset[str] = frozenset(), switches: str = ""
) -> Command:
    return Command(
        page=name.replace(" ", "/"),
        read="2026-11-22",
        positional=positional,
        flags=flags,
        switches=frozenset(switches.split()),
    )


_SCOPES = frozenset({"--billing-account", "--folder", "--organization", "--resource-names"})
_VIEW = frozenset({"--bucket", "--location", "--view"})
_LS = frozenset({"--additional-headers", "--next-page-token", "--decryption-keys"})
_LS_SWITCHES = (
    "--all-versions -a --buckets -b --etag -e --exhaustive --fetch-encrypted-object-hashes --read-paths-from-stdin -I "
    "--readable-sizes --recursive -R -r --soft-deleted --full -L --json -j --long -l"
)
_SQL_SWITCHES = "--show-edition --show-sql-network-architecture --show-transactional-log-storage-state --uri"
COMMANDS = {
    each.page.replace("/", " "): each
    for each in (
        _command("compute regions describe", (1, 1)),
        _command("container clusters describe", (1, 1), _PLACE),
        _command("container operations list", (0, 0), _PLACE | _LIST),
        _command("logging read", (0, 1), _SCOPES | _VIEW | {"--freshness", "--order", "--limit"}),
        _command("pubsub subscriptions pull", (1, 1), _LIST, "--auto-ack --uri"),
        _command("sql instances list", (0, 0), _LIST, _SQL_SWITCHES),
        _command("storage ls", (0, 999), _LS, _LS_SWITCHES),
    )
}
