"""Tests of service files: what the commands refuse, and what they write and price."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from holdfast.clients.api import Object
from holdfast.commands import app
from holdfast.services.file import file_text, service_file
from holdfast.services.file.service_file import ServiceSpec
from holdfast.support.errors import InputError, Stopped
from tests.infra.ops.google import Gcloud
from tests.platforms import with_images, write_document
from workloads.library.tests.services import example_services

GIB = 2**30
CONFIG = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072,
}
CHECKPOINTS = with_images("example").buckets["checkpoints"]
MODEL = {"--model": "gs://models/llama", "--base": "1"}
PREDICTOR = {"--predictor": "entropy", "--base": "1"}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return write_document(with_images("example"), tmp_path / "platform")


def write_model(folder: Path, gib: int, config: object = CONFIG) -> Path:
    """Writes a model's folder with weights of a size, as a file with a hole."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(gib * GIB)
    return folder


def new_service(document: Path, out: Path, options: dict[str, str]) -> Result:
    words = ["new-service", "chat", "--platform", str(document), "--out", str(out)]
    for name, value in options.items():
        words += ["--set", f"{name}={value}"] if "_per_s" in name else [name, value]
    return CliRunner().invoke(app, words, catch_exceptions=True)


CASES: dict[str, tuple[dict[str, str], str, str]] = {
    "neither model nor predictor": ({"--base": "1"}, "model and predictor", "--predictor"),
    "both": (MODEL | {"--predictor": "entropy"}, "model and predictor", "--model"),
    "no bucket": (MODEL | {"--model": "/models/llama"}, "model", "gs://"),
    "no function": (PREDICTOR | {"--predictor": "my_model"}, "predictor", "my_model:make"),
    "no replicas": ({"--predictor": "entropy"}, "replicas", "--base 1"),
    "zero replicas": ({"--predictor": "entropy", "--base": "0"}, "replicas", "--base 1"),
    "base of 0 with a promise": (
        {
            "--predictor": "entropy",
            "--base": "0",
            "promised_per_s": "80",
            "replica_per_s": "50",
        },
        "base keeps no promise",
        "leave base out",
    ),
    "base below the promise": (
        PREDICTOR | {"promised_per_s": "80", "replica_per_s": "50"},
        "base keeps no promise",
        "raise base, promise less",
    ),
    "promise without a measurement": (
        PREDICTOR | {"promised_per_s": "80"},
        "replica_per_s",
        "measure a replica",
    ),
    "peak below the promise": (
        PREDICTOR | {"promised_per_s": "80", "peak_per_s": "40", "replica_per_s": "50"},
        "promised_per_s",
        "raise the peak",
    ),
    "choice of GPUs": (PREDICTOR | {"--gpu": "any of 1xl4, 1xa100"}, "gpu", "write it as"),
    "GPU that no pool has": (PREDICTOR | {"--gpu": "8xh100"}, "on demand with role", "another gpu"),
    "more than the pool holds": (PREDICTOR | {"--base": "40"}, "most replicas", "raise max_nodes"),
    "one replica on Spot": (PREDICTOR | {"--set": "overflow_most=1"}, "overflow_most", "2"),
    "room for a base that is not there": (
        {"--predictor": "entropy", "--set": "base_most=4", "peak_per_s": "200"}
        | {"replica_per_s": "50"},
        "base_most",
        "state base too",
    ),
    "deadline above the notice": (PREDICTOR | {"--set": "deadline_s=30"}, "deadline_s", "lower it"),
    "kernels of a predictor": (
        PREDICTOR | {"--set": "compile_cache=gs://kernels"},
        "compile_cache",
        "leave it out",
    ),
    "kernels in no bucket": (
        MODEL | {"--set": "compile_cache=/tmp/kernels"},
        "compile_cache",
        "gs://",
    ),
    "kernels in a folder that no store takes": (
        MODEL | {"--set": "compile_cache=gs://kernels/v1..2"},
        "compile_cache",
        "gs://",
    ),
    "kernels where others write": (
        MODEL | {"--set": f"compile_cache=gs://{CHECKPOINTS}"},
        "others may write there",
        "buckets create",
    ),
    "deadline of a stream": (MODEL | {"--set": "deadline_s=5"}, "deadline_s", "leave it out"),
    "callers that are no namespace": (
        PREDICTOR | {"--set": "callers=nobody"},
        "callers",
        "cluster",
    ),
    "sleeping predictor": (
        PREDICTOR | {"--set": "least_replicas=0"},
        "least_replicas",
        "holdfast stop",
    ),
    "sleep with a promise": (
        MODEL | {"--set": "least_replicas=0", "promised_per_s": "8", "replica_per_s": "10"},
        "least_replicas",
        "leave out least_replicas, or promised_per_s",
    ),
    "fewest replicas of two": (MODEL | {"--set": "least_replicas=2"}, "least_replicas", "number"),
    "idle time of a service that stays": (
        MODEL | {"--set": "idle_minutes=60"},
        "idle_minutes",
        "least_replicas: 0",
    ),
    "nobody may call": (PREDICTOR | {"--set": "callers="}, "callers", "namespaces"),
    "image by tag": (PREDICTOR | {"--image": "mine:v1"}, "without a digest", "imagetools"),
    "public without TLS": (
        PREDICTOR | {"--set": "reach=external"},
        "a public service without TLS",
        "ssl-certificates create",
    ),
    "caller of a service that is not public": (
        PREDICTOR | {"--set": "members=group:a@b.org"},
        "members",
        "reach: external",
    ),
    "reach that is none": (PREDICTOR | {"--set": "reach=world"}, "reach", "choose one"),
    "unknown field": (PREDICTOR | {"--set": "color=blue"}, "unknown field", "service.schema.json"),
    "number that is none": (PREDICTOR | {"--set": "inflight=many"}, "inflight", "quotes"),
    "quota without keys": (
        PREDICTOR | {"--set": "quota_per_s=5"},
        "quota_per_s",
        "keys: SECRET",
    ),
    "keys are no Secret's name": (PREDICTOR | {"--set": "keys=sk_0123"}, "keys", "another name"),
    "field given twice": (PREDICTOR | {"--set": "base=2"}, "--set", "--set inflight=16"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_before_a_file_is_written(
    case: str, tmp_path: Path, document: Path
) -> None:
    options, problem, fix = CASES[case]
    out = tmp_path / "chat.yaml"
    error = new_service(document, out, options).exception
    assert isinstance(error, InputError)
    assert problem in error.what
    assert fix in error.fix
    assert error.got
    assert error.allowed
    assert not out.exists()


def test_a_service_without_a_replica_is_refused_with_the_reason(
    tmp_path: Path, document: Path
) -> None:
    options = {"--predictor": "entropy", "--base": "0"}
    error = new_service(document, tmp_path / "chat.yaml", options).exception
    assert isinstance(error, InputError)
    assert "a model that may sleep has least_replicas: 0 besides" in error.allowed


def test_public_services_name_members_where_allowed(
    tmp_path: Path,
) -> None:
    example = with_images("example")
    options = ["--predictor", "entropy", "--base", "1", "--set", "reach=external"]
    options += ["--set", "hostname=chat.example.org", "--set", "certificate=chat"]
    members = ["--set", "members=group:team@example.org"]
    keys = ["--set", "keys=chat-keys"]
    for allows, extra, problem in (
        (True, [], "a public service that does not say who may call"),
        (False, members, "reach: example does not offer it"),
        (True, keys, "keys of a public service: example does not offer it"),
        (True, [*members, *keys], "keys"),
        (True, members, ""),
    ):
        network = replace(example.network, public_services=allows)
        folder = tmp_path / f"{allows}-{len(extra)}"
        document = write_document(replace(example, network=network), folder)
        out = folder / "chat.yaml"
        words = ["new-service", "chat", "--platform", str(document), "--out", str(out)]
        result = CliRunner().invoke(app, [*words, *options, *extra])
        if problem:
            assert isinstance(result.exception, InputError)
            assert result.exception.what.removeprefix("new-service: ") == problem
        else:
            assert result.exit_code == 0, result.output
            assert "gcloud iap web add-iam-policy-binding" in result.stderr


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic(
    tmp_path: Path, document: Path
) -> None:
    out = tmp_path / "chat.yaml"
    copy = {"--model-copy": str(write_model(tmp_path / "llama", 16))}
    error = new_service(document, out, MODEL | copy).exception
    assert isinstance(error, InputError)
    assert error.what == "the GPU is too small for the model"
    assert "16.0 GiB of weights + 16.0 GiB of cache for one request of 131,072" in error.got
    assert "1 x (0.9 x 24 GiB - 1.5 GiB) = 20.1 GiB" in error.allowed
    assert error.fix.startswith("--set context=32768")
    fitting = new_service(document, out, MODEL | copy | {"--set": "context=8192"})
    assert fitting.exit_code == 0, fitting.output
    assert "16.0 GiB of weights + 1.0 GiB of cache" in fitting.stderr


@pytest.mark.parametrize(
    ("gib", "files", "got"),
    [
        (1, {"config.json": None}, "no config.json"),
        (1, {"model-00001-of-00001.safetensors": None}, "no *.safetensors"),
        (1, {"config.json": "{"}, "not JSON"),
        (1, {"config.json": "[]"}, "no object"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(
    gib: int, files: dict[str, str | None], got: str, tmp_path: Path, document: Path
) -> None:
    folder = write_model(tmp_path / "llama", gib)
    for name, text in files.items():
        (folder / name).unlink()
        if text is not None:
            (folder / name).write_text(text)
    options = MODEL | {"--model-copy": str(folder)}
    error = new_service(document, tmp_path / "chat.yaml", options).exception
    assert isinstance(error, InputError)
    assert got in error.got


def list_objects(**sizes: int) -> list[Object]:
    """Returns objects of a bucket as gcloud lists them; `_` is a dot of the name."""
    listing: list[dict[str, Any]] = []
    for name, size in sizes.items():
        listing.append({"name": f"llama/{name.replace('_', '.')}", "size": size})
    return listing


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        (list_objects(config_json=100, model_safetensors=16 * GIB), "the GPU is too small"),
        (list_objects(model_safetensors=GIB), "the model cannot be loaded"),
        (list_objects(config_json=100), "the model has no weights"),
        (list_objects(config_json=100, model_safetensors=GIB), ""),
    ],
)
def test_bucket_models_are_checked(
    objects: list[Object], problem: str, tmp_path: Path, document: Path, gcloud: Gcloud
) -> None:
    gcloud.answer("storage objects list gs://models/llama/*", objects)
    gcloud.answer("storage cat gs://models/llama/config.json", CONFIG)
    result = new_service(document, tmp_path / "chat.yaml", MODEL)
    if problem:
        assert isinstance(result.exception, InputError)
        assert problem in result.exception.what
    else:
        assert result.exit_code == 0, result.output
        assert "the model fits: 1.0 GiB of weights" in result.stderr


def test_models_that_nobody_can_read_are_said_to_be_unchecked(
    tmp_path: Path, document: Path, gcloud: Gcloud
) -> None:
    gcloud.refuse("storage objects list", "ERROR: (gcloud.storage) 403 no access")
    result = new_service(document, tmp_path / "chat.yaml", MODEL)
    assert result.exit_code == 0
    assert "the model was not checked" in result.stderr
    gcloud.refuse("storage objects list", "ERROR: (gcloud.storage) matched no objects or files")
    result = new_service(document, tmp_path / "other.yaml", MODEL)
    assert isinstance(result.exception, InputError)
    assert result.exception.what == "the model cannot be loaded"


def test_a_file_is_written_into_a_new_folder(tmp_path: Path, document: Path) -> None:
    out = tmp_path / "services" / "team" / "chat.yaml"
    result = new_service(document, out, PREDICTOR)
    assert result.exit_code == 0, result.output
    assert out.exists()


def test_a_file_that_is_no_text_stays(tmp_path: Path, document: Path) -> None:
    out = tmp_path / "chat.yaml"
    out.write_bytes(b"\xff\xfe")
    error = new_service(document, out, PREDICTOR).exception
    assert isinstance(error, InputError)
    assert error.what == "a file with something else in it"
    assert out.read_bytes() == b"\xff\xfe"


def test_copies_that_do_not_exist_are_named(tmp_path: Path, document: Path) -> None:
    copy = tmp_path / "nothing"
    options = MODEL | {"--model-copy": str(copy)}
    error = new_service(document, tmp_path / "chat.yaml", options).exception
    assert isinstance(error, InputError)
    assert error.got == f"{copy}: no such folder"
    assert "--model-copy" in error.fix


REASONS = {
    "import fails": "broken_model:make: No module named 'nothing_of_this_name'",
    "no such function": "broken_model:make: module 'broken_model' has no attribute 'make'",
    "no predictor": "'int' object has no attribute 'configuration'",
    "load fails": "no weights here",
}
BROKEN = {
    "import fails": "import nothing_of_this_name\n",
    "no such function": "def other(spec):\n    return spec\n",
    "no predictor": "def make(spec):\n    return 3\n",
    "load fails": (
        "class Model:\n    configuration = {}\n    predict = len\n"
        "    def load(self):\n        raise OSError('no weights here')\n"
        "def make(spec):\n    return Model()\n"
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_predictor_that_does_not_load_is_refused(
    case: str, tmp_path: Path, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_model.py").write_text(BROKEN[case])
    monkeypatch.chdir(tmp_path)
    options = {"--predictor": "broken_model:make", "--base": "1"}
    error = new_service(document, tmp_path / "chat.yaml", options).exception
    assert isinstance(error, InputError)
    assert error.what == "the predictor does not load"
    assert REASONS[case] in error.got
    assert "InputError" not in error.got
    assert not (tmp_path / "chat.yaml").exists()


def test_only_local_predictors_are_loaded(
    tmp_path: Path, document: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = BROKEN["load fails"].replace("raise OSError('no weights here')", "pass")
    (tmp_path / "whole_model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for module, note in (("whole_model", ""), ("in_the_image", "not loaded here")):
        options = {"--predictor": f"{module}:make", "--base": "1"}
        result = new_service(document, tmp_path / f"{module}.yaml", options)
        assert result.exit_code == 0, result.output
        assert note in result.stderr
        assert ("not loaded here" in result.stderr) == bool(note)


def test_the_price_names_base_standby_and_overflow(tmp_path: Path, document: Path) -> None:
    out = tmp_path / "chat.yaml"
    options = {
        "--predictor": "entropy",
        "--set": "standby=1",
        "promised_per_s": "60",
        "peak_per_s": "160",
        "replica_per_s": "50",
    }
    result = new_service(document, out, options)
    assert result.exit_code == 0, result.output
    words = ["submit", str(out), "--platform", str(document), "--dry-run", "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    plan = json.loads(result.stdout)
    pods = {}
    for purchase in plan["purchases"]:
        pods[purchase["job"]] = purchase["pods"]
    assert pods == {"chat-base": 2, "chat-base standby": 1, "chat-overflow": 2}
    assert "always $" in result.stderr
    usd = plan["usd_per_hour"]
    for cap, code in ((usd, 0), (usd - 0.01, 4)):
        limit = ["--max-usd-per-hour", str(cap)]
        result = CliRunner().invoke(app, [*words, *limit])
        assert result.exit_code == code


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    service = ServiceSpec(
        name="a",
        environment="example",
        predictor="m:f",
        gpu="1xl4",
        base=2,
        options=("--batch", "8"),
        callers=("serving", "batch"),
    )
    text = file_text.dump(service)
    assert file_text.parse(YAML(typ="safe").load(text), "a.yaml") == service


@pytest.mark.parametrize("name", example_services.NAMES)
def test_the_examples_and_the_schema_are_current(name: str) -> None:
    schema = file_text.make_schema()
    path = Path(service_file.__file__).with_name("service.schema.json")
    assert json.loads(path.read_text()) == schema, (
        f"write it again: python -c 'import json; from holdfast.services.file import file_text;"
        f" print(json.dumps(file_text.make_schema(), indent=2))' > {path}"
    )
    example = (example_services.FOLDER / f"{name}.yaml").read_text()
    document: dict[str, Any] = YAML(typ="safe").load(example)
    jsonschema.validate(document, schema)
    assert example == file_text.dump(example_services.read(name))


@pytest.mark.parametrize("other", ["service", "manifest"])
def test_service_file_with_a_second_document_is_refused(
    tmp_path: Path, document: Path, other: str
) -> None:
    service = file_text.dump(example_services.read(example_services.NAMES[0]))
    second = service if other == "service" else "kind: ConfigMap\n"
    path = tmp_path / "two.yaml"
    path.write_text(f"{service}---\n{second}")
    words = [
        "submit",
        str(path),
        "--dry-run",
        "--platform",
        str(document),
    ]
    with pytest.raises(InputError, match=r"more than a service.*2 documents"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_services_for_other_environments_are_stopped(tmp_path: Path) -> None:
    document = write_document(with_images("prod"), tmp_path)
    words = ["submit", str(example_services.FOLDER / "scores.yaml"), "--platform", str(document)]
    error = CliRunner().invoke(app, [*words, "--dry-run"]).exception
    assert isinstance(error, Stopped)
