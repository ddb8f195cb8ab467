"""The service file as a dataclass.

The metadata of a field is its documentation, its line in the file, its JSON schema and its check.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import chain
from math import ceil

from holdfast.jobs.file import formats
from holdfast.jobs.file.fields import about, check
from holdfast.jobs.file.formats import Form, parse_gpu
from holdfast.support.errors import InputError
from holdfast.vocabulary.roles import NAMESPACE_SERVING
from holdfast.vocabulary.serving import MIN_OVERFLOW, USABLE_SHARE

SCHEMA = "holdfast.service/1"
MAX_REPLICAS = 1_000
EVERYONE = "cluster"
AS_PROMISED = -1
IDLE_MINUTES = 30
Problem = tuple[str, object, str, str]
"""Fields that do not go together: what, got, allowed, fix."""

PREDICTOR = Form(
    "[A-Za-z_][A-Za-z0-9_.]{0,200}:[A-Za-z_][A-Za-z0-9_]{0,200}|gpt|entropy",
    "MODULE:FUNCTION of the image, gpt or entropy",
    "write it as my_model:make",
)
COMPILE_CACHE = Form(
    "gs://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[A-Za-z0-9][A-Za-z0-9_-]*([.][A-Za-z0-9_-]+)*)*",
    "gs://BUCKET or gs://BUCKET/FOLDER, of letters, digits and . _ -, without ..",
    "write gs:// and the bucket, without / at the end",
    longest=400,
)
REACH = Form("auto|cluster|internal|external", "auto, cluster, internal, external", "choose one")
HOSTNAME = Form(
    "([a-z0-9]([-a-z0-9]*[a-z0-9])?[.])+[a-z]{2,63}",
    "a DNS name such as chat.example.org",
    "write it in small letters, without https:// and without a port",
    longest=253,
)
MEMBER = Form(
    "(user|group|serviceAccount|domain):[A-Za-z0-9._%+@-]{1,200}",
    "user:U, group:G, serviceAccount:S or domain:D",
    "group:team@example.org",
)
CALLER = Form(
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    f"namespaces, or {EVERYONE} alone for all of them",
    "name the namespaces of those that send requests",
    longest=63,
)


class Reach(StrEnum):
    """The circle of clients that reach a service."""

    AUTO = "auto"
    CLUSTER = "cluster"
    INTERNAL = "internal"
    EXTERNAL = "external"


class Engine(StrEnum):
    """The program that answers."""

    VLLM = "vllm"
    PREDICTOR = "predictor"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceSpec:
    """A service as its file states it."""

    name: str = about(
        "Name of the service, and of what clients call inside the cluster.",
        form=formats.NAME,
    )
    environment: str = about("Environment whose machines it uses.")
    namespace: str = about(
        "Namespace of your team; empty: serving, that of the platform team.", "", form=formats.CLAIM
    )
    model: str = about(
        "gs://BUCKET/FOLDER of a model as save_pretrained() writes it; vLLM serves it through"
        " OpenAI's API. Empty: there is a predictor.",
        "",
        form=formats.BUCKET,
    )
    predictor: str = about(
        "MODULE:FUNCTION of the image, served through the Open Inference Protocol. Empty: there"
        " is a model.",
        "",
        form=PREDICTOR,
    )
    image: str = about(
        "NAME@sha256:DIGEST, or a role of the environment. Empty: the environment's vllm for a"
        " model, and server for a predictor.",
        "",
    )
    gpu: str = about("GPUs of a replica, as 1xl4.", form=formats.ONE_GPU)
    base: int = about(
        "Replicas on demand that are always there. -1: as many as promised_per_s needs.",
        AS_PROMISED,
        minimum=AS_PROMISED,
        maximum=MAX_REPLICAS,
    )
    base_most: int = about(
        "Most replicas on demand; 0: as many as `base`.", 0, minimum=0, maximum=MAX_REPLICAS
    )
    overflow_most: int = about(
        f"Most replicas on Spot, {MIN_OVERFLOW} of which are always there. 0: as many as"
        " peak_per_s needs.",
        0,
        minimum=0,
        maximum=MAX_REPLICAS,
    )
    standby: int = about(
        "Replicas on demand in addition to `base`, which are loaded and wait for the loss of"
        " others.",
        0,
        minimum=0,
        maximum=MAX_REPLICAS,
    )
    least_replicas: int = about(
        "0, for a model: the service sleeps after `idle_minutes` without a"
        " request, and the next one waits until a replica has started. 1: `base` is always there.",
        1,
        minimum=0,
        maximum=1,
    )
    idle_minutes: int = about(
        "Minutes without a request after which a service with `least_replicas: 0` sleeps.",
        IDLE_MINUTES,
        minimum=5,
        maximum=10_080,
    )
    promised_per_s: float = about(
        "Requests per second that are answered without any Spot machine; 0: no promise.",
        0.0,
        minimum=0,
        maximum=10_000_000,
    )
    peak_per_s: float = about(
        "Requests per second that are answered while Spot machines are there; 0: no peak is"
        " stated.",
        0.0,
        minimum=0,
        maximum=10_000_000,
    )
    replica_per_s: float = about(
        "Requests per second of one replica with full batches, as measured with this model.",
        0.0,
        minimum=0,
        maximum=10_000_000,
    )
    inflight: int = about(
        "Requests that run or wait in a replica, above which another one is added.",
        24,
        minimum=1,
        maximum=100_000,
    )
    deadline_s: float = about(
        "Most seconds of a prediction, over all tries. 0: as long as the notice of Spot allows. A"
        " stream of a model has none.",
        0.0,
        minimum=0,
        maximum=3_600,
    )
    window_s: int = about(
        "Seconds that a replica has after a notice. 0: those of its machines.",
        0,
        minimum=0,
        maximum=600,
    )
    context: int = about(
        "Most tokens of a request with its answer. 0: what the model's config.json says.",
        0,
        minimum=0,
        maximum=10_000_000,
    )
    folder: str = about(
        "Folder in the image with what the predictor loads; its function gets it as `model`.",
        "",
    )
    options: tuple[str, ...] = about(
        "Further options of `vllm serve` or `holdfast serve run`, word by word.", ()
    )
    compile_cache: str = about(
        "gs://BUCKET/FOLDER with what vLLM compiles at its start, for replicas that start later."
        " What lies there runs in the servers. Empty: each start compiles.",
        "",
        form=COMPILE_CACHE,
    )
    callers: tuple[str, ...] = about(
        f"Namespaces whose pods may send requests; {EVERYONE}: all of them.",
        (EVERYONE,),
        form=CALLER,
    )

    keys: str = about(
        "Secret of the service's namespace with an API key of each caller: NAME=KEY. Empty: a call"
        " needs no key.",
        "",
        form=formats.CLAIM,
    )
    quota_per_s: float = about(
        "Requests per second of each caller, over all proxies; beyond it, the caller gets 429. 0:"
        " no quota.",
        0.0,
        minimum=0,
        maximum=10_000_000,
    )
    reach: str = about(
        "cluster: pods only. internal: also the VPC, through a load balancer. external: also the"
        " internet, with TLS, and members or keys. auto: internal if the environment has load"
        " balancers.",
        Reach.AUTO.value,
        form=REACH,
    )
    hostname: str = about(
        "Name by which clients outside the cluster call it; its DNS record is yours.",
        "",
        form=HOSTNAME,
    )
    certificate: str = about(
        "Regional SSL certificate of the project for `hostname`; empty: HTTP, inside the VPC only.",
        "",
        form=formats.CLAIM,
    )
    members: tuple[str, ...] = about(
        "Who may call from the internet by Identity-Aware Proxy, as group:TEAM@EXAMPLE.ORG or"
        " serviceAccount:NAME.",
        (),
        form=MEMBER,
    )

    def __post_init__(self) -> None:
        for each_field in fields(self):
            check(
                each_field.name,
                getattr(self, each_field.name),
                each_field.metadata["schema"],
                each_field.metadata["form"],
                each_field.default,
            )
        parse_gpu(self.gpu)
        for problem, got, allowed, fix in chain(
            self._check_work(),
            self._check_replicas(),
            self._check_sleep(),
            self._check_reach(),
        ):
            raise InputError(problem, got=got, allowed=allowed, fix=fix)

    def _check_work(self) -> Iterator[Problem]:
        if bool(self.model) == bool(self.predictor):
            got = "both" if self.model else "neither"
            fix = "--model gs://BUCKET/FOLDER, or --predictor MODULE:FUNCTION"
            yield "model and predictor", got, "one of them", fix
        if self.predictor and self.context:
            yield "context", self.context, "0 for a predictor", "leave it out"
        if self.model and self.folder:
            yield "folder", self.folder, "nothing for a model", "leave it out"
        if self.predictor and self.compile_cache:
            allowed = "nothing for a predictor: it keeps what vLLM compiles"
            yield "compile_cache", self.compile_cache, allowed, "leave it out"
        if self.model and self.deadline_s:
            allowed = "0 for a model: a text may last as long as the model writes"
            yield "deadline_s", self.deadline_s, allowed, "leave it out"
        if not self.callers:
            yield "callers", "nobody", CALLER.allowed, CALLER.fix
        if EVERYONE in self.callers and len(self.callers) > 1:
            yield "callers", ", ".join(self.callers), CALLER.allowed, CALLER.fix

    def _check_replicas(self) -> Iterator[Problem]:
        if (self.promised_per_s or self.peak_per_s) and not self.replica_per_s:
            allowed = "requests per second of one replica, above 0"
            fix = "measure a replica with your model, and state replica_per_s"
            yield "replica_per_s", "nothing, with a promise or a peak", allowed, fix
            return
        if self.peak_per_s and self.promised_per_s > self.peak_per_s:
            allowed = f"at most peak_per_s, {self.peak_per_s:g}"
            fix = "promise less, or raise the peak"
            yield "promised_per_s", self.promised_per_s, allowed, fix
        if self.base_most and self.base_most < self.base_replicas:
            allowed = f"{self.base_replicas} or more"
            yield "base_most", self.base_most, allowed, "raise it, or leave it out"
        if AS_PROMISED < self.base < self._count_replicas(self.promised_per_s):
            allowed = f"{self._count_replicas(self.promised_per_s)} or more: {self.promise}"
            fix = "raise base, promise less, or leave base out"
            yield "base keeps no promise", self.base, allowed, fix
        if not (self.base_replicas or self.overflow_replicas):
            allowed = (
                "base, or promised_per_s with replica_per_s, or overflow_most; a model that may"
                " sleep has least_replicas: 0 besides"
            )
            yield "replicas", "none", allowed, "--base 1"
        if self.standby and not self.base_replicas:
            yield "standby", self.standby, "0 without a base", "state base too"
        if self.base_most and not self.base_replicas:
            yield "base_most", self.base_most, "0 without a base", "state base too"
        if self.overflow_most and self.overflow_most < MIN_OVERFLOW:
            allowed = f"0, or {MIN_OVERFLOW} or more: one preemption must not take all of them"
            yield "overflow_most", self.overflow_most, allowed, f"overflow_most: {MIN_OVERFLOW}"
        total = self.base_largest + self.overflow_replicas
        if total < self._count_replicas(self.peak_per_s):
            allowed = f"{self._count_replicas(self.peak_per_s)} or more: {self.promise}"
            yield "base_most + overflow_most", total, allowed, "raise one of them"

    def _check_sleep(self) -> Iterator[Problem]:
        if not self.may_sleep:
            if self.idle_minutes != IDLE_MINUTES:
                allowed = f"{IDLE_MINUTES}, which nothing reads, unless least_replicas is 0"
                yield (
                    "idle_minutes",
                    self.idle_minutes,
                    allowed,
                    "least_replicas: 0, or leave it out",
                )
            return
        # Why it is so: infra/decisions/0157.
        if self.predictor:
            allowed = (
                "1 for a predictor: a prediction waits seconds, and a new machine takes minutes"
            )
            fix = "leave it out; holdfast stop ends a service that is not needed"
            yield "least_replicas", self.least_replicas, allowed, fix
        for name, value in {"promised_per_s": self.promised_per_s, "standby": self.standby}.items():
            if value:
                got = f"{self.least_replicas}, with {name}: {value:g}"
                allowed = f"1 with {name}: its replicas answer at once"
                yield "least_replicas", got, allowed, f"leave out least_replicas, or {name}"

    def _check_reach(self) -> Iterator[Problem]:
        external = self.reach == Reach.EXTERNAL
        if external and not (self.hostname and self.certificate):
            fields_of_tls = {"hostname": self.hostname, "certificate": self.certificate}
            missing = [name for name, value in fields_of_tls.items() if not value]
            allowed = "hostname and certificate: a public service has TLS"
            fix = (
                "gcloud compute ssl-certificates create NAME --region=REGION --certificate=FILE"
                " --private-key=FILE, and state both"
            )
            yield "a public service without TLS", f"no {' and no '.join(missing)}", allowed, fix
        if external and not (self.members or self.keys):
            allowed = "the people and service accounts that may call, or keys"
            fix = "members: [group:team@example.org], or keys: SECRET"
            got = "no members and no keys"
            yield "a public service that does not say who may call", got, allowed, fix
        if self.quota_per_s and not self.keys:
            allowed = "0 without keys: callers are known by their keys"
            yield "quota_per_s", self.quota_per_s, allowed, "keys: SECRET"
        if self.keys and self.members:
            allowed = "keys or members: both come in the header authorization"
            yield "keys", f"{self.keys}, with members", allowed, "leave one of them out"
        if self.members and not external:
            allowed = "nothing, unless reach is external"
            yield "members", ", ".join(self.members), allowed, "leave it out, or reach: external"
        if self.reach == Reach.CLUSTER and (self.hostname or self.certificate):
            got = self.hostname or self.certificate
            yield "reach", f"cluster, with {got}", "internal or external", "reach: internal"

    def _count_replicas(self, requests_per_s: float) -> int:
        """Return the replicas for a load, each below the load at which queues grow."""
        if not requests_per_s:
            return 0
        return ceil(requests_per_s / (USABLE_SHARE * self.replica_per_s))

    @property
    def base_replicas(self) -> int:
        """The least replicas on demand, without those in reserve."""
        return self._count_replicas(self.promised_per_s) if self.base == AS_PROMISED else self.base

    @property
    def base_largest(self) -> int:
        """The most replicas on demand, without those in reserve."""
        return self.base_most or self.base_replicas

    @property
    def overflow_replicas(self) -> int:
        """The most replicas on Spot."""
        if self.overflow_most:
            return self.overflow_most
        missing = self._count_replicas(self.peak_per_s) - self.base_largest
        return max(missing, MIN_OVERFLOW) if missing > 0 else 0

    @property
    def may_sleep(self) -> bool:
        """Return whether it has no replicas after a time without requests."""
        return self.least_replicas == 0

    @property
    def promise(self) -> str:
        """The arithmetic of the replicas in one sentence."""
        sizes = f"base {self.base_replicas} to {self.base_largest} on demand"
        sizes += f", {self.standby} in reserve, overflow {self.overflow_replicas} on Spot"
        if self.may_sleep:
            sizes += f"; none after {self.idle_minutes} minutes without a request"
        if not self.promised_per_s:
            return f"{sizes}; no promise"
        return (
            f"{sizes}; {self.promised_per_s:g}/s without Spot need {self.promised_per_s:g} /"
            f" ({USABLE_SHARE:g} x {self.replica_per_s:g}) ="
            f" {self._count_replicas(self.promised_per_s)} replicas"
        )

    @property
    def engine(self) -> Engine:
        return Engine.VLLM if self.model else Engine.PREDICTOR

    @property
    def source(self) -> str:
        """The model or the predictor."""
        return self.model or self.predictor

    @property
    def gpu_count(self) -> int:
        return parse_gpu(self.gpu)[0]

    @property
    def accelerator(self) -> str:
        return parse_gpu(self.gpu)[1]

    @property
    def home(self) -> str:
        """The namespace of its objects."""
        return self.namespace or NAMESPACE_SERVING

    @property
    def compile_cache_folder(self) -> str:
        """The folder of this service in the bucket of `compile_cache`; empty: there is none."""
        return self.compile_cache and f"{self.compile_cache}/{self.home}/{self.name}"

    @property
    def caller_namespaces(self) -> tuple[str, ...]:
        """Namespaces of the callers; empty: all."""
        return () if EVERYONE in self.callers else self.callers
