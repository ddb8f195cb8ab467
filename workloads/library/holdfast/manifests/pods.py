"""Builds pods that meet Pod Security `restricted`.

The pods of all workloads are built here, so that none can miss a setting.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from kubernetes import client

from holdfast.manifests.rbac import CALLS
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.sidecar_tokens import token_volume
from holdfast.vocabulary.environment import (
    ENV_GPUS,
    ENV_JOB,
    ENV_KEY_FILE,
    ENV_NODE,
    ENV_RUN_DIR,
    ENV_WINDOW_S,
)
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB, LABEL_RUN_PER_INDEX
from holdfast.vocabulary.kubernetes import LABEL_NAME, LABEL_PART_OF, PART_OF
from holdfast.vocabulary.machines import MachineType
from holdfast.vocabulary.pools import (
    GPU_RESOURCE,
    LABEL_FLEX_START,
    LABEL_POOL_CLASS,
    Pool,
    Taint,
    silence_tolerations,
)
from holdfast.vocabulary.roles import NAMESPACE_TRAINING

USER = 65532  # `nonroot` of distroless; the Dockerfiles use the same
TMP = "/tmp"
RUN_DIR = "/run/holdfast"
KEY_FOLDER = "/run/holdfast-key"
MAIN = "main"
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, kw_only=True)
class Size:
    cpu: str
    memory: str
    disk: str = "4Gi"
    scratch: str = "1Gi"
    """Size of /tmp; counts against the disk."""
    gpus: int = 0
    shared_memory: str = "1Gi"
    """Size of /dev/shm in a pod with GPUs; counts against its memory."""

    @classmethod
    def share(cls, machine: MachineType, gpus: int, *, disk: str = "4Gi") -> "Size":
        """Returns the part of a machine that belongs to a number of its GPUs.

        It leaves room for the system's own pods.
        """
        millicores = (machine.vcpus - 2) * 1000 * gpus // machine.gpus
        memory_gib = machine.memory_gib * 3 * gpus // (4 * machine.gpus)
        shared_memory_gib = machine.memory_gib * gpus // (4 * machine.gpus)
        return cls(
            cpu=f"{millicores}m" if millicores % 1000 else str(millicores // 1000),
            memory=f"{memory_gib}Gi",
            gpus=gpus,
            disk=disk,
            shared_memory=f"{shared_memory_gib}Gi",
        )

    def limits(self) -> dict[str, str]:
        limits = {
            "cpu": self.cpu,
            "memory": self.memory,
            "ephemeral-storage": self.disk,
        }
        if self.gpus:
            limits[GPU_RESOURCE] = str(self.gpus)
        return limits


@dataclass(frozen=True, kw_only=True)
class Probes:
    readiness: client.V1Probe
    liveness: client.V1Probe | None
    startup: client.V1Probe | None = None
    """Probe of a server that does not answer while it loads: the other probes start after it."""


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings in which pods differ."""

    name: str
    role: str
    """Service account, and image unless `image` names another."""
    image: str = ""
    command: list[str]
    size: Size
    pool: Pool | None
    """None lets auto-provisioning find an ordinary on-demand node."""
    tolerations: list[Taint] = field(default_factory=list)
    """Tolerations on auto-provisioned nodes; a pool brings its own."""
    priority: str
    grace_s: int
    job: str = ""
    run_per_index: bool = False
    """Each index of the Job trains a run of its own."""
    selector: dict[str, str] = field(default_factory=dict)
    """Node selector in addition to the pool's."""
    avoided_classes: tuple[str, ...] = ()
    """Pool classes on whose nodes the pod must not run, though it has their GPU."""
    env: dict[str, str] = field(default_factory=dict)
    from_pod: dict[str, str] = field(default_factory=dict)
    """Variable -> field of the pod, as the downward API names it. Listed before `env`, which may
    refer to them.
    """
    reads_run: str = ""
    """Run whose checkpoints the pod writes or loads."""
    writes_run: str = ""
    """Run that the pod trains; decides its account, where runs are kept apart."""
    namespace: str = NAMESPACE_TRAINING
    """Namespace in which `writes_run` trains."""
    calls_kubernetes: bool = False
    """Mounts a token, and tells the process which node it may ask about."""
    sidecars_call_kubernetes: bool = False
    """Has a token for sidecars with a `token_mount`, and none for the main container."""
    restart: str | None = None
    ports: list[int] = field(default_factory=list)
    sidecars: list[client.V1Container] = field(default_factory=list)
    """Started before the main container, ended after it."""
    volumes: list[tuple[client.V1Volume, str]] = field(
        default_factory=list[tuple[client.V1Volume, str]]
    )
    """Volumes and their mount paths, read-only."""
    other_volumes: list[client.V1Volume] = field(default_factory=list)
    """Volumes that `mounts` and sidecars mount as they need."""
    mounts: list[client.V1VolumeMount] = field(default_factory=list)
    working_dir: str = ""
    """Folder in which the command starts; empty: that of the image."""
    annotations: dict[str, str] = field(default_factory=dict)
    pre_stop: client.V1LifecycleHandler | None = None
    """Hook that runs before SIGTERM, within the same window."""
    post_start: client.V1LifecycleHandler | None = None
    """Hook that runs at each start of the main container."""
    probes: Probes | None = None
    labels: dict[str, str] = field(default_factory=dict)
    spread_over: str = ""
    """Node label over whose values the pods are spread, if nodes have it."""


def template(context: RenderContext, work: PodSettings) -> client.V1PodTemplateSpec:
    """Builds the pod template of a workload."""
    work = _add_key(context, work)
    labels = {LABEL_NAME: work.name, LABEL_PART_OF: PART_OF}
    labels |= _identity(work) | work.labels
    if work.calls_kubernetes or work.sidecars_call_kubernetes:
        labels |= CALLS
    account = work.role
    if work.writes_run:
        account = context.platform.account_of(work.writes_run, work.namespace)
    selector = work.pool.selector() if work.pool else {}
    volumes = [volume for volume, _ in _scratch_volumes(work.size) + work.volumes]
    if work.sidecars_call_kubernetes:
        volumes.append(token_volume())
    spec = client.V1PodSpec(
        automount_service_account_token=work.calls_kubernetes,
        enable_service_links=False,
        service_account_name=account,
        priority_class_name=work.priority,
        restart_policy=work.restart,
        termination_grace_period_seconds=work.grace_s,
        node_selector=(selector | work.selector) or None,
        tolerations=_tolerations(work),
        affinity=_avoid(work.avoided_classes),
        security_context=client.V1PodSecurityContext(
            run_as_non_root=True,
            run_as_user=USER,
            run_as_group=USER,
            fs_group=USER,
            seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
        ),
        topology_spread_constraints=_spread(work),
        volumes=volumes + work.other_volumes,
        init_containers=work.sidecars or None,
        containers=[container(context, work)],
    )
    metadata = client.V1ObjectMeta(labels=labels, annotations=work.annotations or None)
    return client.V1PodTemplateSpec(metadata=metadata, spec=spec)


def _avoid(classes: tuple[str, ...]) -> client.V1Affinity | None:
    """Keeps a pod away from classes of pools.

    Kueue counts GPUs and knows no machines: it would lend eight GPUs on nodes that have one each.
    """
    if not classes:
        return None
    requirement = client.V1NodeSelectorRequirement(
        key=LABEL_POOL_CLASS, operator="NotIn", values=list(classes)
    )
    term = client.V1NodeSelectorTerm(match_expressions=[requirement])
    required = client.V1NodeSelector(node_selector_terms=[term])
    return client.V1Affinity(
        node_affinity=client.V1NodeAffinity(
            required_during_scheduling_ignored_during_execution=required
        )
    )


def _tolerations(work: PodSettings) -> list[Any]:
    taints = work.pool.taints if work.pool else work.tolerations
    tolerations: list[dict[str, Any]] = [taint.toleration() for taint in taints]
    tolerations += silence_tolerations()
    return [dict(sorted(toleration.items())) for toleration in tolerations]


def _add_key(context: RenderContext, work: PodSettings) -> PodSettings:
    """Mounts the Secret of the run.

    A pod of one run can neither sign for another nor join it (infra/decisions/0069).
    """
    if not work.reads_run or not context.platform.security.signed_checkpoints:
        return work
    secret = f"run-key-{work.reads_run}"
    source = client.V1SecretVolumeSource(secret_name=secret, default_mode=0o440)
    volume = client.V1Volume(name="run-key", secret=source)
    env = work.env | {ENV_KEY_FILE: f"{KEY_FOLDER}/key"}
    return replace(work, volumes=[*work.volumes, (volume, KEY_FOLDER)], env=env)


def _identity(work: PodSettings) -> dict[str, str]:
    """Returns the labels by which the lines of a process are attributed to its job."""
    if not work.job:
        return {}
    labels = {LABEL_HOLDFAST_JOB: work.job}
    if work.run_per_index:
        labels[LABEL_RUN_PER_INDEX] = "true"
    return labels


def _spread(work: PodSettings) -> list[client.V1TopologySpreadConstraint] | None:
    if not work.spread_over:
        return None
    selector = client.V1LabelSelector(match_labels={LABEL_NAME: work.name})
    return [
        client.V1TopologySpreadConstraint(
            max_skew=1,
            topology_key=work.spread_over,
            when_unsatisfiable="ScheduleAnyway",
            label_selector=selector,
        )
    ]


def _scratch_volumes(size: Size) -> list[tuple[client.V1Volume, str]]:
    volumes = [(_scratch("tmp", size.scratch), TMP), (_scratch("run", "1Mi"), RUN_DIR)]
    if size.gpus:
        # The runtime's default is 64 MB: too small for NCCL between the ranks of a pod, and for
        # workers of data loaders.
        memory = client.V1EmptyDirVolumeSource(medium="Memory", size_limit=size.shared_memory)
        volumes.append((client.V1Volume(name="shm", empty_dir=memory), SHARED_MEMORY))
    return volumes


def _scratch(name: str, size: str) -> client.V1Volume:
    return client.V1Volume(name=name, empty_dir=client.V1EmptyDirVolumeSource(size_limit=size))


def container(context: RenderContext, work: PodSettings, name: str = MAIN) -> client.V1Container:
    volumes = _scratch_volumes(work.size) + work.volumes
    limits = work.size.limits()
    probes = work.probes
    mounts: list[client.V1VolumeMount] = []
    for volume, path in volumes:
        mounts.append(_mount(volume, path))
    return client.V1Container(
        name=name,
        image=work.image or context.image(work.role),
        image_pull_policy="Always",
        lifecycle=_lifecycle(work),
        command=work.command,
        env=_env(work),
        ports=[client.V1ContainerPort(container_port=port) for port in work.ports] or None,
        resources=client.V1ResourceRequirements(limits=limits, requests=limits),
        liveness_probe=probes and probes.liveness,
        readiness_probe=probes and probes.readiness,
        startup_probe=probes and probes.startup,
        security_context=security_context(),
        volume_mounts=mounts + work.mounts,
        working_dir=work.working_dir or None,
    )


def _lifecycle(work: PodSettings) -> client.V1Lifecycle | None:
    if work.pre_stop is None and work.post_start is None:
        return None
    return client.V1Lifecycle(pre_stop=work.pre_stop, post_start=work.post_start)


def security_context() -> client.V1SecurityContext:
    """Builds what Pod Security `restricted` requires, with a read-only root file system."""
    return client.V1SecurityContext(
        allow_privilege_escalation=False,
        privileged=False,
        read_only_root_filesystem=True,
        run_as_non_root=True,
        run_as_user=USER,
        run_as_group=USER,
        capabilities=client.V1Capabilities(drop=["ALL"]),
    )


def _mount(volume: Any, path: str) -> client.V1VolumeMount:
    read_only = None if volume.empty_dir else True
    return client.V1VolumeMount(name=volume.name, mount_path=path, read_only=read_only)


def tcp_probe(port: int, period_s: int) -> client.V1Probe:
    return client.V1Probe(
        tcp_socket=client.V1TCPSocketAction(port=port),
        period_seconds=period_s,
        failure_threshold=6,
    )


def _env(work: PodSettings) -> list[Any]:
    """Lists the variables of a container, those from fields of the pod first."""
    values = {ENV_RUN_DIR: RUN_DIR, "HOME": TMP} | work.env
    if work.job:
        values[ENV_JOB] = work.job
    if work.size.gpus:
        values[ENV_GPUS] = str(work.size.gpus)
    if work.pool and work.pool.interruptible and LABEL_FLEX_START not in work.selector:
        values[ENV_WINDOW_S] = str(work.pool.window.pod_s)
    fields = dict(work.from_pod)
    if work.calls_kubernetes:
        fields[ENV_NODE] = "spec.nodeName"
    variables: list[Any] = []
    for name, path in sorted(fields.items()):
        variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    # Kubernetes expands only variables that are listed before.
    for name, value in sorted(values.items(), key=_env_order):
        variables.append({"name": name, "value": value})
    return variables


def _env_order(item: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    _, value = item
    return f"$({ENV_JOB})" in value, item


def annotation(key: str) -> str:
    """Returns the field of a pod with an annotation, as the downward API names it."""
    return f"metadata.annotations['{key}']"
