"""Connecting when the lead, which hosts the store, is frozen: its kernel still accepts, and nobody answers."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from holdfast.training.elastic.group import Group
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.errors import GroupLost
from workloads.library.tests.training.elastic.gangs import free_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

HOST = """
import sys, time
from datetime import timedelta
from holdfast.training.gate import Gate
gate = Gate(int(sys.argv[1]), b"s", timeout=timedelta(seconds=10))
print("up", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def frozen_lead() -> Iterator[int]:
    """Its control port; the store is on the one above."""
    port = free_ports(1)[0]
    with subprocess.Popen([sys.executable, "-c", HOST, str(port + 1)], stdout=subprocess.PIPE, text=True) as lead:
        assert lead.stdout and lead.stdout.readline() == "up\n"
        lead.send_signal(signal.SIGSTOP)
        yield port
        lead.kill()


def test_a_lead_that_is_frozen_while_others_connect_holds_nobody(frozen_lead: int) -> None:
    members = (Member(index=0, incarnation="a"), Member(index=1, incarnation="b"))
    addresses = (("127.0.0.1", frozen_lead), ("127.0.0.1", free_ports(1)[0]))
    group = Group(addresses, members[1], torch.device("cpu"), key=b"s")
    # As the uploader's, which has no address: it is looked at as well.
    of_no_network = socket.socketpair()
    with of_no_network[0], of_no_network[1], pytest.raises(GroupLost):
        group.open(Epoch(number=1, members=members), 2.0)
