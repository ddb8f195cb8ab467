"""Data that members of an elastic gang read: epochs in the bucket, answers over HTTP."""

import json

from holdfast.support import object_names
from holdfast.support.errors import InputError
from holdfast.training.gang import membership, peer_client
from workloads.library.tests.fuzz.borders.memory import Memory
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import hostile_inputs

RUN = "run"
MEMBERS = (membership.Member(index=0, incarnation="a"), membership.Member(index=2, incarnation="b"))
EPOCH = json.loads(json.dumps(membership.Epoch(number=1, members=MEMBERS).to_json()))
ANSWER = {
    "index": 0,
    "incarnation": "a",
    "phase": "member",
    "epoch": EPOCH,
}


def _enter_epoch(data: bytes) -> None:
    membership.read_epoch(Memory({object_names.gang_object(RUN, 1): data}), RUN, 1)


def _enter_answer(data: bytes) -> None:
    peer_client.parse_epoch(peer_client.read_answer(data))


BORDERS = {
    "gang epochs": Border(
        make=hostile_inputs(EPOCH),
        enter=_enter_epoch,
        refusals=(InputError,),
    ),
    "gang answers": Border(make=hostile_inputs(ANSWER), enter=_enter_answer),
}
