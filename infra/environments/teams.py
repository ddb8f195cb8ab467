"""Teams of people that share a cluster: namespaces of their own, guaranteed GPUs, a budget, and who
may submit there.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.vocabulary.kubernetes import NAMESPACE_KUEUE, SYSTEM_NAMESPACES
from holdfast.vocabulary.roles import KSA_NAMESPACES, team_folder, team_role
from infra.environments.capacity import Quota
from infra.environments.checks import between, dns_name, forms, require, unique
from infra.environments.runs import MAX_CONDITIONS, Run, conditional_bindings, of_condition

TAKEN = {
    *KSA_NAMESPACES.values(),
    *SYSTEM_NAMESPACES,
    NAMESPACE_KUEUE,
    "jobset-system",
    "gpu-metrics",
    "default",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    """Apart from the default team, which has the namespaces training, batch, serving and
    monitoring. Its jobs share a Google service account, which can use the team's folder of the
    checkpoints and no other.
    """

    name: str
    members: str = ""
    """Google group whose members submit, stop and read jobs in the team's namespaces, and can do
    nothing else. It must be in security.rbac_security_group. Empty: only the platform team submits.
    """
    namespaces: tuple[str, ...] = ()
    """Empty: one with the team's name. Training runs of the team live in the first."""
    quotas: tuple[Quota, ...] = ()
    """GPUs of an accelerator that the team is guaranteed in each capacity, taken from the
    environment's. It borrows what others leave idle, and gives back what it borrowed.
    """
    limits: tuple[Quota, ...] = ()
    """GPUs of an accelerator that the team uses at most in each capacity, borrowed ones included.
    An accelerator without a limit: all that others leave idle.
    """
    budget_usd: int = 0
    """A month, by Google's cost allocation, in the currency of `budget`; it warns as `budget` does.
    0: none.
    """
    runs: tuple[str, ...] = ()
    """Of storage.runs, those that train in the team's first namespace. Jobs of other names save in
    the team's folder.
    """

    def __post_init__(self) -> None:
        dns_name("teams[].name", self.name, 20)
        at = f"teams[{self.name}]."
        forms("teams.", self, "members")
        between(f"{at}budget_usd", self.budget_usd, 0, 100_000_000)
        for namespace in self.namespaces:
            dns_name(f"{at}namespaces", namespace, 40)
        unique(f"{at}quotas[].source", [quota.source for quota in self.quotas])
        unique(f"{at}limits[].source", [limit.source for limit in self.limits])
        least = {quota.source: quota.gpus for quota in self.quotas}
        for limit in self.limits:
            given = least.get(limit.source, 0)
            fix = "raise the limit, or lower the quota"
            require(
                limit.gpus >= given,
                f"{at}limits[{limit.source}].gpus",
                limit.gpus,
                f"at least {given}, the quota",
                fix,
            )
        fix = "one namespace, or no budget"  # a budget takes one label with one value
        require(
            not self.budget_usd or len(self.spaces) == 1,
            f"{at}budget_usd",
            self.budget_usd,
            "0 with several namespaces",
            fix,
        )

    @property
    def role(self) -> str:
        """Of its Google service account."""
        return team_role(self.name)

    @property
    def folder(self) -> str:
        """Of its checkpoints, other than those of `runs`."""
        return team_folder(self.name)

    @property
    def spaces(self) -> tuple[str, ...]:
        return self.namespaces or (self.name,)


def check(
    teams: tuple[Team, ...],
    *,
    runs: tuple[Run, ...],
    gpus: dict[str, int],
    groups: bool,
    budget: bool,
) -> None:
    """InputError unless teams fit each other and the environment. `gpus`: accelerator -> the most
    that one capacity lends; `groups`: role bindings by Google group are on; `budget`: the
    environment has one.
    """
    unique("teams[].name", [*(team.name for team in teams), "default"])
    unique("teams[].namespaces", [*TAKEN, *(space for team in teams for space in team.spaces)])
    unique("teams[].runs", [run for team in teams for run in team.runs])
    known = [run.name for run in runs]
    for team in teams:
        at = f"teams[{team.name}]."
        lost = sorted({*team.runs} - {*known})
        fix = "add it to storage.runs"
        require(
            not lost,
            f"{at}runs",
            ", ".join(lost),
            ", ".join(known) or "none: storage.runs is empty",
            fix,
        )
        fix = (
            'set security.rbac_security_group="gke-security-groups@your-domain", and put the group'
            " into it"
        )
        require(
            groups or not team.members,
            f"{at}members",
            team.members,
            "a group where GKE reads groups",
            fix,
        )
        fix = "set budget, whose billing account it takes"
        require(
            budget or not team.budget_usd,
            f"{at}budget_usd",
            team.budget_usd,
            "0 without budget",
            fix,
        )
        for limit in team.limits:
            fix = "correct the accelerator"
            require(
                limit.source in gpus,
                f"{at}limits[].source",
                limit.source,
                ", ".join(gpus) or "none",
                fix,
            )
    bindings = conditional_bindings(runs) + sum(
        1 + len(of_condition(prefixes_of(team, runs))) for team in teams
    )
    fix = "let fewer runs be read, or remove those that have ended"
    require(
        bindings <= MAX_CONDITIONS,
        "teams and storage.runs: bindings",
        bindings,
        f"at most {MAX_CONDITIONS}",
        fix,
    )
    for source in {quota.source: None for team in teams for quota in team.quotas}:
        wanted = sum(guaranteed(teams, source).values())
        most = gpus.get(source, 0)
        allowed = f"at most {most} over all teams"
        fix = f"accelerators are {', '.join(gpus)}; lower the quotas of teams"
        require(wanted <= most, f"teams[].quotas[{source}].gpus", wanted, allowed, fix)


def prefixes_of(team: Team, runs: tuple[Run, ...]) -> tuple[str, ...]:
    """Of the checkpoints of the team's listed runs."""
    return tuple(prefix for run in runs if run.name in team.runs for prefix in run.prefixes)


def guaranteed(teams: Iterable[Team], accelerator: str) -> dict[str, int]:
    """Team -> GPUs."""
    return {
        team.name: quota.gpus
        for team in teams
        for quota in team.quotas
        if quota.source == accelerator
    }
