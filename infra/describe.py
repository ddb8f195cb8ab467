"""`python -m infra describe ENV`: an environment as the document that everything outside infra
reads.
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
    """`images`: role -> 64 hex digits; by default those that were pushed."""
    accelerators = [cap.accelerator for cap in environment.auto_provisioning.accelerators]
    gpus = [*accelerators, *(pool.name for pool in environment.pools() if pool.gpus_per_node)]
    reserves = any(group.reservation for group in environment.groups)
    sources = [*(group.name for group in environment.groups), *accelerators]
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
        auto_provisioning={
            cap.accelerator: cap.max_gpus for cap in environment.auto_provisioning.accelerators
        },
        quotas={source: environment.quota_gpus(source) for source in sources},
        namespaces=KSA_NAMESPACES,
        queues={
            c.value: queue for c, queue in QUEUES.items() if c is not Capacity.RESERVED or reserves
        },
        priorities={name: priority.value for name, priority in PRIORITIES.items()},
        accounts={
            role: environment.service_account_email(role)
            for role in (*ROLES, *(team.role for team in environment.teams))
        },
        workload_pool=environment.workload_pool,
        buckets={purpose: environment.bucket(purpose) for purpose in BUCKETS},
        registry=environment.image_registry,
        images=digests(environment.name) if images is None else images,
        database=_database(environment),
        topics={purpose: environment.topic(purpose) for purpose in environment.topic_purposes},
        lanes=environment.queue.lanes,
        runs=tuple(_taken(Run, run) for run in environment.storage.runs),
        default_run=environment.storage.default_run,
        teams=_teams(environment),
        serving=environment.serving
        and _taken(Serving, environment.serving, promise=str(environment.serving)),
        network=_taken(Network, environment.network),
        security=_taken(
            Security,
            environment.security,
            gpu_exporter=environment.security.gpu_exporter and bool(gpus),
            image_patterns=environment.image_patterns,
        ),
        drills=environment.allow_drills,
    )


def _taken(kind: type[T], section: object, **other: Any) -> T:
    """What the document and a section of the environment call the same, and `other`."""
    same = {}
    for field in fields(kind):
        if field.name not in other:
            same[field.name] = getattr(section, field.name)
    return kind(**same, **other)


def described(name: str) -> Platform:
    """The platform of the environment `name`. Raises InputError, also where two environments
    describe one cluster.
    """
    found = platform(load(name))
    for other in (each for each in names() if each != name):
        if platform(load(other), {}).identity == found.identity:
            raise InputError(
                "two environments describe one cluster",
                got=f"{name} and {other}: {found.cluster}",
                allowed="a cluster of its own for each environment",
                fix="change name or name_prefix of one of them",
            )
    return found


def digests(name: str) -> dict[str, str]:
    """Image -> sha256, as `make images` wrote it. Raises InputError where the file is damaged."""
    try:
        known: Any = json.loads(DIGESTS.read_text(encoding="utf-8"))
        mine: dict[str, str] = known.get(name, {})
        # Anything else would be rendered as it is, and only the nodes would find that they cannot
        # pull it.
        wrong = [role for role, digest in mine.items() if not _HEX.fullmatch(digest)]
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, TypeError) as error:
        raise _damaged(name, error) from error
    if wrong:
        raise _damaged(name, f"{wrong[0]} of {name}: {mine[wrong[0]]!r:.80}")
    return mine


def _damaged(name: str, why: object) -> InputError:
    file = "/".join(DIGESTS.parts[-3:])
    allowed = "environment -> role -> 64 hex digits, as `make images` writes it"
    fix = f"git checkout {file}, or make images ENV={name}"
    return InputError(
        "file of image digests",
        got=f"{file}: {why}",
        allowed=allowed,
        fix=fix,
    )


def _database(environment: Environment) -> Database | None:
    if environment.database is None:
        return None
    users = {role: environment.database_user(role) for role in environment.database_roles}
    return Database(connection=environment.database_connection, users=users)


def _teams(environment: Environment) -> tuple[Team, ...]:
    return (
        Team(name=DEFAULT_TEAM, namespaces=tuple(dict.fromkeys(KSA_NAMESPACES.values()))),
        *(
            _taken(
                Team,
                team,
                namespaces=team.spaces,
                quotas={quota.source: quota.gpus for quota in team.quotas},
                limits={limit.source: limit.gpus for limit in team.limits},
            )
            for team in environment.teams
        ),
    )
