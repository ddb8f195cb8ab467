"""APIs, VPC, subnet, NAT and the range for managed services."""

# Why it is so: infra/decisions/0065.

from ipaddress import ip_network

from holdfast.vocabulary.roles import GOOGLE_APIS_CIDR
from infra.environments.schema import Environment
from infra.environments.services import ExistingNetwork
from infra.specs.resource import Resource, grant

APIS = (
    "artifactregistry",
    "billingbudgets",
    "cloudresourcemanager",
    "compute",
    "container",
    "cloudkms",
    "dns",
    "iam",
    "logging",
    "monitoring",
    "pubsub",
    "servicenetworking",
    "sqladmin",
    "storage",
)
PODS_RANGE = "pods"
SERVICES_RANGE = "services"

VPC = "google_compute_network.vpc"
SUBNET = "google_compute_subnetwork.nodes"
PEERING = "google_service_networking_connection.managed-services"


def api(environment: Environment, name: str) -> tuple[str, ...]:
    """What a resource that needs an API comes after; nothing where the organisation enables them."""
    return (f"google_project_service.{name}",) if environment.enable_apis else ()


def resources(environment: Environment) -> list[Resource]:
    existing = environment.network.existing
    parts = {"nat": _nat, "google-apis": _google_apis}
    if makes_peering(environment):
        parts["managed-services"] = _managed_services
    wanted = [part for name, part in parts.items() if not existing or name in existing.creates]
    return [
        *(_services(environment) if environment.enable_apis else []),
        *(_host_grants(environment, existing) if existing and existing.grants else []),
        *([] if existing else [_vpc(environment), _subnet(environment), _firewall(environment)]),
        *(resource for part in wanted for resource in part(environment)),
    ]


def makes_peering(environment: Environment) -> bool:
    """Whether the range and the peering for Cloud SQL are made here."""
    existing = environment.network.existing
    return bool(environment.database) and (
        existing is None or "managed-services" in existing.creates
    )


def _host_grants(environment: Environment, existing: ExistingNetwork) -> list[Resource]:
    """What GKE needs in a Shared VPC host project (GKE documentation, clusters with Shared VPC)."""
    number = environment.project_number.lower()
    _, _, _, region, _, subnet = existing.subnet.split("/")
    gke = f"serviceAccount:service-{number}@container-engine-robot.iam.gserviceaccount.com"
    users = {"gke": gke, "instances": f"serviceAccount:{number}@cloudservices.gserviceaccount.com"}
    where = {
        "project": existing.project,
        "region": region,
        "subnetwork": subnet,
    }
    after = tuple(
        name
        for each in ("container", "compute", "cloudresourcemanager")
        for name in api(environment, each)
    )
    role = "roles/compute.networkUser"
    agent_role = "roles/container.hostServiceAgentUser"
    return [
        *(
            grant("compute_subnetwork", f"host-{name}", role, user, after, **where)
            for name, user in users.items()
        ),
        grant("project", "host-gke", agent_role, gke, after, project=existing.project),
    ]


def apis(environment: Environment) -> tuple[str, ...]:
    asked = {
        "binaryauthorization": environment.security.binary_authorization,
        "secretmanager": environment.security.secret_manager,
        "iamcredentials": environment.delivery,
        "sts": environment.delivery,
    }
    return (*APIS, *(name for name, wanted in asked.items() if wanted))


def _services(environment: Environment) -> list[Resource]:
    return [
        Resource(
            kind="google_project_service",
            id=name,
            # Disabling an API on destroy would take it from everyone else in the project.
            arguments={"service": f"{name}.googleapis.com", "disable_on_destroy": False},
        )
        for name in apis(environment)
    ]


def _vpc(environment: Environment) -> Resource:
    return Resource(
        kind="google_compute_network",
        id="vpc",
        arguments={
            "name": environment.stem,
            "auto_create_subnetworks": False,
            "routing_mode": "REGIONAL",
        },
        after=api(environment, "compute"),
    )


def _subnet(environment: Environment) -> Resource:
    network = environment.network
    arguments: dict[str, object] = {
        "name": environment.subnet_name,
        "network": environment.stem,
        "region": environment.region,
        "ip_cidr_range": network.nodes_cidr,
        "private_ip_google_access": True,
        "secondary_ip_range": [
            {"range_name": PODS_RANGE, "ip_cidr_range": network.pods_cidr},
            {"range_name": SERVICES_RANGE, "ip_cidr_range": network.services_cidr},
        ],
    }
    if network.flow_logs:
        arguments["log_config"] = {
            "aggregation_interval": "INTERVAL_5_SEC",
            "flow_sampling": 0.5,
            "metadata": "INCLUDE_ALL_METADATA",
        }
    return Resource(
        kind="google_compute_subnetwork",
        id="nodes",
        arguments=arguments,
        after=(VPC,),
    )


def _after(environment: Environment, *addresses: str) -> tuple[str, ...]:
    """Addresses of the VPC and the subnet where they are made here, which come after the API."""
    return api(environment, "compute") if environment.network.existing else addresses


def _firewall(environment: Environment) -> Resource:
    """What no other rule admits is refused, and logged; the network's own refusal leaves no trace.

    Never in a network of others: at its priority it would outvote the rules that the default
    network has.
    """
    return Resource(
        kind="google_compute_firewall",
        id="refuse",
        arguments={
            "name": f"{environment.stem}-refuse",
            # By reference, so that a reader of the plan sees which network this guards.
            "network": "${google_compute_network.vpc.name}",
            "direction": "INGRESS",
            "priority": 65_534,
            "source_ranges": ["0.0.0.0/0"],
            "deny": [{"protocol": "all"}],
            "log_config": {"metadata": "EXCLUDE_ALL_METADATA"},
        },
        after=(VPC,),
    )


def _nat(environment: Environment) -> list[Resource]:
    """Nodes have no public address; images and package indexes outside Google go through here."""
    router = f"{environment.stem}-router"
    vpc = environment.network_path.rpartition("/")[2]
    return [
        Resource(
            kind="google_compute_router",
            id="nat",
            arguments={
                "name": router,
                "network": vpc,
                "region": environment.region,
            },
            after=_after(environment, VPC),
        ),
        Resource(
            kind="google_compute_router_nat",
            id="nat",
            arguments={
                "name": f"{environment.stem}-nat",
                "router": router,
                "region": environment.region,
                "nat_ip_allocate_option": "AUTO_ONLY",
                "source_subnetwork_ip_ranges_to_nat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
                "log_config": {"enable": True, "filter": "ERRORS_ONLY"},
            },
            after=("google_compute_router.nat", *_after(environment, SUBNET)),
        ),
    ]


def _google_apis(environment: Environment) -> list[Resource]:
    """Every name below googleapis.com on private addresses: the only way out that network policies
    of pods admit.
    """
    zone = f"{environment.stem}-google-apis"
    addresses = [str(address) for address in ip_network(GOOGLE_APIS_CIDR)]
    records = {
        "google-apis": ("private.googleapis.com.", "A", addresses),
        "google-apis-all": ("*.googleapis.com.", "CNAME", ["private.googleapis.com."]),
    }
    return [
        Resource(
            kind="google_dns_managed_zone",
            id="google-apis",
            arguments={
                "name": zone,
                "dns_name": "googleapis.com.",
                "description": "Google APIs on private addresses",
                "visibility": "private",
                "private_visibility_config": {
                    "networks": [{"network_url": environment.network_path}]
                },
            },
            after=(*_after(environment, VPC), *api(environment, "dns")),
        ),
        *(
            Resource(
                kind="google_dns_record_set",
                id=id_,
                arguments={
                    "managed_zone": zone,
                    "name": name,
                    "type": kind,
                    "ttl": 300,
                    "rrdatas": values,
                },
                after=("google_dns_managed_zone.google-apis",),
            )
            for id_, (name, kind, values) in records.items()
        ),
    ]


def _managed_services(environment: Environment) -> list[Resource]:
    address, prefix = environment.network.database_cidr.split("/")
    name = f"{environment.stem}-managed-services"
    return [
        Resource(
            kind="google_compute_global_address",
            id="managed-services",
            arguments={
                "name": name,
                "purpose": "VPC_PEERING",
                "address_type": "INTERNAL",
                "address": address,
                "prefix_length": int(prefix),
                "network": environment.network_path,
            },
            after=_after(environment, VPC),
        ),
        Resource(
            kind="google_service_networking_connection",
            id="managed-services",
            arguments={
                "network": environment.network_path,
                "service": "servicenetworking.googleapis.com",
                "reserved_peering_ranges": [name],
                # Cloud SQL holds the peering for hours after its instance is gone; a destroy must
                # not wait for it.
                "deletion_policy": "ABANDON",
                # The abandoned peering is still there at the next deployment, with the range of the
                # last.
                "update_on_creation_fail": True,
            },
            after=(
                "google_compute_global_address.managed-services",
                *api(environment, "servicenetworking"),
            ),
        ),
    ]
