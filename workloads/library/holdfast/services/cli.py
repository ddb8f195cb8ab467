"""The command of services. Imports are in the body, so that --help is quick."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.vocabulary.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from holdfast.clients.api import Api
    from holdfast.platform import Platform


def new_service(
    name: Annotated[str, typer.Argument(help="Name of the service.")],
    model: Annotated[
        str | None, typer.Option(help="gs://BUCKET/FOLDER of a model that vLLM serves.")
    ] = None,
    predictor: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION of the image, for other models.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="NAME@sha256:DIGEST; default: the environment's.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="GPUs of a replica, such as 1xl4.")] = "1xl4",
    base: Annotated[
        int | None, typer.Option(help="Replicas on demand; default: as the promise needs.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="FIELD=VALUE of the service file: promised_per_s=80, namespace=TEAM."
        ),
    ] = None,
    model_copy: Annotated[
        Path | None,
        typer.Option(help="Copy of the model's folder on this machine, to check its size."),
    ] = None,
    platform: Annotated[
        Path | None,
        typer.Option("--platform", help="platform.json; default: that of the cluster."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The service file; default: NAME.yaml.")] = None,
) -> None:
    """Write the file of a service that answers requests with a model or a predictor."""
    from holdfast.clients.api import Api
    from holdfast.cost import prices
    from holdfast.jobs import output
    from holdfast.platform.cluster import choose, find_nearest
    from holdfast.services import live_service, prepared_service
    from holdfast.services.file import file_text
    from holdfast.services.plan import predictor_check

    document = find_nearest(platform)
    api = None
    if document is None:
        api = Api()
        document = choose(api, None)
    optional = {
        "model": model,
        "predictor": predictor,
        "image": image,
        "base": base,
    }
    values: dict[str, Any] = {"name": name, "environment": document.name, "gpu": gpu}
    for key, value in optional.items():
        if value is not None:
            values[key] = value
    service = file_text.assign(assignments or (), values)
    if api is not None:
        live_service.require_new(api, name, service.home)
    prepared = prepared_service.prepare(service, document, model_copy)
    notes = [*prepared.notes, *predictor_check.check(service, Path.cwd())]
    file = out or Path(f"{name}.yaml")
    file_text.write(file, file_text.dump(service))
    purchase_plan = prepared_service.plan(prepared, prices.load())
    output.print_plan(purchase_plan, str(file))
    price = prepared_service.describe_price(service, purchase_plan)
    for line in (price, *notes, f"wrote {file}"):
        output.note(line)
    output.note(f"Next: holdfast submit {file}")


def submit_service(
    document: Any,
    file: Path,
    platform: "Platform",
    api: "Api | None",
    *,
    cap: float | None,
    write: Path | None,
    replace: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show the price of a service file and start it, or roll out what changed.

    Without `api` nothing is sent. Exits with 4 over the cap.
    """
    from holdfast.cost import prices
    from holdfast.jobs import output
    from holdfast.jobs.submit import prepared_job
    from holdfast.services import live_service, prepared_service

    prepared = prepared_service.read_service(document, str(file), platform)
    purchase_plan = prepared_service.plan(prepared, prices.load(), cap)
    if as_json:
        output.print_body(purchase_plan.as_json())
    else:
        output.print_plan(purchase_plan, str(file))
    price = prepared_service.describe_price(prepared.service, purchase_plan)
    for line in (price, *prepared.notes):
        output.note(line)
    for refusal in purchase_plan.refusals:
        output.note(f"refused: {refusal}")
    if purchase_plan.refusals:
        raise typer.Exit(EXIT_STOPPED)
    if write:
        prepared_job.write_manifest(purchase_plan, write / file.name)
    if api is None:
        return
    for change in live_service.compare(api, prepared, replace=replace):
        output.note(f"roll-out: {change}")
    output.ask_to_start(yes)
    for line in live_service.start(api, prepared):
        output.note(line)
    output.note(f"Next: holdfast explain {prepared.service.name}")
