"""`python -m infra describe ENV`: turns an environment into the platform document, which everything
outside infra reads.
"""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from holdfast.platform import Platform
from holdfast.platform.document import (
    Database,
    Network,
    Prices,
    Run,
    Security,
    Serving,
    Team,
    Versions,
)
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import QUEUES, Capacity
from holdfast.vocabulary.kubernetes import PRIORITIES
from holdfast.vocabulary.roles import DEFAULT_TEAM, KSA_NAMESPACES, ROLES
from infra.contract.names import BUCKETS
from infra.contract.versions import JOBSET_VERSION, KUEUE_VERSION
from infra.environments import Environment, load, names

DIGESTS = Path(__file__).parents[1] / "workloads" / "images" / "digests.json"
_HEX = re.compile("[0-9a-f]{64}")
T = TypeVar("T", Network, Run, Security, Serving, Team)


def platform(environment: Environment, images: dict[str, str] | None = None) -> Platform:
    """Describe an environment. `images`: role -> 64 hex digits; by default the pushed images."""
    caps = {cap.accelerator: cap.max_gpus for cap in environment.auto_provisioning.accelerators}
    has_gpus = bool(caps) or any(pool.gpus_per_node for pool in environment.pools())
    has_reservation = any(group.reservation for group in environment.groups)
    queues = {capacity.value: queue for capacity, queue in QUEUES.items()}
    if not has_reservation:
        del queues[Capacity.RESERVED.value]
    sources = [*(group.name for group in environment.groups), *caps]
    accounts: dict[str, str] = {}
    for role in (*ROLES, *(team.role for team in environment.teams)):
        accounts[role] = environment.service_account_email(role)
    return Platform(
        name=environment.name,
        project=environment.project,
        project_number=environment.project_number.lower(),
        region=environment.region,
        zones=environment.zones,
        cluster=environment.cluster_name,
        versions=Versions(
            gke=environment.cluster.min_version,
            jobset=JOBSET_VERSION,
            kueue=KUEUE_VERSION,
        ),
        prices=Prices(region=environment.region),
        pools=environment.pools(),
        auto_provisioning=caps,
        quotas={source: environment.quota_gpus(source) for source in sources},
        namespaces=KSA_NAMESPACES,
        queues=queues,
        priorities={name: priority.value for name, priority in PRIORITIES.items()},
        accounts=accounts,
        workload_pool=environment.workload_pool,
        buckets={purpose: environment.bucket(purpose) for purpose in BUCKETS},
        registry=environment.image_registry,
        images=digests(environment.name) if images is None else images,
        database=_database(environment),
        topics={purpose: environment.topic(purpose) for purpose in environment.topic_purposes},
        lanes=environment.queue.lanes,
        runs=tuple(_copy_section(Run, run) for run in environment.storage.runs),
        default_run=environment.storage.default_run,
        teams=_teams(environment),
        serving=_serving(environment),
        network=_copy_section(Network, environment.network, egress=environment.egress),
        security=_copy_section(
            Security,
            environment.security,
            gpu_exporter=environment.security.gpu_exporter and has_gpus,
            image_patterns=environment.image_patterns,
        ),
        drills=environment.allow_drills,
    )


def _copy_section(kind: type[T], section: object, **other: Any) -> T:
    """Fill a section of the document: `other`, and fields of the same name from the environment."""
    values = {}
    for field in fields(kind):
        if field.name not in other:
            values[field.name] = getattr(section, field.name)
    return kind(**values, **other)


def load_platform(name: str) -> Platform:
    """Load and describe the environment `name`. Raises InputError, also if two environments
    describe one cluster.
    """
    document = platform(load(name))
    for other in names():
        if other == name:
            continue
        if platform(load(other), {}).identity == document.identity:
            raise InputError(
                "two environments describe one cluster",
                got=f"{name} and {other}: {document.cluster}",
                allowed="a cluster of its own for each environment",
                fix="change name or name_prefix of one of them",
            )
    return document


def digests(name: str) -> dict[str, str]:
    """Return image -> sha256, as `make images` wrote it. Raises InputError if the file is
    damaged.
    """
    try:
        by_environment: Any = json.loads(DIGESTS.read_text(encoding="utf-8"))
        images: dict[str, str] = by_environment.get(name, {})
        # Any other text would be rendered, and only the nodes would fail to pull the image.
        damaged = [role for role, digest in images.items() if not _HEX.fullmatch(digest)]
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise _make_file_error(name, error) from error
    if damaged:
        role = damaged[0]
        raise _make_file_error(name, f"{role} of {name}: {images[role]!r:.80}")
    return images


def _make_file_error(name: str, defect: object) -> InputError:
    file = "/".join(DIGESTS.parts[-3:])
    return InputError(
        "file of image digests",
        got=f"{file}: {defect}",
        allowed="environment -> role -> 64 hex digits, as `make images` writes it",
        fix=f"git checkout {file}, or make images ENV={name}",
    )


def _database(environment: Environment) -> Database | None:
    if environment.database is None:
        return None
    users = {role: environment.database_user(role) for role in environment.database_roles}
    return Database(connection=environment.database_connection, users=users)


def _serving(environment: Environment) -> Serving | None:
    if environment.serving is None:
        return None
    return _copy_section(Serving, environment.serving, promise=str(environment.serving))


def _teams(environment: Environment) -> tuple[Team, ...]:
    namespaces = tuple(dict.fromkeys(KSA_NAMESPACES.values()))
    teams = [Team(name=DEFAULT_TEAM, namespaces=namespaces)]
    # Receipts are in dollars, so a budget in another currency cannot be compared with them.
    in_dollars = environment.budget is not None and environment.budget.currency == "USD"
    for team in environment.teams:
        quotas = {quota.source: quota.gpus for quota in team.quotas}
        limits = {limit.source: limit.gpus for limit in team.limits}
        teams.append(
            _copy_section(
                Team,
                team,
                namespaces=team.spaces,
                budget_usd=team.budget_usd if in_dollars else 0,
                quotas=quotas,
                limits=limits,
            )
        )
    return tuple(teams)
