"""Connecting when the lead, which hosts the store, is frozen: its kernel still accepts, and nobody answers."""

import signal
import subprocess
import sys

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


def test_a_lead_that_is_frozen_while_others_connect_holds_nobody() -> None:
    members = (Member(index=0, incarnation="a"), Member(index=1, incarnation="b"))
    addresses = tuple(("127.0.0.1", port) for port in free_ports(2))
    command = [sys.executable, "-c", HOST, str(addresses[0][1] + 1)]
    lead = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert lead.stdout and lead.stdout.readline() == "up\n"
    lead.send_signal(signal.SIGSTOP)
    group = Group(addresses, members[1], torch.device("cpu"), key=b"s")
    try:
        with pytest.raises(GroupLost):
            group.open(Epoch(number=1, members=members), 2.0)
    finally:
        lead.kill()
        lead.communicate()
