"""How a gang member asks the others, which answer as `control.py` says."""

import hmac
import json
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from holdfast.runtime import logs
from holdfast.training.gang.member_addresses import Address
from holdfast.training.gang.member_server import NONCE_HEADER, SEAL_HEADER, seal
from holdfast.training.gang.membership import Epoch, Member
from holdfast.vocabulary.environment import ENV_KEY_FILE

PROBE_S = 1.0
MAX_ANSWER = 1 << 20
"""The epoch of the largest gang."""


class Peers:
    """The other members, by their place in the Job."""

    def __init__(self, places: tuple[Address, ...], key: bytes, *, ranks: int = 1) -> None:
        """`ranks`: places of each member, which are neighbours."""
        self.addresses = places[::ranks]
        self._key = key
        self.stores = [
            [port + 1 for _, port in places[at : at + ranks]] for at in range(0, len(places), ranks)
        ]
        """Of each member the ports at which groups meet."""
        self._refusing: set[int] = set()
        # All at once: each place that is gone takes PROBE_S, and a lead looks at all of them many
        # times.
        self._pool = ThreadPoolExecutor(
            max_workers=min(64, len(self.addresses) + 1), thread_name_prefix="gang-probe"
        )

    def ask(self, place: int, path: str, timeout_s: float, **body: object) -> dict[str, Any] | None:
        """None: no usable answer in time."""
        host, port = self.addresses[place]
        connection = HTTPConnection(host, port, timeout=timeout_s)
        try:
            nonce = secrets.token_hex(16)
            asked = json.dumps(body).encode()
            headers = {
                NONCE_HEADER: nonce,
                SEAL_HEADER: seal(self._key, b"ask", nonce.encode(), path.encode(), asked),
            }
            connection.request("POST", path, asked, headers)
            response = connection.getresponse()
            answer = response.read(MAX_ANSWER)
            sealed = response.getheader(SEAL_HEADER, "")
            if response.status == HTTPStatus.FORBIDDEN and place not in self._refusing:
                self._refusing.add(place)
                logs.warning(
                    "gang",
                    f"place {place} has another key than this process: mount the same secret in"
                    f" every pod ({ENV_KEY_FILE})",
                )
            # The address of a pod that is gone may be a stranger's by now.
            sound = hmac.compare_digest(
                sealed.encode(), seal(self._key, b"answer", nonce.encode(), answer).encode()
            )
            if sound and response.status == HTTPStatus.OK:
                return read_answer(answer)
            return None
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def look(self, indices: list[int]) -> dict[int, dict[str, Any]]:
        """The status of those that answer, all requested at once."""
        found = self._pool.map(partial(self.ask, path="/status", timeout_s=PROBE_S), indices)
        return {
            index: status
            for index, status in zip(indices, found, strict=True)
            if status is not None
        }

    def answers(self, members: list[Member]) -> dict[Member, dict[str, Any]]:
        """The status of those that live; one that was replaced has another incarnation."""
        status = self.look([member.index for member in members])
        answers = ((member, status.get(member.index, {})) for member in members)
        return {
            member: found
            for member, found in answers
            if found.get("incarnation") == member.incarnation
        }


def read_answer(data: bytes) -> dict[str, Any] | None:
    """None: not what a member answers."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def epoch_of(answer: Mapping[str, Any] | None) -> Epoch | None:
    try:
        if answer and answer.get("epoch"):
            return Epoch.from_json(answer["epoch"])
        return None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
