# pyright: basic, reportMissingImports=false
"""MLflow: `curve = MlflowCurve("my-experiment")`, one MLflow run for each run.

The server and the credentials come from MLflow's own variables, such as MLFLOW_TRACKING_URI.
"""

from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from holdfast.training.curves.curve import Curve, Point, Tracker

TAG = "holdfast.curve"
"""Tag that has the id of a curve: MLflow draws its own ids."""
MAX_METRICS = 1000
"""Most metrics that MLflow takes in one request."""


class MlflowCurve(Curve):
    """A run of an experiment of MLflow.

        curve = MlflowCurve("my-experiment")
        with Checkpointer(url, {"model": model, "curve": curve}) as checkpointer:
            for step in range(checkpointer.step, steps):
                curve.log(step + 1, {"loss": train_step(step)})
                checkpointer.tick(step + 1)

    Each value is recorded before the tick of its step.
    """

    def __init__(self, experiment: str = "Default", *, tracking_uri: str | None = None) -> None:
        super().__init__(_Experiment(MlflowClient(tracking_uri), experiment))


class _Experiment(Tracker):
    failures = (OSError, MlflowException)

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client = client
        self._experiment = experiment
        self._run_id = ""

    def open(self, run_id: str, step: int) -> dict[str, int]:
        experiment_id = self._find_experiment()
        runs = self._client.search_runs(
            [experiment_id], filter_string=f"tags.`{TAG}` = '{run_id}'", max_results=1
        )
        if not runs:
            run: Any = self._client.create_run(experiment_id, run_name=run_id, tags={TAG: run_id})
            self._run_id = run.info.run_id
            return {}
        self._run_id = runs[0].info.run_id
        self._client.update_run(self._run_id, status="RUNNING")
        newest_steps: dict[str, int] = {}
        for name in runs[0].data.metrics:
            history = self._client.get_metric_history(self._run_id, name)
            newest_steps[name] = max(metric.step for metric in history)
        return newest_steps

    def _find_experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            return experiment.experiment_id
        return self._client.create_experiment(self._experiment)

    def write(self, points: list[Point]) -> None:
        metrics: list[Metric] = []
        for point in points:
            time_ms = int(point.time_s * 1000)
            metrics.append(Metric(point.name, point.value, time_ms, point.step))
        for start in range(0, len(metrics), MAX_METRICS):
            batch = metrics[start : start + MAX_METRICS]
            self._client.log_batch(self._run_id, metrics=batch)

    def close(self, *, is_complete: bool) -> None:
        if is_complete:
            self._client.set_terminated(self._run_id)
