"""APIs, VPC, subnet, NAT and the range for managed services."""

# Decision: infra/decisions/0065.

from ipaddress import ip_network

from holdfast.vocabulary.roles import GOOGLE_APIS_CIDR
from infra.environments.network import ExistingNetwork
from infra.environments.schema import Environment
from infra.specs.resource import Resource, grant

APIS = (
    "artifactregistry",
    "billingbudgets",
    "cloudresourcemanager",
    "compute",
    "container",
    # Image streaming; without it, nodes pull whole images without a message.
    "containerfilesystem",
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
    """Return the address of an API that a resource depends on; nothing if the organization enables
    APIs.
    """
    return (f"google_project_service.{name}",) if environment.enable_apis else ()


def resources(environment: Environment) -> list[Resource]:
    existing = environment.network.existing
    planned: list[Resource] = []
    if environment.enable_apis:
        planned += _services(environment)
    if existing and existing.grants:
        planned += _host_grants(environment, existing)
    if not existing:
        planned += [_vpc(environment), _subnet(environment), _firewall(environment)]
        if environment.network.load_balancers_cidr:
            planned.append(_load_balancer_subnet(environment))
    if not existing or "nat" in existing.creates:
        planned += _nat(environment)
    if not existing or "google-apis" in existing.creates:
        planned += _google_apis(environment)
    if makes_peering(environment):
        planned += _managed_services(environment)
    return planned


def makes_peering(environment: Environment) -> bool:
    """Tell whether the range and the peering for Cloud SQL are part of this platform."""
    if environment.database is None:
        return False
    existing = environment.network.existing
    return existing is None or "managed-services" in existing.creates


def _host_grants(environment: Environment, existing: ExistingNetwork) -> list[Resource]:
    """Return the grants that GKE needs in a Shared VPC host project (GKE documentation, clusters
    with Shared VPC).
    """
    number = environment.project_number.lower()
    _, _, _, region, _, subnet = existing.subnet.split("/")
    gke = f"serviceAccount:service-{number}@container-engine-robot.iam.gserviceaccount.com"
    instances = f"serviceAccount:{number}@cloudservices.gserviceaccount.com"
    subnetwork = {
        "project": existing.project,
        "region": region,
        "subnetwork": subnet,
    }
    after = (
        *api(environment, "container"),
        *api(environment, "compute"),
        *api(environment, "cloudresourcemanager"),
    )
    user = "roles/compute.networkUser"
    agent_user = "roles/container.hostServiceAgentUser"
    return [
        grant("compute_subnetwork", "host-gke", user, gke, after, **subnetwork),
        grant("compute_subnetwork", "host-instances", user, instances, after, **subnetwork),
        grant("project", "host-gke", agent_user, gke, after, project=existing.project),
    ]


def apis(environment: Environment) -> tuple[str, ...]:
    """Return the names of all APIs that the environment uses, without `.googleapis.com`."""
    security = environment.security
    optional: tuple[str, ...] = ()
    if security.binary_authorization:
        optional += ("binaryauthorization",)
    if security.secret_manager:
        optional += ("secretmanager",)
    if environment.delivery:
        optional += ("iamcredentials", "sts")
    return (*APIS, *optional)


def _services(environment: Environment) -> list[Resource]:
    services = []
    for name in apis(environment):
        arguments = {
            "service": f"{name}.googleapis.com",
            # Disabling an API on destroy would affect all users of the project.
            "disable_on_destroy": False,
        }
        services.append(
            Resource(
                kind="google_project_service",
                id=name,
                arguments=arguments,
            )
        )
    return services


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


def _load_balancer_subnet(environment: Environment) -> Resource:
    """Return the subnet from which Google's managed proxies send requests to pods.

    A region of a network has one, and all load balancers of the region share it.
    """
    return Resource(
        kind="google_compute_subnetwork",
        id="load-balancers",
        arguments={
            "name": f"{environment.stem}-load-balancers",
            "network": environment.stem,
            "region": environment.region,
            "ip_cidr_range": environment.network.load_balancers_cidr,
            "purpose": "REGIONAL_MANAGED_PROXY",
            "role": "ACTIVE",
        },
        after=(VPC,),
    )


def _after(environment: Environment, *addresses: str) -> tuple[str, ...]:
    """Return the addresses of VPC and subnet if they are part of this platform, else that of the
    API.
    """
    return api(environment, "compute") if environment.network.existing else addresses


def _firewall(environment: Environment) -> Resource:
    """Return a rule that refuses and logs what no other rule admits; the network's own refusal is
    not logged.

    It must not be added to an existing network: at its priority it would override the rules that
    the default network has.
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
    """Return the NAT through which nodes, which have no public address, reach images and package
    indexes outside Google.
    """
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
    """Return the zone that resolves names below googleapis.com to private addresses, the only way
    out that network policies of pods admit.
    """
    zone = Resource(
        kind="google_dns_managed_zone",
        id="google-apis",
        arguments={
            "name": f"{environment.stem}-google-apis",
            "dns_name": "googleapis.com.",
            "description": "Google APIs on private addresses",
            "visibility": "private",
            "private_visibility_config": {"networks": [{"network_url": environment.network_path}]},
        },
        after=(*_after(environment, VPC), *api(environment, "dns")),
    )
    private = "private.googleapis.com."
    addresses = [str(address) for address in ip_network(GOOGLE_APIS_CIDR)]
    return [
        zone,
        _record(zone, "google-apis", private, "A", addresses),
        _record(zone, "google-apis-all", "*.googleapis.com.", "CNAME", [private]),
    ]


def _record(
    zone: Resource,
    id: str,
    name: str,
    kind: str,
    values: list[str],
) -> Resource:
    return Resource(
        kind="google_dns_record_set",
        id=id,
        arguments={
            "managed_zone": zone.arguments["name"],
            "name": name,
            "type": kind,
            "ttl": 300,
            "rrdatas": values,
        },
        after=(zone.address,),
    )


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
                # Cloud SQL holds the peering for hours after its instance is deleted; a destroy
                # must not wait for it.
                "deletion_policy": "ABANDON",
                # In a VPC of this platform the next deployment meets its own abandoned peering,
                # with the former range. In a company's VPC the update would be forced, and would
                # take the ranges of the company's own services out of the peering.
                "update_on_creation_fail": environment.network.existing is None,
            },
            after=(
                "google_compute_global_address.managed-services",
                *api(environment, "servicenetworking"),
            ),
        ),
    ]
