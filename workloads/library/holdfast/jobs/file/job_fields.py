"""The fields of a job file, each with its documentation, its schema and its own limits."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from holdfast.jobs.file import formats, sweep_points
from holdfast.jobs.file.fields import MAX_NODES, TEXTS, WORDS, about, make_metadata
from holdfast.jobs.file.formats import SIZE
from holdfast.support import node_range
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.kubernetes import JOB_PRIORITIES, PRIORITY_NORMAL

AUTO = "auto"
CPU_ONLY = "none"
IN_MEMORY = "memory"
ON_DISK = "disk"
HOUR_S = 3_600.0
MAX_HOURS = 10_000.0
MAX_USD = 10_000_000.0
MAX_WAIT_HOURS = 168.0
MAX_LANES = 20


class OnNotice(StrEnum):
    """The behavior of the program on the preemption of its node."""

    HANDLES = "handles"
    DRAIN = "drain"
    WRAP = "wrap"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFields:
    """A job as its file states it."""

    name: str = about(
        "Name of the run; a job started again under it resumes from its checkpoints.",
        form=formats.NAME,
        maxLength=formats.MAX_NAME,
    )
    environment: str = about("Environment whose pools, buckets and queues it uses.")
    namespace: str = about(
        "Namespace of your team; empty: training, or batch for a batch.", "", form=formats.CLAIM
    )
    image: str = about(
        "NAME@sha256:DIGEST, or a role of the environment: trainer, batch.", minLength=1
    )
    command: tuple[str, ...] = about("What runs in each pod, word by word; no shell.", **WORDS)
    source: str = about(
        "Folder with your code, from the folder of this file. It is packed without what .gitignore"
        f" names, and unpacked read-only to {formats.SOURCE}, where the command starts. Empty: the"
        " image has the code.",
        "",
    )
    source_include: tuple[str, ...] = field(
        default=(),
        metadata=make_metadata(
            "Files of `source` that are packed although .gitignore names them or they look like"
            " secrets. Everyone who may read the namespace can read them.",
            type="array",
            items={"type": "string"},
        ),
    )
    sweep: dict[str, Any] | tuple[dict[str, Any], ...] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Parameters that each pod gets as environment variables and for $(NAME) in `command`."
            " Lists of values by name make a point of every combination; a list of rows has a point"
            " in each row. A point is a run of its own, NAME-0, NAME-1 and so on, and restarts by"
            " itself.",
            **sweep_points.SCHEMA,
        ),
    )
    parallel: int = about(
        "Points of a sweep that run at the same time.",
        4,
        minimum=1,
        maximum=sweep_points.MAX_POINTS,
    )
    gpus: str = about(
        f"GPUs of each node, as 8xa100; {CPU_ONLY}: CPU only. any of 1xl4, 1xa100: the"
        " cheapest first on Spot, the next if it is sold out.",
        CPU_ONLY,
        form=formats.GPUS,
    )
    speeds: dict[str, float] = field(
        default_factory=dict[str, float],
        metadata=make_metadata(
            "GPU -> steps per second that you measured on it, as l4: 2.1. With one"
            " for each GPU of `any"
            " of`, the cheapest per step is first; else the cheapest per hour.",
            type="object",
            additionalProperties={"type": "number", "exclusiveMinimum": 0},
        ),
    )
    nodes: int | str = about(
        "Pods; above 1 they are a gang, unless they are workers: all run or none. 4..8: an elastic"
        " gang, which goes on with at least 4 of 8 nodes, one process for each GPU; with sharded"
        " the nodes divide the state again.",
        1,
        type=["integer", "string"],
        minimum=1,
        maximum=MAX_NODES,
        pattern=node_range.PATTERN,
    )
    sharded: bool = about(
        "The state is sharded over the nodes, as by FSDP2. When a node is lost, the other pods stay"
        " and wait for its replacement, and the gang continues from copies of the shards in"
        " memory.",
        False,
    )
    copies: int = about(
        "Copies of each shard of a sharded gang in the next node's memory; 0: a lost shard is read"
        " from the bucket.",
        1,
        minimum=0,
        maximum=1,
    )
    copies_in: str = about(
        "memory or disk: where each pod of a sharded gang keeps the copies. In memory a pod needs"
        " five times its share of the state, with the disk twice in memory and four times on the"
        " disk, which should be a local SSD.",
        IN_MEMORY,
        enum=[IN_MEMORY, ON_DISK],
    )
    state: str = about(
        "Size of all that a sharded gang saves, as 60Gi, to check that its pods have room for the"
        " copies; empty: unknown.",
        "",
        form=SIZE,
    )
    wait_hours: float = about(
        "Hours for which a sharded gang waits for a lost node; with nodes: 4..8 it waits only below"
        " 4. Then it gives its nodes back, and its queue starts it again later, from the bucket. 0:"
        " 5 minutes.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_WAIT_HOURS,
    )
    priority: str = about(
        "low, normal or high: the order in which the queue starts jobs of your team. A job of high"
        " priority takes the GPUs of lower ones of the team, which continue later; never those of"
        " another team.",
        PRIORITY_NORMAL,
        enum=[PRIORITY_NORMAL, *JOB_PRIORITIES],
    )
    capacity: str = about(
        "Where it runs; auto: as the placement matrix says.",
        AUTO,
        enum=[AUTO, *(capacity.value for capacity in Capacity)],
    )
    hours: float = about(
        "Undisturbed work in hours, or as 90m or 2d, for prices and placement; 0: unknown. With"
        " `any of` and all `speeds`, the hours on the fastest GPU.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    deadline_hours: float = about(
        "Deadline in hours after submission. The job runs on Spot while there is time, and then on"
        " demand. 0: no deadline. Needs `hours`.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_hours: float = about(
        "The job is stopped this many hours after its last start. 0: after twice the bad end that"
        " `holdfast place` prints, a week at least; without `hours` after 30 days.",
        0.0,
        unit_s=HOUR_S,
        minimum=0,
        maximum=MAX_HOURS,
    )
    max_usd: float = about(
        "The platform stops the job, with a last save, before its machines have cost more dollars,"
        " those of all restarts together. `holdfast resume NAME --max-usd` raises it. 0: no limit.",
        0.0,
        minimum=0,
        maximum=MAX_USD,
    )
    resumes: bool = about("Another machine can go on where this one stopped.", True)
    on_notice: str = about(
        "handles: the program handles SIGTERM and then exits non-zero. drain: a preStop hook stops"
        " the process in it that uses holdfast. wrap: the program knows nothing of notices.",
        OnNotice.HANDLES.value,
        enum=[answer.value for answer in OnNotice],
    )
    restarts: int = about(
        "Crashes before the job fails; evictions do not count. A gang on queued flex-start goes"
        " back to its queue so often when its nodes end.",
        3,
        minimum=0,
        maximum=100,
    )
    processes: int = about(
        "Processes that torchrun starts in a pod; 0: one for each GPU.",
        0,
        minimum=0,
        maximum=64,
    )
    data: str = about(
        f"gs://BUCKET/FOLDER, mounted read-only at {formats.DATA}.", "", form=formats.BUCKET
    )
    cache: str = about(
        f"Size of a cache for {formats.DATA}, as 50Gi on the node's disk or `20Gi"
        " memory`. What is read"
        " again comes from there. Only for data that does not change. Empty: none.",
        "",
        form=formats.CACHE,
    )
    output: str = about(
        "gs://BUCKET/FOLDER for results; the job writes below NAME in it, at"
        " HOLDFAST_OUTPUT. Empty:"
        " `output` in the folder of the run's checkpoints.",
        "",
        form=formats.BUCKET,
    )
    checkpoints: str = about(
        "gs://BUCKET of the checkpoints, in HOLDFAST_CHECKPOINTS; empty: the environment's.",
        "",
        form=formats.BUCKET,
    )
    checkpoint_key: str = about(
        "Secret of Secret Manager with the key that signs commits; empty: run-key-NAME of the"
        " namespace where the environment signs.",
        "",
        form=formats.SECRET,
    )
    env: dict[str, str] = field(
        default_factory=dict, metadata=make_metadata("Environment variables.", **TEXTS)
    )
    secrets: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Variable -> secret of Secret Manager, as NAME or NAME/VERSION. It is a file, whose"
            " path is in VARIABLE_FILE.",
            **TEXTS,
        ),
    )
    claims: dict[str, str] = field(
        default_factory=dict,
        metadata=make_metadata(
            "Path -> PersistentVolumeClaim, mounted read-only.",
            **TEXTS,
        ),
    )
    scratch: str = about(
        "Size of /tmp, the only folder that can be written; lost with the pod.", "10Gi", form=SIZE
    )
    shm: str = about("Size of /dev/shm; empty: a quarter of the machine's memory.", "", form=SIZE)
    cpus: float = about(
        "CPUs of a pod without GPUs.",
        4.0,
        minimum=0.1,
        maximum=200,
    )
    memory: str = about("Memory of a pod without GPUs.", "16Gi", form=SIZE)
    predictor: str = about(
        "MODULE:FUNCTION of the image, or gpt, entropy: a batch over `data`, each item once, with"
        " `nodes` workers. `command` is then options of `holdfast batch run`.",
        "",
    )
    rows: str = about(
        "Files of `data` whose rows are the items of the batch, as `*.parquet id prompt`: a name or"
        " pattern, the column with the id and that with the content; without columns `id` and the"
        " whole row. Empty: each file is an item.",
        "",
        form=formats.ROWS,
    )
    lane: int = about(
        "Queue of the batch: the number of a lane on Pub/Sub, which one batch uses at"
        " a time; 0: the results database.",
        0,
        minimum=0,
        maximum=MAX_LANES,
    )
    predict_seconds: float = about(
        "Seconds after which a prediction of a batch counts as hanging; 0: learned, 300 at most.",
        0.0,
        unit_s=1.0,
        minimum=0,
        maximum=86_400,
    )
