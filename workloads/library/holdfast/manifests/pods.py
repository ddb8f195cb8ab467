"""A pod that meets Pod Security `restricted`. All workloads are made here, so that none can forget
a setting.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from kubernetes import client

from holdfast.manifests.rbac import CALLS
from holdfast.manifests.render_context import RenderContext
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
    """Of /tmp; counts against the disk."""
    gpus: int = 0
    shared_memory: str = "1Gi"
    """Of a pod with GPUs; counts against its memory."""

    @classmethod
    def share(cls, machine: MachineType, gpus: int, *, disk: str = "4Gi") -> "Size":
        """Of a machine with GPUs, in proportion to them, with room left for the system's own pods."""
        milli = (machine.vcpus - 2) * 1000 * gpus // machine.gpus
        return cls(
            cpu=f"{milli}m" if milli % 1000 else str(milli // 1000),
            memory=f"{machine.memory_gib * 3 * gpus // (4 * machine.gpus)}Gi",
            gpus=gpus,
            disk=disk,
            shared_memory=f"{machine.memory_gib * gpus // (4 * machine.gpus)}Gi",
        )

    def limits(self) -> dict[str, str]:
        limits = {
            "cpu": self.cpu,
            "memory": self.memory,
            "ephemeral-storage": self.disk,
        }
        return limits | ({GPU_RESOURCE: str(self.gpus)} if self.gpus else {})


@dataclass(frozen=True, kw_only=True)
class Probes:
    readiness: client.V1Probe
    liveness: client.V1Probe | None
    startup: client.V1Probe | None = None
    """Of a server that does not answer while it loads: the other probes start after it has passed.
    """


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What differs between pods."""

    name: str
    role: str
    """Service account, and image where no other is given."""
    image: str = ""
    command: list[str]
    size: Size
    pool: Pool | None
    """None lets auto-provisioning find an ordinary on-demand node."""
    tolerations: list[Taint] = field(default_factory=list[Taint])
    """Where auto-provisioning makes the node; a pool brings its own."""
    priority: str
    grace_s: int
    job: str = ""
    run_per_index: bool = False
    """Each index of the Job trains apart, as a run of its own."""
    selector: dict[str, str] = field(default_factory=dict[str, str])
    """In addition to the pool's."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    from_pod: dict[str, str] = field(default_factory=dict[str, str])
    """Variable -> field of the pod, as the downward API names it. Listed before `env`, which may
    refer to them.
    """
    reads_run: str = ""
    """Run whose checkpoints it writes or loads."""
    writes_run: str = ""
    """Run that it trains; decides under which account, where runs are kept apart."""
    namespace: str = NAMESPACE_TRAINING
    """Where `writes_run` trains."""
    calls_kubernetes: bool = False
    """Mounts a token, and tells the process which node it may ask about."""
    restart: str | None = None
    ports: list[int] = field(default_factory=list[int])
    sidecars: list[client.V1Container] = field(default_factory=list[client.V1Container])
    """Started before the main container, ended after it."""
    volumes: list[tuple[client.V1Volume, str]] = field(
        default_factory=list[tuple[client.V1Volume, str]]
    )
    """Volume and where it is mounted, read-only."""
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    pre_stop: client.V1LifecycleHandler | None = None
    """Before SIGTERM, within the same window."""
    probes: Probes | None = None
    labels: dict[str, str] = field(default_factory=dict[str, str])
    spread_over: str = ""
    """Node label over whose values the pods are spread, as far as there are any."""


def _account(context: RenderContext, work: PodSettings) -> str:
    """Kubernetes service account of the pod."""
    if not work.writes_run:
        return work.role
    return context.platform.account_of(work.writes_run, work.namespace)


def template(context: RenderContext, work: PodSettings) -> client.V1PodTemplateSpec:
    work = _with_key(context, work)
    labels = {LABEL_NAME: work.name, LABEL_PART_OF: PART_OF} | _identity(work)
    labels |= work.labels | (CALLS if work.calls_kubernetes else {})
    volumes = _scratch_volumes(work.size) + work.volumes
    taints = work.pool.taints if work.pool else work.tolerations
    tolerated: list[dict[str, Any]] = [
        *(taint.toleration() for taint in taints),
        *silence_tolerations(),
    ]
    tolerations: list[Any] = [dict(sorted(each.items())) for each in tolerated]
    spec = client.V1PodSpec(
        automount_service_account_token=work.calls_kubernetes,
        enable_service_links=False,
        service_account_name=_account(context, work),
        priority_class_name=work.priority,
        restart_policy=work.restart,
        termination_grace_period_seconds=work.grace_s,
        node_selector=((work.pool.selector() if work.pool else {}) | work.selector) or None,
        tolerations=tolerations,
        security_context=client.V1PodSecurityContext(
            run_as_non_root=True,
            run_as_user=USER,
            run_as_group=USER,
            fs_group=USER,
            seccomp_profile=client.V1SeccompProfile(type="RuntimeDefault"),
        ),
        topology_spread_constraints=_spread(work),
        volumes=[volume for volume, _ in volumes],
        init_containers=work.sidecars or None,
        containers=[container(context, work)],
    )
    return client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels, annotations=work.annotations or None), spec=spec
    )


def _with_key(context: RenderContext, work: PodSettings) -> PodSettings:
    """A Secret for each run: a pod of one cannot sign for another, nor join it
    (infra/decisions/0069).
    """
    if not (work.reads_run and context.platform.security.signed_checkpoints):
        return work
    source = client.V1SecretVolumeSource(
        secret_name=f"run-key-{work.reads_run}", default_mode=0o440
    )
    mounted = (client.V1Volume(name="run-key", secret=source), KEY_FOLDER)
    return replace(
        work, volumes=[*work.volumes, mounted], env=work.env | {ENV_KEY_FILE: f"{KEY_FOLDER}/key"}
    )


def _identity(work: PodSettings) -> dict[str, str]:
    """What the process writes of itself is attributed to this job only."""
    if not work.job:
        return {}
    return {LABEL_HOLDFAST_JOB: work.job} | (
        {LABEL_RUN_PER_INDEX: "true"} if work.run_per_index else {}
    )


def _spread(work: PodSettings) -> list[client.V1TopologySpreadConstraint] | None:
    if not work.spread_over:
        return None
    own = client.V1LabelSelector(match_labels={LABEL_NAME: work.name})
    return [
        client.V1TopologySpreadConstraint(
            max_skew=1,
            topology_key=work.spread_over,
            when_unsatisfiable="ScheduleAnyway",
            label_selector=own,
        )
    ]


def _scratch_volumes(size: Size) -> list[tuple[client.V1Volume, str]]:
    found = [(_scratch("tmp", size.scratch), TMP), (_scratch("run", "1Mi"), RUN_DIR)]
    if size.gpus:
        # The runtime's own is 64 MB: too small for NCCL between the ranks of a pod, and for workers
        # of data loaders.
        memory = client.V1EmptyDirVolumeSource(medium="Memory", size_limit=size.shared_memory)
        found.append((client.V1Volume(name="shm", empty_dir=memory), SHARED_MEMORY))
    return found


def _scratch(name: str, size: str) -> client.V1Volume:
    return client.V1Volume(name=name, empty_dir=client.V1EmptyDirVolumeSource(size_limit=size))


def container(context: RenderContext, work: PodSettings, name: str = MAIN) -> client.V1Container:
    volumes = _scratch_volumes(work.size) + work.volumes
    limits = work.size.limits()
    probes = work.probes
    return client.V1Container(
        name=name,
        image=work.image or context.image(work.role),
        image_pull_policy="Always",
        lifecycle=client.V1Lifecycle(pre_stop=work.pre_stop) if work.pre_stop else None,
        command=work.command,
        env=_env(work),
        ports=[client.V1ContainerPort(container_port=port) for port in work.ports] or None,
        resources=client.V1ResourceRequirements(limits=limits, requests=limits),
        liveness_probe=probes and probes.liveness,
        readiness_probe=probes and probes.readiness,
        startup_probe=probes and probes.startup,
        security_context=restricted(),
        volume_mounts=[_mount(volume, path) for volume, path in volumes],
    )


def restricted() -> client.V1SecurityContext:
    """What Pod Security `restricted` asks of every container, and a root file system that cannot be
    written.
    """
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
    return client.V1VolumeMount(
        name=volume.name,
        mount_path=path,
        read_only=read_only,
    )


def listening(port: int, period_s: int) -> client.V1Probe:
    return client.V1Probe(
        tcp_socket=client.V1TCPSocketAction(port=port),
        period_seconds=period_s,
        failure_threshold=6,
    )


def _env(work: PodSettings) -> list[Any]:
    values = {ENV_RUN_DIR: RUN_DIR, "HOME": TMP} | work.env
    if work.job:
        values[ENV_JOB] = work.job
    if work.size.gpus:
        values[ENV_GPUS] = str(work.size.gpus)
    if work.pool and work.pool.interruptible and LABEL_FLEX_START not in work.selector:
        values[ENV_WINDOW_S] = str(work.pool.window.pod_s)
    fields = work.from_pod | ({ENV_NODE: "spec.nodeName"} if work.calls_kubernetes else {})
    listed = [
        {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": path}},
        }
        for name, path in sorted(fields.items())
    ]
    # Kubernetes expands only variables that are listed before.
    in_order = sorted(values.items(), key=lambda found: (f"$({ENV_JOB})" in found[1], found))
    return listed + [{"name": name, "value": value} for name, value in in_order]


def annotation(key: str) -> str:
    """The field of a pod that holds it, as the downward API names it."""
    return f"metadata.annotations['{key}']"
