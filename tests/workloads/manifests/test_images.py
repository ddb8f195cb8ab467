"""Images by role: one Dockerfile, a lock for each group, and the library's wheel."""

import re
from typing import Any

from typer.main import get_command

from holdfast.commands import app as holdfast
from holdfast.manifests.database import PROXY
from holdfast.manifests.serving_proxy import ENVOY
from holdfast.manifests.serving_vllm import VLLM
from tests.platforms import names
from tests.workloads.manifests.rendered import ROOT, images, workloads
from workloads.images import pins
from workloads.manifests import gpu_metrics

DOCKERFILE = (ROOT / "workloads/images/Dockerfile").read_text()


def test_every_image_that_a_pod_runs_is_one_that_is_built_or_copied() -> None:
    assert images(names()) == {*pins.ROLES, PROXY, ENVOY, VLLM, gpu_metrics.NAME}


def test_an_image_is_pinned_unprivileged_and_gets_its_signals() -> None:
    text = DOCKERFILE
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases and set(bases) == {"${BASE}"}, "a base with a tag of its own would move"
    assert "--require-hashes" in text and "--only-binary :all:" in text
    assert "--no-index --no-deps" in text, "the wheel brings nothing that the lock does not name"
    assert text.index("\nUSER 65532:65532\n") < text.index("RUN python -m holdfast ${COMMAND} --help > /dev/null")
    assert re.search(r'^ENTRYPOINT \["python", "-m", "holdfast"\]$', text, re.MULTILINE), "a shell would keep SIGTERM"


def test_no_image_asks_for_every_gpu_of_its_machine() -> None:
    assert not re.search(r"^[^#\n]*NVIDIA_VISIBLE_DEVICES", DOCKERFILE, re.MULTILINE)


def test_a_builder_is_sent_locks_and_the_wheel_only() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "whatever is not named stays out"
    copies = re.findall(r"^COPY (?!--from)(\w+)/", DOCKERFILE, re.MULTILINE)
    assert [line[1:] for line in lines if line.startswith("!")] == copies == ["requirements", "vendor"]
    assert {"**/*.tfstate*", "**/.env*"} <= set(lines)


def test_every_pod_runs_the_command_that_its_image_was_tried_with(env: str) -> None:
    """Or another one of the same extra, as the batch image loads, drains and migrates."""
    for _, template in workloads(env):
        for container in template["spec"]["containers"]:
            role = container["image"].partition("@")[0].rpartition("/")[2]
            if role in ("exporter", "mover"):
                assert container["command"][2:4] == ["holdfast", pins.ROLES[role].command]


def test_every_rendered_command_is_one_that_its_command_line_understands() -> None:
    commands = {
        tuple(container["command"])
        for env in names()
        for _, template in workloads(env)
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]
        if container.get("command", [ENVOY])[0]
        not in (ENVOY, VLLM, "/usr/bin/dcgm-exporter")  # not ours; workloads/library/tests/drill starts Envoy with this
    }
    assert len(commands) >= 5
    for python, flag, program, *words in commands:
        assert (python, flag, program) == ("python", "-m", "holdfast")
        command: Any = get_command(holdfast)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)  # raises what Typer refuses
