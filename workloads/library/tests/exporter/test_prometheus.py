"""Metrics hold the names of jobs: outside a pod only this machine may ask for them."""

import pytest
from prometheus_client import generate_latest

from holdfast.exporter import main
from holdfast.exporter.prometheus import Newest
from holdfast.exporter.sample import sample


@pytest.mark.parametrize(("in_pod", "address"), [(False, "127.0.0.1"), (True, "0.0.0.0")])
def test_only_a_pod_serves_to_the_network(in_pod: bool, address: str) -> None:
    server, thread = Newest().serve(0, in_pod=in_pod)
    assert server.server_address[0] == address
    server.shutdown()
    thread.join()
    server.server_close()


def test_series_of_one_metric_may_differ_in_their_labels() -> None:
    """A job whose indices train apart, and another that is one run."""
    newest = Newest()
    newest.show([sample("goodput_ratio", 0.5, job="a", index="1"), sample("goodput_ratio", 1, job="b")])
    text = generate_latest(newest.registry).decode()
    assert 'index="1",job="a"} 0.5' in text and 'job="b"} 1.0' in text


@pytest.mark.parametrize(("kubeconfig", "in_pod"), [("", True), ("of-somebody", False)])
def test_whoever_looks_with_a_kubeconfig_is_no_pod(
    kubeconfig: str, in_pod: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def serve(_: Newest, port: int, *, in_pod: bool = False) -> None:
        raise Asked(port, in_pod)

    monkeypatch.setattr(Newest, "serve", serve)
    monkeypatch.setattr(main, "connect", str)  # no client
    monkeypatch.setattr(main.shutdown, "of_process", object)
    for kinds in ("KINDS", "QUEUED"):  # no watch, so that no cluster is asked
        monkeypatch.setattr(main, kinds, ())
    with pytest.raises(Asked) as asked:
        main.serve("", "", "", None, None, 9100, 1.0, kubeconfig)
    assert asked.value.args == (9100, in_pod)
