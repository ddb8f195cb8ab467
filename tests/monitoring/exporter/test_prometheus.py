"""Metrics hold the names of jobs: outside a pod only this machine may ask for them."""

import pytest

from monitoring.exporter.prometheus import Newest


@pytest.mark.parametrize(("in_pod", "address"), [(False, "127.0.0.1"), (True, "0.0.0.0")])
def test_only_a_pod_serves_to_the_network(in_pod: bool, address: str) -> None:
    server, thread = Newest().serve(0, in_pod=in_pod)
    assert server.server_address[0] == address
    server.shutdown()
    thread.join()
    server.server_close()
