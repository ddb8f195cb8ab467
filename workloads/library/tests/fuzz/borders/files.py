"""Manifests, job files, environments and plans that others wrote."""

import random
import tempfile
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from holdfast.cost import prices
from holdfast.jobs.file import file_text
from holdfast.jobs.submit import submission
from holdfast.lint import examples, formats
from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.registry import all_rules
from holdfast.place import plan as placement
from holdfast.support.errors import InputError, Unjudged
from infra import environments
from tests import platforms
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import ODD, draw_hostile, hostile_inputs
from workloads.manifests import rendering


@cache
def _list_samples() -> tuple[bytes, ...]:
    """Return the rendered samples of the example platform."""
    samples: list[bytes] = []
    for name, text in rendering.texts(platforms.load("example")).items():
        if name.startswith("samples"):
            samples.append(text.encode())
    return tuple(samples)


def _make_yaml(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        documents = draw.choice(_list_samples()).split(b"\n---\n")
        return draw_hostile((draw.choice(documents),), draw)
    document = next(yaml.safe_load_all(draw.choice(_list_samples())))
    return draw_hostile((document,), draw)


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "a",
                            "operator": "In",
                            "values": ["b"],
                        }
                    ]
                },
            ]
        }
    }
}


@cache
def _list_examples() -> list[Any]:
    """Return the bad examples of all rules, and a pod with a required affinity, which none has."""
    bodies: list[Any] = []
    for rule in all_rules().values():
        if rule.check:
            bodies += examples.build_objects(rule.base, rule.bad)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {
            "affinity": AFFINITY,
            "containers": [{"name": "m", "image": "a"}],
        },
    }
    return [*bodies, pod]


def _make_lint(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return draw_hostile((draw.choice(_list_examples()),), draw)
    return _make_yaml(draw)


def _enter_lint(data: bytes) -> None:
    texts = {"a.yaml": data.decode("utf-8", "replace")}
    report = lint_texts(texts, Options(platforms=[platforms.load("example")]))
    for render in (formats.text, formats.format_json, formats.format_github):
        render(report).encode()


def _enter_submit(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_bytes(data)
        submission.plan(
            submission.check_documents(path, file_text.read_documents(path)),
            platforms.load("example"),
            prices.load(),
            1.0,
        )


def _make_field(draw: random.Random) -> bytes:
    """Return a path of field names, and the index of the odd value to put there."""
    path = []
    node = environments.load(draw.choice(environments.names()))
    while is_dataclass(node):
        name = draw.choice([field.name for field in fields(node)])
        path.append(name)
        node = getattr(node, name)
        if not is_dataclass(node) or draw.random() < 0.2:
            break
    return repr((path, draw.randrange(len(ODD)))).encode()


def _enter_environment(data: bytes) -> None:
    path, index = eval(data, {"__builtins__": {}})  # noqa: S307  made above, one line of literals
    environments.build("prod", lambda: _set_field(environments.load("prod"), path, ODD[index]))


def _set_field(node: Any, path: list[str], value: Any) -> Any:
    if path[1:] and is_dataclass(getattr(node, path[0])):
        inner = _set_field(getattr(node, path[0]), path[1:], value)
    else:
        inner = value
    return replace(node, **{path[0]: inner})


PLAN = {
    "policy": "patient",
    "work_h": 20.0,
    "deadline_h": 40.0,
    "restart_h": 0.1,
    "interval_h": 0.5,
    "checkpoint_h": 0.01,
    "spot_usd": 10.0,
    "on_demand_usd": 30.0,
}


def _enter_plan(data: bytes) -> None:
    """Read a plan from a job's annotation and use it, as the exporter does."""
    plan = placement.parse_plan(data.decode("utf-8", "replace"))
    for standing in placement.Standing:
        plan.move(
            standing,
            now_h=3.0,
            done_h=1.0,
            up=True,
            up_for_h=0.5,
        )


BORDERS = {
    "placement plans": Border(
        make=hostile_inputs(PLAN),
        enter=_enter_plan,
        refusals=(InputError,),
    ),
    "linted files": Border(
        make=_make_lint,
        enter=_enter_lint,
        refusals=(InputError,),
    ),
    "job files": Border(
        make=_make_yaml,
        enter=_enter_submit,
        refusals=(InputError, Unjudged),
    ),
    "environments": Border(
        make=_make_field,
        enter=_enter_environment,
        refusals=(InputError,),
    ),
}
