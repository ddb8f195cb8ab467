"""Metrics hold the names of jobs: outside a pod only this machine may ask for them."""

import pytest
from prometheus_client import generate_latest

from holdfast.controllers.sample import sample
from holdfast.exporter import main, prometheus
from holdfast.exporter.prometheus import Newest


def test_series_in_one_metric_may_have_different_labels() -> None:
    """A job whose indices train apart, and another that is one run."""
    newest = Newest()
    newest.show(
        [sample("goodput_ratio", 0.5, job="a", index="1"), sample("goodput_ratio", 1, job="b")]
    )
    text = generate_latest(newest.registry).decode()
    assert 'index="1",job="a"} 0.5' in text and 'job="b"} 1.0' in text


@pytest.mark.parametrize(("kubeconfig", "address"), [("", "0.0.0.0"), ("of-somebody", "127.0.0.1")])
def test_only_a_pod_serves_to_the_network(
    kubeconfig: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with a kubeconfig serves a person who looks at a cluster."""

    class Listens(Exception):
        pass

    def listen(port: int, addr: str, registry: object) -> None:
        raise Listens(port, addr)

    monkeypatch.setattr(prometheus, "start_http_server", listen)
    monkeypatch.setattr(main, "connect", str)  # no client
    monkeypatch.setattr(main.shutdown, "of_process", object)
    for kinds in ("KINDS", "QUEUED"):  # no watch, so that no cluster is asked
        monkeypatch.setattr(main, kinds, ())
    with pytest.raises(Listens) as listens:
        main.serve("", "", "", 9100, 1.0, kubeconfig)
    assert listens.value.args == (9100, address)
