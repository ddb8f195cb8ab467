"""The regional private cluster, with caps for node auto-provisioning, and the project's Binary
Authorization policy.
"""

from infra.environments.schema import Environment
from infra.specs.encryption import key_argument
from infra.specs.network import PODS_RANGE, SERVICES_RANGE
from infra.specs.resource import Resource, deletion_policy

# The roles of the nodes' account limit what a node may do.
OAUTH_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
NODE_IMAGE = "COS_CONTAINERD"
# enable_components replaces the whole list: without SYSTEM_COMPONENTS the cluster's own metrics
# stop. The API answers in an order of its own, and the provider compares by position: see IGNORED.
CONTROL_PLANE = ["APISERVER", "CONTROLLER_MANAGER", "SCHEDULER", "SYSTEM_COMPONENTS"]
LOGGING = [*CONTROL_PLANE, "WORKLOADS"]
METRICS = sorted(
    [
        *CONTROL_PLANE,
        "CADVISOR",
        "DAEMONSET",
        "DCGM",
        "DEPLOYMENT",
        "HPA",
        "JOBSET",
        "KUBELET",
        "POD",
        "STATEFULSET",
        "STORAGE",
    ]
)
# The first three belong to the default pool, which exists for a minute, and to the pool that the
# API shows in its place. The lists of components would differ in every plan
# (infra/decisions/0016); drift compares them as sets. If the description changed, the provider
# would replace the whole cluster.
IGNORED = (
    "initial_node_count",
    "node_config",
    "node_pool",
    "logging_config[0].enable_components",
    "monitoring_config[0].enable_components",
    "description",
)
# gVNIC, image streaming and shielded boot are node settings; see infra.specs.pools.
SHIELDED = {"enable_secure_boot": True, "enable_integrity_monitoring": True}
READ_ONLY_PORT_OFF = {"insecure_kubelet_readonly_port_enabled": "FALSE"}


def resource(environment: Environment) -> Resource:
    arguments = {
        "name": environment.cluster_name,
        "location": environment.region,
        "node_locations": list(environment.zones),
        "description": "AI workloads on Spot, flex-start and on-demand nodes",
        "deletion_protection": environment.cluster.deletion_protection,
        "deletion_policy": deletion_policy(environment.cluster.deletion_protection),
        "resource_labels": environment.all_labels(),
        **_default_pool(environment),
        **_network(environment),
        **_access(environment),
        **_versions(environment),
        "cluster_autoscaling": _auto_provisioning(environment),
        "node_pool_defaults": {
            "node_config_defaults": {
                "gcfs_config": {"enabled": True},
                **READ_ONLY_PORT_OFF,
            },
        },
        "node_pool_auto_config": _auto_config(environment),
        **_add_ons(environment),
        **_observability(environment),
        **_security(environment),
    }
    return Resource(
        kind="google_container_cluster",
        id="cluster",
        arguments=arguments,
        ignore_changes=IGNORED,
        protected=environment.cluster.deletion_protection,
    )


def _default_pool(environment: Environment) -> dict[str, object]:
    """Return GKE's obligatory first pool. It is removed at once; even so it must not run as the
    project's default account.
    """
    node_config: dict[str, object] = {
        "machine_type": "e2-medium",
        "disk_type": "pd-balanced",
        "service_account": environment.service_account_email("nodes"),
        "oauth_scopes": OAUTH_SCOPES,
        "shielded_instance_config": SHIELDED,
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        **key_argument(environment, "boot_disk_kms_key"),
    }
    return {
        "initial_node_count": 1,
        "remove_default_node_pool": True,
        "node_config": node_config,
    }


def _network(environment: Environment) -> dict[str, object]:
    existing = environment.network.existing
    pods_range = existing.pods_range if existing else PODS_RANGE
    services_range = existing.services_range if existing else SERVICES_RANGE
    return {
        "network": environment.network_path,
        "subnetwork": environment.subnet_path,
        "networking_mode": "VPC_NATIVE",
        "datapath_provider": "ADVANCED_DATAPATH",
        # Dataplane V2 enforces network policies itself; the older engine is off.
        "network_policy": {"enabled": False},
        # Pods then reach hosts by name: those of `egress`.
        **({"enable_fqdn_network_policy": True} if environment.egress_names else {}),
        "enable_intranode_visibility": True,
        "enable_l4_ilb_subsetting": True,
        "default_max_pods_per_node": environment.network.max_pods_per_node,
        "ip_allocation_policy": {
            "cluster_secondary_range_name": pods_range,
            "services_secondary_range_name": services_range,
        },
        "dns_config": {
            "cluster_dns": "CLOUD_DNS",
            "cluster_dns_scope": "CLUSTER_SCOPE",
            "cluster_dns_domain": "cluster.local",
        },
    }


def _access(environment: Environment) -> dict[str, object]:
    ranges = []
    for authorized in environment.network.authorized_ranges:
        ranges.append({"cidr_block": authorized.cidr, "display_name": authorized.name})
    return {
        "private_cluster_config": {
            "enable_private_nodes": True,
            "enable_private_endpoint": True,
            "master_global_access_config": {"enabled": False},
        },
        "control_plane_endpoints_config": {
            "dns_endpoint_config": {
                "allow_external_traffic": environment.cluster.dns_endpoint_public
            },
            "ip_endpoints_config": {"enabled": True},
        },
        # Without a range only the cluster's own nodes reach the private IP endpoint.
        "master_authorized_networks_config": {
            "gcp_public_cidrs_access_enabled": False,
            "private_endpoint_enforcement_enabled": True,
            "cidr_blocks": ranges,
        },
        "master_auth": {"client_certificate_config": {"issue_client_certificate": False}},
    }


def _versions(environment: Environment) -> dict[str, object]:
    cluster = environment.cluster
    window = {
        "start_time": cluster.maintenance_start,
        "end_time": cluster.maintenance_end,
        "recurrence": cluster.maintenance_days,
    }
    policy: dict[str, object] = {"recurring_window": window}
    exclusions = []
    for freeze in cluster.freezes:
        exclusions.append(
            {
                "exclusion_name": freeze.name,
                "start_time": freeze.starts,
                "end_time": freeze.ends,
                "exclusion_options": {"scope": freeze.scope},
            }
        )
    if exclusions:
        policy["maintenance_exclusion"] = exclusions
    versions: dict[str, object] = {
        "release_channel": {"channel": cluster.release_channel},
        "maintenance_policy": policy,
    }
    if cluster.min_version:
        versions["min_master_version"] = cluster.min_version
    return versions


def _auto_provisioning(environment: Environment) -> dict[str, object]:
    """Return the caps over the whole cluster and the settings of provisioned nodes.

    A GPU's limit has the accelerator's name; nvidia.com/gpu would cap nothing.
    """
    caps = environment.auto_provisioning
    gpu_caps = sorted(caps.accelerators, key=lambda cap: (cap.accelerator, cap.max_gpus))
    limits = [_limit("cpu", caps.max_vcpus), _limit("memory", caps.max_memory_gib)]
    limits += [_limit(cap.accelerator, cap.max_gpus) for cap in gpu_caps]
    defaults: dict[str, object] = {
        "service_account": environment.service_account_email("nodes"),
        "oauth_scopes": OAUTH_SCOPES,
        "disk_size": caps.disk_gib,
        "disk_type": caps.disk_type,
        "image_type": NODE_IMAGE,
        "management": {"auto_repair": True, "auto_upgrade": True},
        "shielded_instance_config": SHIELDED,
        "upgrade_settings": {
            "strategy": "SURGE",
            "max_surge": 1,
            "max_unavailable": 0,
        },
        **key_argument(environment, "boot_disk_kms_key"),
    }
    return {
        "enabled": True,
        # Gives idle GPU nodes back sooner.
        "autoscaling_profile": "OPTIMIZE_UTILIZATION",
        "auto_provisioning_locations": sorted(environment.zones),
        "auto_provisioning_defaults": defaults,
        "resource_limits": limits,
    }


def _limit(kind: str, maximum: int) -> dict[str, object]:
    return {
        "resource_type": kind,
        "minimum": 0,
        "maximum": maximum,
    }


def _auto_config(environment: Environment) -> dict[str, object]:
    config: dict[str, object] = {"node_kubelet_config": READ_ONLY_PORT_OFF}
    if environment.security.signed_kernel_modules:
        config["linux_node_config"] = {
            "node_kernel_module_loading": {"policy": "ENFORCE_SIGNED_MODULES"}
        }
    return config


def _add_ons(environment: Environment) -> dict[str, object]:
    # The Gateway API, by which services get a load balancer. It needs a proxy-only subnet.
    gateway: dict[str, object] = {}
    if environment.network.load_balancers_cidr:
        gateway["gateway_api_config"] = {"channel": "CHANNEL_STANDARD"}
    return gateway | {
        "addons_config": {
            "dns_cache_config": {"enabled": True},
            "gce_persistent_disk_csi_driver_config": {"enabled": True},
            "gcs_fuse_csi_driver_config": {"enabled": True},
            "horizontal_pod_autoscaling": {"disabled": False},
            "http_load_balancing": {"disabled": False},
        },
        # The managed metrics adapter needs it; through that, batch workers follow their backlog.
        "pod_autoscaling": {"hpa_profile": "PERFORMANCE"},
    }


def _observability(environment: Environment) -> dict[str, object]:
    return {
        "logging_config": {"enable_components": LOGGING},
        "monitoring_config": {
            "enable_components": METRICS,
            "managed_prometheus": {"enabled": True},
            "advanced_datapath_observability_config": {
                "enable_metrics": True,
                "enable_relay": False,
            },
        },
        "cost_management_config": {"enabled": True},
    }


def _security(environment: Environment) -> dict[str, object]:
    security = environment.security
    settings: dict[str, object] = {
        "workload_identity_config": {"workload_pool": environment.workload_pool},
        "enable_shielded_nodes": True,
        "enable_legacy_abac": False,
        "security_posture_config": {"mode": "BASIC"},
        # Stated even if it is off: otherwise the provider sends an empty update, which the API
        # refuses.
        "secret_manager_config": {"enabled": security.secret_manager},
        "rbac_binding_config": {
            "enable_insecure_binding_system_authenticated": False,
            "enable_insecure_binding_system_unauthenticated": False,
        },
    }
    if security.kms_key:
        settings["database_encryption"] = {"state": "ENCRYPTED", "key_name": security.kms_key}
    if security.binary_authorization:
        settings["binary_authorization"] = {"evaluation_mode": "PROJECT_SINGLETON_POLICY_ENFORCE"}
    if security.rbac_security_group:
        settings["authenticator_groups_config"] = {"security_group": security.rbac_security_group}
    return settings


def image_policy(environment: Environment) -> list[Resource]:
    """Return the policy of images that may run, which is part of the cluster's stack: without a
    cluster it has no effect. Destroying it restores Google's own policy.
    """
    if environment.image_patterns is None:
        return []
    patterns = [{"name_pattern": pattern} for pattern in environment.image_patterns]
    arguments = {
        # This admits GKE's own agents: Google keeps the list of their images.
        "global_policy_evaluation_mode": "ENABLE",
        "admission_whitelist_patterns": patterns,
        "default_admission_rule": {
            "evaluation_mode": "ALWAYS_DENY",
            "enforcement_mode": "ENFORCED_BLOCK_AND_AUDIT_LOG",
        },
    }
    return [
        Resource(
            kind="google_binary_authorization_policy",
            id="images",
            arguments=arguments,
        )
    ]
