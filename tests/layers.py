"""The layers of the tree: which room may import which, and which modules of a room others may import."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
# The library's public face: all that the platform may import of it.
PUBLIC = {
    "holdfast.checks",
    "holdfast.clients.api",
    "holdfast.clients.gcloud",
    "holdfast.command_line",
    "holdfast.contract",
    "holdfast.ledger.money",
    "holdfast.lint.admission",
    "holdfast.manifests",
    "holdfast.place.prices",
    "holdfast.platform",
    "holdfast.tables",
}
SHARED = {"checkpoint.errors", "checkpoint.failpoints", "checkpoint.settings"}
# room -> rooms it may import beside itself and the vocabulary. The longest matching prefix of a module decides its room.
LIBRARY_ROOMS: dict[str, set[str]] = {
    "contract": set(),
    "tables": set(),
    "checks": {"tables"},
    "clients": set(),
    "platform": {"clients"},
    "runtime": set(),
    "checkpoint": {"runtime", "tables"},
    # Its rooms, from the store up. The modules above them are the API and what the rooms share.
    "checkpoint.stores": {"runtime", *SHARED},
    "checkpoint.format": {"checkpoint.stores", *SHARED},
    "checkpoint.state": {"checkpoint.format", *SHARED},
    "checkpoint.peers": {"checkpoint.stores", "checkpoint.format", *SHARED},
    "checkpoint.restore": {
        "runtime",
        "checkpoint.ranks",
        "checkpoint.stores",
        "checkpoint.format",
        "checkpoint.state",
        "checkpoint.peers",
        *SHARED,
    },
    "checkpoint.save": {
        "runtime",
        "checkpoint.ranks",
        "checkpoint.cadence",
        "checkpoint.stores",
        "checkpoint.format",
        "checkpoint.state",
        "checkpoint.restore",
        "checkpoint.peers",
        *SHARED,
    },
    "training": {"runtime", "checkpoint"},
    "inference": {"runtime"},
    "inference.errors": set(),
    "inference.items": {"inference.errors"},
    "inference.values": set(),
    "inference.queue": {"inference.errors", "inference.items"},
    "inference.results": {"inference.errors", "inference.items", "inference.queue"},
    # A model's code runs there, so no database.
    "inference.predictor": {"runtime", "checkpoint", "training.model", "inference.errors", "inference.values"},
    "inference.worker": {
        "runtime",
        "inference.errors",
        "inference.items",
        "inference.predictor",
        "inference.queue",
        "inference.results",
        "inference.values",
    },
    "inference.server": {
        "runtime",
        "checkpoint",
        "inference.errors",
        "inference.values",
        "inference.predictor",
        "inference.proxy",
    },
    "inference.proxy": {"runtime", "clients.watch"},
    # The one arithmetic of useful time; money and receipts price it by the table of `place`.
    "ledger": set(),
    "ledger.command": {"ledger.receipt"},
    "ledger.money": {"ledger", "place"},
    "ledger.receipt": {"ledger", "place", "clients"},
    "place": {"tables", "platform", "clients", "place.churn"},
    "place.churn": {"ledger", "clients"},
    "manifests": {"platform"},
    "lint": {"platform", "clients", "manifests.waiting_for_pods"},
    "jobs": {"tables", "platform", "clients", "place", "manifests", "lint", "ledger"},
    "exporter": {"runtime", "clients", "ledger", "place"},
    # It sees what the exporter sees; what a policy does is decided where it was priced.
    "mover": {"runtime", "clients", "ledger", "place", "exporter"},
    "report": {"ledger", "place.churn"},
    "drill": {
        "tables",
        "platform",
        "clients",
        "runtime",
        "ledger",
        "jobs.job_snapshot",
        # The proxy before local servers is the one that is rendered, and its endpoints are written as in a cluster.
        "inference.proxy.endpoints",
        "manifests.envoy",
    },
    # The naive twin is the trainer without its care: the same model, data and flags.
    "drill.naive": {"runtime", "training"},
    "command_line": set(),
    "commands": {
        "checkpoint.cli",
        "drill.cli",
        "exporter.command",
        "inference.cli",
        "inference.server.cli",
        "jobs.cli",
        "ledger.command",
        "lint.cli",
        "mover.command",
        "place.cli",
        "report.command",
        "training.cli",
    },
    "cli": {"command_line", "commands"},
    "__main__": {"cli"},
}
PLATFORM_ROOMS: dict[str, set[str]] = {
    "infra.contract": set(),
    "infra.environments": {"infra.contract"},
    "infra.specs": {"infra.contract", "infra.environments"},
    "infra.rules": {"infra.contract", "infra.environments", "infra.specs"},
    "infra.cdk": set(),
    "infra.stacks": {"infra.contract", "infra.environments", "infra.specs", "infra.cdk"},
    # An environment as data: the one way by which the cluster's half knows it.
    "infra.describe": {"infra.contract", "infra.environments"},
    # The composition root, so the only one that knows the stack of another folder.
    "infra.main": {
        "infra.environments",
        "infra.rules",
        "infra.specs.outputs",
        "infra.stacks",
        "infra.cdk",
        "monitoring.stack",
    },
    "infra.ops": {"infra.contract", "infra.environments", "infra.specs", "infra.rules"},
    "infra.__main__": {
        "infra.contract",
        "infra.describe",
        "infra.environments",
        "infra.ops",
        "infra.rules",
        "infra.specs",
    },
    "workloads.manifests": {"infra.describe", "infra.environments"},
    "workloads.images": {"infra.contract.versions", "infra.describe", "workloads.operators.catalogue"},
    # Its doctor asks whether the series that alerts read exist.
    "workloads.operators": {
        "infra.contract.versions",
        "infra.describe",
        "infra.environments",
        "monitoring.alerting",
        "workloads.manifests.rendering",
    },
    "workloads.__main__": {
        "infra.contract.interpreter",
        "workloads.images",
        "workloads.manifests",
        "workloads.operators",
    },
    "monitoring.alerting": {"infra.environments"},
    "monitoring.stack": {"infra.contract", "infra.environments", "infra.cdk", "monitoring.alerting"},
    "monitoring.__main__": {"infra.contract.interpreter", "monitoring.alerting"},
}
CONTRACT = "holdfast.contract"
MAY_IMPORT = {
    f"holdfast.{room}": {CONTRACT, *(f"holdfast.{other}" for other in others)} for room, others in LIBRARY_ROOMS.items()
} | {room: PUBLIC | others for room, others in PLATFORM_ROOMS.items()}
# room -> what of it is public: all that others may import.
FACES = {
    "holdfast.checkpoint": {
        "holdfast.checkpoint",
        "holdfast.checkpoint.cli",
        "holdfast.checkpoint.dcp",
        "holdfast.checkpoint.errors",
        "holdfast.checkpoint.failpoints",
        "holdfast.checkpoint.parts",
        "holdfast.checkpoint.stores",
    },
}
# Tests and measurements of a room, which look inside.
INSIDERS = {
    "holdfast.checkpoint": ("checkpoint/", "bench/checkpoint", "fuzz/borders/checkpoints.py", "gpu/test_checkpoint")
}
MOST_MODULES = 25
PACKAGES = ("holdfast", "infra", "workloads", "monitoring")
LIBRARY = ROOT / "workloads" / "library"
