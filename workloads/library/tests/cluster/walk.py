"""Combines a real cluster, the exporter as it is rendered, and simulations of Cloud Logging and
Cloud Monitoring.

`minutes` lets the story go on; Prometheus' engine tells afterwards which alerts fired in it.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import requests
from kubernetes import client

from holdfast.clients.api import Api
from holdfast.controllers.cloud_logs import CloudLogs
from holdfast.cost.receipt import leave
from holdfast.exporter.cloud import CloudWriter
from holdfast.exporter.jobs import Jobs
from holdfast.exporter.main import Exporter
from holdfast.mover.receipts import Receipts
from holdfast.vocabulary.kubernetes import INTERRUPTIONS_METRIC, PREEMPTION_TYPE
from holdfast.vocabulary.roles import NAMESPACE_MONITORING, events_view
from infra import environments
from monitoring.alerting.alerts import alerts
from monitoring.stack import make_limits
from tests import platforms
from tests.cluster.sim.story import StoryClock, Watched
from tests.monitoring.alerting.firings import Firing, Recorder, firings
from tests.workloads.manifests import rendered
from workloads.library.tests.cluster.trainers import Trainers, agent_labels
from workloads.library.tests.controllers.log_server import LogServer

ENVIRONMENT = platforms.load("example")
LIMITS = make_limits(environments.load("example"))


class Walk:
    def __init__(
        self,
        api: Api,
        clock: StoryClock,
        watched: Watched,
        logs: LogServer,
        session: requests.Session,
        credentials: client.ApiClient,
        folder: Path,
    ) -> None:
        """Takes the arguments that the rendered Deployment gives the exporter."""
        template = rendered.find_object("example", "Deployment", "exporter")["spec"]["template"]
        words: list[str] = template["spec"]["containers"][0]["command"]
        project = rendered.option(words, "--project")
        location = rendered.option(words, "--location")
        cluster = rendered.option(words, "--cluster")
        logs.view = events_view(project, cluster)
        self.api = api
        self.clock = clock
        self.watched = watched
        self.logs = logs
        self.source = CloudLogs(
            session,
            project,
            cluster,
            url=logs.url,
            clock=clock,
        )
        self.recorder: Any = Recorder(began_s=clock.began_s)
        self.trainers = Trainers(api, clock, folder, logs)
        self.exporter = Exporter(
            cluster=watched.cluster,
            lock=watched.lock,
            jobs=Jobs(self.source),
            clock=clock,
        )
        self.writer = CloudWriter(self.recorder, project, location, cluster, clock=clock)
        self.receipts = Receipts(
            self.source.of_job, partial(leave, api=Api.over(credentials)), again_s=0.5
        )
        self.seen: dict[str, float] = {}
        """Samples of the last minute: metric and labels -> value."""
        self._labels = agent_labels(template)

    def minutes(self, count: int) -> None:
        self.watched.catch_up(self.api)
        self.trainers.sync()
        self.clock.skip(count, self._minute)

    @property
    def now_min(self) -> int:
        return self.recorder.minute

    def count_lost_nodes(self, pool: str, count: int) -> None:
        """Adds lost nodes to the count that GKE itself reports."""
        labels = {
            "monitored_resource": "k8s_node_pool",
            "cluster_name": LIMITS["cluster"],
            "node_pool_name": pool,
        }
        labels |= {"interruption_type": PREEMPTION_TYPE, "interruption_reason": "Eviction"}
        self.recorder.add(INTERRUPTIONS_METRIC, labels, count)

    def list_firings(self) -> list[Firing]:
        return firings(alerts(LIMITS), self.recorder)

    def _minute(self) -> None:
        self.trainers.minute()
        self.source.turn()
        self.recorder.minute += 1
        samples = self.exporter.gather()
        self.seen = {}
        for s in samples:
            labels = [f"{key}={value}" for key, value in s.labels]
            self.seen[" ".join([s.metric, *labels])] = s.value
        assert self.writer.write(samples) == len(samples)
        with self.exporter.lock:
            own_lines = self.watched.cluster.lines(self.clock())
        with (self.trainers.folder / "exporter.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in own_lines)
        self.logs.add_lines(
            [json.dumps(line).encode() for line in own_lines], self._labels, NAMESPACE_MONITORING
        )
        view = self.watched.cluster
        of_jobs = ((view.root(pod.owner), pod) for pod in view.pods.values())
        view.node_usages.count_time(of_jobs, view.nodes, self.clock())
        for job in view.take_due_jobs(self.clock()):
            self.receipts.order(job)
