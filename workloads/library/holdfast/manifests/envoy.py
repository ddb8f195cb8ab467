"""Builds the configuration of Envoy, the proxy before the servers.

It is the first hop of requests, on machines that are not preempted.
"""

# Why it is so: infra/decisions/0049.

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from holdfast.vocabulary import serving

CLUSTER = "servers"
ADMIN = "admin"
PROXY_MEMORY_MIB = 1024
"""Memory of its container, which limits the requests that it accepts."""
_HEAP_SHARE = 0.8
_REQUESTS_SHARE = 0.7
_BUFFER_BYTES = 64 * 1024
"""Buffer between two ends of which one is slower. Above it the faster one waits."""
_REPEATABLE_BYTES = 1024 * 1024
"""Largest body of a request that is retried."""
_REQUEST_BYTES = 2 * _BUFFER_BYTES + _REPEATABLE_BYTES
"""Memory of a request that waits for its server: buffers on both sides and a copy for a retry."""
_MAX_REQUESTS = int(PROXY_MEMORY_MIB * 2**20 * _REQUESTS_SHARE) // _REQUEST_BYTES
CARRIES = _MAX_REQUESTS // 2
"""Requests that one proxy has at its servers at once: each takes a connection of HTTP/1.1."""
_STREAMS = 100
"""Largest number of concurrent requests on a connection of HTTP/2."""
_STREAM_WINDOW_BYTES = 64 * 1024
_CONNECTION_WINDOW_BYTES = 1024 * 1024
"""Bytes that a client of HTTP/2 may send before the proxy has passed them on; Envoy's default is
larger.
"""
_CONNECTION_BYTES = 64 * 1024
"""Memory of a connection with some headers. Idle, Envoy 1.40 takes 16 KB for one of HTTP/1.1, and
35 KB for one of HTTP/2.
"""
_CONNECTIONS_SHARE = 0.2
_TYPES = "type.googleapis.com/envoy.extensions"
_MOST_CALLERS = 1024


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """The settings of the proxy before online servers.

    The file of endpoints may be written later.

        proxy = Proxy(endpoints_file="/run/endpoints/servers.json", longest_request_s=7.0)
    """

    endpoints_file: str
    """File of endpoint discovery; replaced by a rename."""
    longest_request_s: float
    """Time limit of a request over all tries. Does not hold for `/v1/`, whose texts arrive in
    pieces.
    """
    stream_idle_s: float = serving.STREAM_IDLE_S
    """Longest silence on `/v1/`: from one piece of a text to the next, and to the first."""
    host: str = "0.0.0.0"
    port: int = serving.PORT
    admin_port: int = serving.PROXY_ADMIN_PORT
    metrics_port: int = serving.PROXY_METRICS_PORT
    tries: int = serving.TRIES
    keys_file: str = ""
    """File with the keys of callers, replaced by a rename; empty: everyone may call."""
    quota_per_s: float = 0.0
    """Requests per second of each caller; 0: no quota."""
    proxies_file: str = ""
    """File of endpoint discovery with all proxies, each of which grants its share of the quota;
    empty: this one grants all of it.
    """
    most_proxies: int = 1
    """The largest number of proxies that share the quota."""
    max_retries: int | None = serving.MAX_RETRIES
    """Retries that may run at once; None: Envoy's default, three, which fails requests when a
    server dies.
    """


def count_proxies(requests: float) -> int:
    """Returns the proxies that carry this many requests at once, with one of them lost."""
    return ceil(requests / (serving.USABLE_SHARE * CARRIES)) + 1


def bootstrap(proxy: Proxy) -> dict[str, Any]:
    """Return the configuration of Envoy, as JSON.

    Envoy reads it at its start.

        Path("envoy.json").write_text(json.dumps(bootstrap(proxy)))
    """
    clusters = [_servers(proxy), _admin(proxy)]
    manager: dict[str, Any] = {}
    if _shares_quota(proxy):
        clusters.append(_proxies(proxy.proxies_file))
        manager["cluster_manager"] = {"local_cluster_name": serving.PROXIES}
    return {
        "node": {"id": "proxy", "cluster": "serving"},
        "admin": {
            "address": _address("127.0.0.1", proxy.admin_port),
            "ignore_global_conn_limit": True,
        },
        "overload_manager": _overload(),
        "static_resources": {
            "listeners": [_listener(proxy), _metrics(proxy)],
            "clusters": clusters,
        },
        **manager,
    }


def _shares_quota(proxy: Proxy) -> bool:
    return bool(proxy.keys_file and proxy.quota_per_s and proxy.proxies_file)


def _proxies(file: str) -> dict[str, Any]:
    return {
        "name": serving.PROXIES,
        "type": "EDS",
        "connect_timeout": "0.5s",
        "eds_cluster_config": _discovery(serving.PROXIES, file),
    }


def _discovery(name: str, file: str) -> dict[str, Any]:
    """Reads the members of a cluster from a file, which is replaced by a rename."""
    source = {
        "path_config_source": {
            "path": file,
            "watched_directory": {"path": file.rpartition("/")[0]},
        }
    }
    return {"service_name": name, "eds_config": source}


def _overload() -> dict[str, Any]:
    """Answers 503 before the kernel ends the proxy for its memory, which other limits miss."""
    monitor = "envoy.resource_monitors.fixed_heap"
    config = {
        "@type": f"{_TYPES}.resource_monitors.fixed_heap.v3.FixedHeapConfig",
        "max_heap_size_bytes": int(PROXY_MEMORY_MIB * 2**20 * _HEAP_SHARE),
    }
    actions: list[dict[str, Any]] = []
    for name, share in {"shrink_heap": 0.8, "stop_accepting_requests": 0.95}.items():
        trigger = {"name": monitor, "threshold": {"value": share}}
        actions.append({"name": f"envoy.overload_actions.{name}", "triggers": [trigger]})
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [{"name": monitor, "typed_config": config}, _connection_limit()],
        "actions": actions,
    }


def _connection_limit() -> dict[str, Any]:
    """Limits the clients' connections, which the limits of requests do not count."""
    connections = int(PROXY_MEMORY_MIB * 2**20 * _CONNECTIONS_SHARE) // _CONNECTION_BYTES
    limit = {
        "@type": (
            f"{_TYPES}.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
        ),
        "max_active_downstream_connections": connections,
    }
    return {
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": limit,
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(proxy: Proxy) -> dict[str, Any]:
    manager = {
        # Longer than any load balancer keeps a connection: this side must not close first.
        "common_http_protocol_options": {"idle_timeout": f"{serving.KEEP_ALIVE_S}s"},
        "http2_protocol_options": {
            "max_concurrent_streams": _STREAMS,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _CONNECTION_WINDOW_BYTES,
        },
        "request_headers_timeout": "10s",
        "request_timeout": _seconds(proxy.longest_request_s),
        "stream_idle_timeout": _seconds(proxy.longest_request_s),
        "local_reply_config": {"mappers": [_retry_later()]},
    }
    return _http(
        serving.PROXY_REQUESTS,
        _address(proxy.host, proxy.port),
        [_text_route(proxy), _prediction_route(proxy)],
        manager,
        tuple(_caller_filters(proxy)),
    )


def _retry_later() -> dict[str, Any]:
    """Tells clients when to try again if no server, or no room, was found for a request."""
    comparison = {"value": {"default_value": 503, "runtime_key": "unavailable"}}
    return {
        "filter": {"status_code_filter": {"comparison": comparison}},
        "headers_to_add": [{"header": {"key": "retry-after", "value": "1"}}],
    }


def _caller_filters(proxy: Proxy) -> Iterator[dict[str, Any]]:
    """Yields the filters before the routes, which check who calls, and how often."""
    if not proxy.keys_file:
        return
    source = {
        "path": proxy.keys_file,
        "watched_directory": {"path": proxy.keys_file.rpartition("/")[0]},
    }
    discovery = {
        "config_source": {"path_config_source": source, "resource_api_version": "V3"},
        "type_urls": [serving.KEYS_TYPE],
    }
    yield {"name": serving.KEYS_FILTER, "config_discovery": discovery}
    if proxy.quota_per_s:
        yield {"name": "quota", "typed_config": _quota(proxy)}


def _quota(proxy: Proxy) -> dict[str, Any]:
    """Answers 429 to a caller beyond its quota; others are not affected.

    Proxies that share it take as many tokens for a request as there are proxies.
    Decision: infra/decisions/0186.
    """
    shared = {"local_cluster_rate_limit": {}} if _shares_quota(proxy) else {}
    always = {"default_value": {"numerator": 100}}
    action = {"request_headers": {"header_name": serving.CALLER_HEADER, "descriptor_key": "caller"}}
    # A descriptor without a value applies to each caller separately.
    descriptor = {"entries": [{"key": "caller"}], "token_bucket": _bucket(proxy, 1)}
    retry_after = {"header": {"key": "retry-after", "value": "1"}}
    return {
        "@type": f"{_TYPES}.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "quota",
        "token_bucket": _bucket(proxy, _MOST_CALLERS),
        "filter_enabled": always,
        "filter_enforced": always,
        "rate_limits": [{"actions": [action]}],
        "descriptors": [descriptor],
        "max_dynamic_descriptors": _MOST_CALLERS,
        "response_headers_to_add": [retry_after],
        **shared,
    }


def _bucket(proxy: Proxy, callers: int) -> dict[str, Any]:
    """Lets in the requests of a second at once, at least one.

    A bucket that holds less than a request takes would let in none.
    """
    tokens = max(1, round(proxy.quota_per_s))
    return {
        "max_tokens": callers * max(tokens, proxy.most_proxies),
        "tokens_per_fill": callers * tokens,
        "fill_interval": _seconds(tokens / proxy.quota_per_s),
    }


def _metrics(proxy: Proxy) -> dict[str, Any]:
    """Opens the metrics only: the rest of the admin interface can end the proxy."""
    all_series = {
        "match": {"path": serving.PROXY_METRICS_PATH},
        "route": {"cluster": ADMIN},
    }
    counter = f"^http.{serving.PROXY_REQUESTS}.downstream_rq_active$"
    active_requests = {
        "match": {"path": serving.PROXY_ACTIVE_PATH},
        "route": {
            "cluster": ADMIN,
            "prefix_rewrite": f"{serving.PROXY_METRICS_PATH}?filter={counter}",
        },
    }
    routes = [all_series, active_requests]
    listener = _http("metrics", _address(proxy.host, proxy.metrics_port), routes, {})
    # Probes and scrapes must reach a proxy that has all its connections.
    return listener | {"ignore_global_conn_limit": True}


def _http(
    name: str,
    address: dict[str, Any],
    routes: list[Any],
    options: dict[str, Any],
    filters_before: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": routes,
        # Tells a server that the request may have hung another server before.
        "include_request_attempt_count": True,
        "per_request_buffer_limit_bytes": _REPEATABLE_BYTES,
    }
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": [*filters_before, router],
        **options,
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {
        "name": name,
        "address": address,
        "filter_chains": [{"filters": filters}],
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
    }


def _admin(proxy: Proxy) -> dict[str, Any]:
    endpoint = {"endpoint": {"address": _address("127.0.0.1", proxy.admin_port)}}
    return {
        "name": ADMIN,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": ADMIN,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }


def _prediction_route(proxy: Proxy) -> dict[str, Any]:
    route = _route(proxy, "/")
    route["route"]["timeout"] = _seconds(proxy.longest_request_s)
    if proxy.tries > 1:
        # All tries within the one deadline, and the server learns how long it has.
        route["route"]["retry_policy"]["per_try_timeout"] = _seconds(
            proxy.longest_request_s / proxy.tries
        )
    return route


def _text_route(proxy: Proxy) -> dict[str, Any]:
    """Ends a text only after silence: a total timeout would cut long ones, with status 200."""
    route = _route(proxy, "/v1/")
    route["route"]["timeout"] = _seconds(0)
    route["route"]["idle_timeout"] = _seconds(proxy.stream_idle_s)
    return route


def _route(proxy: Proxy, prefix: str) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": CLUSTER}
    if proxy.tries > 1:
        route["retry_policy"] = {
            # A prediction is a pure function: a request that died without an answer may be retried.
            # 429 is not here: it is load, and retries make it worse.
            "retry_on": serving.RETRY_ON,
            "retriable_status_codes": [serving.RETRIABLE_STATUS],
            "num_retries": proxy.tries - 1,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": f"{_TYPES}.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                    },
                }
            ],
            # Silent hosts look least loaded and are picked most: with two of four, five picks in a
            # row would be hosts tried before in one retry of six.
            "host_selection_retry_max_attempts": 32,
        }
    return {
        "match": {"prefix": prefix},
        "route": route,
    }


def _servers(proxy: Proxy) -> dict[str, Any]:
    # Requests that wait for a connection are counted apart, and take twice the memory. A machine
    # that vanished looks least loaded, so nearly all requests of one connect timeout wait for it.
    limits = {
        "max_connections": CARRIES,
        "max_pending_requests": _MAX_REQUESTS * 3 // 8,
        "max_requests": _MAX_REQUESTS,
    }
    if proxy.max_retries is not None:
        limits["max_retries"] = proxy.max_retries
    return {
        "name": CLUSTER,
        "type": "EDS",
        "connect_timeout": "0.5s",
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "lb_policy": "LEAST_REQUEST",
        # With almost none left healthy every one gets requests: a server that drains still answers.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "eds_cluster_config": _discovery(CLUSTER, proxy.endpoints_file),
        "circuit_breakers": {"thresholds": [limits]},
        # A machine that lost its power sends no reset: without probes its connections hang for a
        # quarter of an hour.
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": 5,
                "keepalive_interval": 2,
                "keepalive_probes": 3,
            }
        },
        "typed_extension_protocol_options": _upstream_protocol(),
        # The proxy's own check, in addition to the endpoints that Kubernetes names.
        "health_checks": [_health_check()],
    }


def _upstream_protocol() -> dict[str, Any]:
    type_url = f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions"
    options = {
        "@type": type_url,
        # Shorter than the server's: a connection that both close at once loses a request.
        "common_http_protocol_options": {"idle_timeout": f"{serving.KEEP_ALIVE_S - 20}s"},
        "explicit_http_config": {"http_protocol_options": {}},
    }
    return {type_url.removeprefix("type.googleapis.com/"): options}


def _health_check() -> dict[str, Any]:
    return {
        "interval": _seconds(serving.PROBE_PERIOD_S),
        "timeout": _seconds(serving.PROBE_TIMEOUT_S),
        "no_traffic_interval": _seconds(serving.PROBE_PERIOD_S),
        # 503 counts at once; three slow answers are needed, since a busy machine is not one that
        # drains.
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "http_health_check": {"path": serving.READY_PATH},
    }


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "s"
