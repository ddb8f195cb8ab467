"""Who may write of two exporters, by the Lease of a real API server. test_exporter_restart.py has the counting."""

import time

from holdfast.clients.api import Api
from holdfast.exporter.lease import Lease
from tests.cluster.sim.world import World


def test_one_of_two_exporters_writes_until_it_lets_go_or_its_term_is_over(world: World, api: Api) -> None:
    now = time.time()
    first, second = (Lease(api, world.name, me=name, clock=lambda: now) for name in ("a", "b"))
    assert first.held() and first.held()
    assert not second.held()
    first.release()
    assert second.held()
    assert not first.held()
    for after_s, held in ((29, False), (31, True)):
        assert Lease(api, world.name, me="next", clock=lambda late_s=after_s: now + late_s).held() is held
