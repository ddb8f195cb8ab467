"""Defines how an online server leaves without dropping a request.

Server, manifests, linter and proxy share these times. A Spot notice takes no pod out of a Service:
the kubelet that shuts its node down no longer probes the pod, so the pod stays ready until its
containers end (Kubernetes 1.36.3). The proxy's own health check ends the traffic. So a server goes
on accepting for `accept_s` after SIGTERM, finishes its requests, and leaves. The rest of the window
is the longest request that can be promised. Seconds throughout.
"""

from dataclasses import dataclass
from math import ceil

from holdfast.vocabulary.lifecycle import WINDOW_MARGIN_S

# The readiness probe, and the proxy's health check of the same path. They use httpGet, because exec
# probes do nothing while a pod terminates on Kubernetes 1.35.
PROBE_PERIOD_S = 1
PROBE_TIMEOUT_S = 1
PROBE_FAILURES = 1
# The proxy's check may come a period late and time out, twice: 2 x (1 + 1), and 1 in reserve.
# Measured on real kubelets: 0.1 to 0.5 s, as each response of a leaving server tells the proxy.
LEAST_ACCEPT_S = 5.0
# The share of a longer window for `accept_s`: a distant proxy may notice late.
ACCEPT_SHARE = 1 / 7
# After `accept_s` a server stops accepting once no request has come for this long.
QUIET_S = 1.0
# Google's load balancers keep a backend connection for 600 s: a server that closes earlier answers
# some requests with a reset.
KEEP_ALIVE_S = 620
# A text that arrives in pieces may last as long as its model writes. It ends when nothing has
# arrived for so long, which also bounds the wait for the first piece and a completion that is not
# streamed. Envoy's own default.
STREAM_IDLE_S = 300
# Seconds of a window that pass before the SIGTERM of a server that stops accepting at once (vLLM),
# at least, and seconds in reserve at its end.
SIDECAR_LEAST_S = 4.0
SIDECAR_SPARE_S = 4.0
# The health check of a load balancer before the proxies, and the time until all of its own proxies
# know the outcome. A proxy that leaves accepts requests for that long: Google's endpoint groups
# drop an endpoint later, after seconds to a minute.
BALANCER_CHECK_S = 1
BALANCER_FAILURES = 2
BALANCER_SPREAD_S = 5.0
# A stream has no total time; a load balancer needs one.
BALANCER_STREAM_S = 86_400
# The grace period of the proxies and routers of streams, whose end cuts them: the longest that
# GKE's autoscaler gives pods of a node that it removes.
STREAM_WINDOW_S = 600

# The time for which a text waits for the first replica of a service that sleeps: a node with a GPU,
# its image, and the weights of a model.
WAKE_HOLD_S = 900
# The time after which a request that is not streamed, and so sends nothing while it waits, gets
# its refusal: before STREAM_IDLE_S ends it without one.
SILENT_HOLD_S = STREAM_IDLE_S - 10
ANNOTATION_IDLE = "holdfast.dev/idle-minutes"
"""Annotation of a Deployment: the minutes without a request after which it has no replicas."""

PORT = 8080
"""The port of the server for requests, probes and metrics, and of the proxy for requests."""
PROXY_ADMIN_PORT = 9901  # on the loopback interface only
PROXY_METRICS_PORT = 9902  # only the metrics of the admin interface, for scraping
SIDECAR_PORT = 8081  # the readiness probe of a sidecar
# the preStop hook of a sidecar; the kubelet reaches it through any network policy, and no pod does
HOOK_PORT = 8082
# The router of text streams: its requests, probes and metrics.
ROUTER_PORT = 8090
LIVE_PATH = "/v2/health/live"
READY_PATH = "/v2/health/ready"
REJECTIONS_PATH = "/v2/health/rejections"
"""Path of the reports about requests that end the model, which the proxy's watcher shares."""
DRAIN_PATH = "/drain"

COMPILE_CACHE = "/tmp/compiled"
"""Folder in the pod of an engine with what its compilers keep, if the service has a bucket for it.

It is on the volume of /tmp, through which they pass without a bucket too.
"""
COMPILER_FOLDERS = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
}
"""Variable of a compiler -> its folder in COMPILE_CACHE."""
CACHE_INCOMING = "incoming"
"""Folder in COMPILE_CACHE with what is being fetched; a fetch that was cut short leaves it."""
CACHE_UNTRIED = "untried"
"""Folder in COMPILE_CACHE that the first start of the engine removes."""
CACHE_PROVEN = "proven"
"""File in COMPILE_CACHE that exists once the engine was ready."""
CACHE_FETCHER = "fetch-compiled"
"""Name of the container that fills COMPILE_CACHE and ends."""

# The filter of the proxy that knows callers by their keys, and the file that has them.
KEYS_FILTER = "callers"
KEYS_TYPE = "type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth"
KEYS_FILE = "keys.json"
PROXIES = "proxies"
"""Name by which a proxy knows itself and the others."""
PROXIES_FILE = "proxies.json"
"""File with the proxies of a service, which share the quotas of its callers."""
CALLER_HEADER = "x-holdfast-caller"
"""Header by which the proxy tells servers the name of the caller."""

LABEL_SERVICE = "holdfast.dev/service"
"""Label of each object of a service, except what services of a namespace share."""
# On pods: whether they are base or overflow.
LABEL_TIER = "holdfast.dev/serving-tier"
TIER_LABEL = "tier"  # the same, on series
TIER_BASE = "base"
TIER_OVERFLOW = "overflow"
MIN_OVERFLOW = 2
"""Least replicas on Spot: they are in two zones, so that one preemption does not take all."""

# The last line of a server that its watchdog ends; an alert reads it.
OVER_BUDGET = "drain over budget: requests are cut"

# The usable share of a replica's throughput with full batches: beyond it queues grow without end.
USABLE_SHARE = 0.8

# What a proxy may retry, and how often. 429 is load and must not be retried; `reset` covers a
# server that died.
RETRY_ON = "connect-failure,refused-stream,reset,retriable-status-codes"
RETRIABLE_STATUS = 503
TRIES = 3
# Envoy's default breaker lets three retries run at once, and fails the rest.
MAX_RETRIES = 1000

# Metrics of a server, as Prometheus reads them: dashboards, alerts and autoscalers name them from
# here.
RUNNING = "holdfast_server_requests_running"
WAITING = "holdfast_server_requests_waiting"
# running and waiting together: autoscaling reads it, since it grows with load
INFLIGHT = "holdfast_server_requests_inflight"
READY = "holdfast_server_ready"
DRAINING = "holdfast_server_draining"
REQUESTS = "holdfast_server_requests_total"
REFUSED = "holdfast_server_refused_total"
PREDICTOR_DEATHS = "holdfast_server_predictor_deaths_total"
REJECTED = "holdfast_server_rejected_total"
QUEUE_SECONDS = "holdfast_server_queue_seconds"
PREDICT_SECONDS = "holdfast_server_predict_seconds"
REQUEST_SECONDS = "holdfast_server_request_seconds"
BATCH_ITEMS = "holdfast_server_batch_items"
# Envoy's metric of responses to clients by class of their code. Errors that a retry repaired are
# not among them.
PROXY_ANSWERS = "envoy_http_downstream_rq_xx"
PROXY_METRICS_PATH = "/stats/prometheus"
# One series of the above. An autoscaler's metric must be one: it may name a path, and no label.
PROXY_ACTIVE_PATH = "/stats/active"
PROXY_ACTIVE = "envoy_http_downstream_rq_active"
# the listener for clients, among those whose requests the proxy counts
PROXY_REQUESTS = "requests"
REFUSED_FOR_LOAD = ("queue", "bytes", "deadline", "late")
SERVER_METRICS = {
    RUNNING: "requests in the batch that is computed",
    WAITING: "requests that wait for a batch",
    INFLIGHT: "requests that run or wait",
    READY: "1 while the readiness probe is answered with 200",
    DRAINING: "1 from SIGTERM on",
    REQUESTS: (
        "requests for a prediction that were answered, by HTTP code; 499: the client was gone"
    ),
    REFUSED: (
        "requests refused, by reason: queue, bytes, deadline, late, loading, leaving, restarting,"
        " overdue, suspected, rejected"
    ),
    PREDICTOR_DEATHS: "predicting processes that ended by themselves, or hung and were ended",
    REJECTED: "requests that ended or hung the model in a process of their own",
    QUEUE_SECONDS: "from a request's arrival to the start of its batch",
    PREDICT_SECONDS: "of a batch in the predicting process",
    REQUEST_SECONDS: "from a request's first byte to its answer",
    BATCH_ITEMS: "items of a batch",
}

# The metrics of vLLM that autoscaling reads.
VLLM_RUNNING = "vllm:num_requests_running"
VLLM_WAITING = "vllm:num_requests_waiting"

LABEL_METRICS = "holdfast-metrics"
"""Label of pods: the AutoscalingMetric that reads them. GKE allows no `/` and no `.` in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauge:
    """A gauge of pods, as GKE's managed metrics adapter reads it from their endpoint."""

    group: str
    """Name of the AutoscalingMetric, and value of LABEL_METRICS on the pods."""
    name: str
    """Name for autoscalers: small letters and hyphens."""
    series: str
    """Name in the pods' metrics."""
    port: int = PORT
    path: str = "/metrics"


# One object of each group serves all services of a namespace: a cluster has at most 20 metrics.
SERVER_REQUESTS = Gauge(group="servers", name="requests", series=INFLIGHT)
ENGINE_RUNNING = Gauge(group="engines", name="running", series=VLLM_RUNNING)
ENGINE_WAITING = Gauge(group="engines", name="waiting", series=VLLM_WAITING)
PROXY_REQUESTS_ACTIVE = Gauge(
    group="proxies",
    name="active",
    series=PROXY_ACTIVE,
    port=PROXY_METRICS_PORT,
    path=PROXY_ACTIVE_PATH,
)
# Metrics of the router.
ROUTER_STREAMS = "holdfast_router_streams"
ROUTER_STREAMS_OPEN = Gauge(group="routers", name="streams", series=ROUTER_STREAMS)
ROUTER_WAITING = "holdfast_router_waiting"
ROUTER_SERVERS = "holdfast_router_servers"
ROUTER_READY = "holdfast_router_ready"
ROUTER_REQUESTS = "holdfast_router_requests_total"
ROUTER_REFUSED = "holdfast_router_refused_total"
ROUTER_MOVED = "holdfast_router_moved_total"
ROUTER_ENDED = "holdfast_router_ended_total"
ROUTER_UNMOVED = "holdfast_router_unmoved_total"
ROUTER_TOKENS = "holdfast_router_tokens_total"
ROUTER_SEAM_SECONDS = "holdfast_router_seam_seconds"
ROUTER_METRICS = {
    ROUTER_STREAMS: "requests that are open, with those that wait for a server",
    ROUTER_WAITING: "requests that wait for a ready server",
    ROUTER_SERVERS: "servers by state: ready, draining, silent, unknown",
    ROUTER_READY: "1 while the readiness probe is answered with 200",
    ROUTER_REQUESTS: (
        "requests for a text that were answered, by HTTP code; 499: the client was gone"
    ),
    ROUTER_REFUSED: "requests refused, by reason: streams, bytes, no_server, leaving",
    ROUTER_MOVED: (
        "streams that went on at another server, by cause: drained, died, hung, unreachable, error,"
        " protocol"
    ),
    ROUTER_ENDED: "streams that ended with an error event, by cause",
    ROUTER_UNMOVED: (
        "requests that are passed through and cannot move, by the field that prevents it"
    ),
    ROUTER_TOKENS: "tokens of carried streams",
    ROUTER_SEAM_SECONDS: "from the last event before a seam to the first one after it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainBudget:
    """The time for each step of a drain."""

    window_s: float
    """Time from SIGTERM to SIGKILL."""
    accept_s: float
    longest_request_s: float
    """Time from a request's first byte to the last byte of its response."""

    @property
    def leave_s(self) -> float:
        """The time by which the process must have ended."""
        return self.window_s - WINDOW_MARGIN_S

    def latest_accept_s(self, request_s: float) -> float:
        """Returns when a server whose requests last at most `request_s` must stop accepting."""
        return max(self.accept_s, self.leave_s - request_s)


def drain_budget(window_s: float) -> DrainBudget:
    """Divides a window. 15 s: accept 5, request 7. 105 s: accept 15, request 87."""
    accept_s = max(LEAST_ACCEPT_S, window_s * ACCEPT_SHARE)
    return DrainBudget(
        window_s=window_s,
        accept_s=accept_s,
        longest_request_s=max(0.0, window_s - WINDOW_MARGIN_S - accept_s),
    )


def balancer_accept_s() -> float:
    """Returns how long a proxy behind a load balancer accepts requests after its drain began.

    A check may begin just before, and the last one may time out: 2 x 1 + 1 + 5 s.
    """
    return (BALANCER_FAILURES + 1) * BALANCER_CHECK_S + BALANCER_SPREAD_S


def find_balanced_window_s(window_s: float) -> float:
    """Returns the time to drain a proxy behind a load balancer, of which the hold is a part.

    Proxies are on demand, so that it may be longer than that of the servers.
    """
    return max(window_s, ceil(balancer_accept_s() / ACCEPT_SHARE))


def sidecar_budget(window_s: float) -> tuple[float, float]:
    """Divides the window of a server that refuses requests from SIGTERM on.

    Returns the seconds for which it is not ready before SIGTERM, and its shutdown timeout. 15 s: 4
    and 7. 105 s: 15 and 80.
    """
    hold_s = max(SIDECAR_LEAST_S, window_s * ACCEPT_SHARE)
    spare_s = SIDECAR_SPARE_S if hold_s == SIDECAR_LEAST_S else window_s * 2 / 21
    return hold_s, window_s - hold_s - spare_s
