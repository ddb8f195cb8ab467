"""Text streams through the router while servers are evicted, killed and frozen.

`make bench-llm` runs all of it, in about 20 minutes. Parts and smaller forms:

    python -m workloads.library.tests.bench.llm --share 0.1 --sections disturbed
    make bench-llm SECTIONS="throughput envoy"
    make bench-llm SECTIONS=vllm VLLM_STREAMS=100
    make bench-llm SECTIONS=hits CONVERSATIONS=120

The last two are on the real vLLM of `make test-llm`, in real time.

Streams of 5 to 120 s, and notices of 15 s, run --factor times as fast, so that they fit in minutes.
The times of the router are not scaled. Small engines write each stream's tokens, which are a pure
function of its prompt, so that the client can tell a token that was lost, doubled or changed.
"""

import tempfile
from pathlib import Path
from typing import Any

from workloads.library.tests.bench.llms.hits import run_hits
from workloads.library.tests.bench.llms.peer import run_peer
from workloads.library.tests.bench.llms.runs import (
    Load,
    run_behind_envoy,
    run_disturbed,
    run_envoy_alone,
    run_throughput,
)
from workloads.library.tests.bench.llms.vllm import run_vllm
from workloads.library.tests.bench.result import (
    Figures,
    Goals,
    finish,
    judge_goals,
    options,
    run_sections,
)
from workloads.library.tests.bench.rival_home import CannotRun

STREAMS = 10_000
DISRUPTIONS = 60
OPEN_STREAMS = 40
"""The number that two cores carry: with more, the gaps are those of the machine."""
THROUGHPUT_STREAMS = 200
ENVOY_STREAMS = 1_000
ENVOY_DISRUPTIONS = 6
LEAST_THROUGHPUT = 0.98
MOST_GAP_S = 2.0
MOST_GROWTH_MIB = 32.0
LEAST_GAIN = {"long": 0.05, "short": 0.15}
"""The share of tokens that is cached by prefix and not by load: half of what decision 0187 has."""


def _measure_gain(figures: Figures, workload: str) -> float:
    runs = figures["hits"]
    return runs[f"{workload}, by prefix"]["cached"] - runs[f"{workload}, by load"]["cached"]


GOALS: Goals = {
    "disturbed": {
        "no stream was cut": lambda f: f["disturbed"]["cut"] == 0,
        "no token was lost, doubled or different": lambda f: (
            f["disturbed"]["tokens_lost"] == 0
            and f["disturbed"]["tokens_doubled"] == 0
            and f["disturbed"]["streams_different"] == 0
        ),
        "every eviction, kill and freeze was played": lambda f: (
            f["disturbed"]["disruptions"] == f["disturbed"]["disruptions_wanted"]
        ),
        "streams moved": lambda f: f["disturbed"]["moved"] > 0,
        "added gap p99 at most 2 s and one prefill": lambda f: (
            f["disturbed"]["gap_p99_added_s"] <= MOST_GAP_S + f["prefill_s"]
        ),
        "memory flat": lambda f: f["disturbed"]["router_growth_mib"] <= MOST_GROWTH_MIB,
    },
    "throughput": {
        "throughput at least 0.98 of the same servers alone": lambda f: (
            f["throughput"]["share"] >= LEAST_THROUGHPUT
        ),
    },
    "vllm": {
        "vLLM: no stream was cut, and each has its tokens": lambda f: (
            f["vllm"]["cut"] == 0 and f["vllm"]["counts_wrong"] == 0
        ),
        "vLLM: continuations begin with prompt and sent tokens": lambda f: (
            0 < f["vllm"]["moved"] <= f["vllm"]["survivor_texts"]
            and f["vllm"]["survivor_tokens"] == f["vllm"]["survivor_tokens_expected"]
        ),
    },
    "hits": {
        "vLLM: prefixes bring 0.05 more cached tokens, with a long system prompt": lambda f: (
            _measure_gain(f, "long") >= LEAST_GAIN["long"]
        ),
        "vLLM: prefixes bring 0.15 more cached tokens, with a short system prompt": lambda f: (
            _measure_gain(f, "short") >= LEAST_GAIN["short"]
        ),
    },
    "peer": {
        "control: vLLM's own router cuts streams, and none undisturbed": lambda f: (
            f["peer"]["cut"] > 0 and f["peer"]["cut_undisturbed"] == 0
        ),
    },
    "envoy": {
        "control: Envoy alone cuts streams": lambda f: f["envoy"]["cut"] > 0,
    },
}


def main() -> None:
    arguments = options(
        __doc__,
        factor=20.0,
        share=1.0,
        open=OPEN_STREAMS,
        vllm_streams=0,
        conversations=0,
        sections=("disturbed", "throughput", "envoy", "peer", "behind", "vllm", "hits"),
    )

    def part(count: int) -> int:
        return max(1, round(count * arguments.share))

    load = Load(factor=arguments.factor, streams_open=arguments.open)
    with tempfile.TemporaryDirectory(prefix="holdfast-llm-bench-") as name:
        folder = Path(name)
        sections = {
            "disturbed": lambda: {
                "disturbed": run_disturbed(
                    folder,
                    load,
                    streams=part(STREAMS),
                    disruptions=part(DISRUPTIONS),
                )
            },
            "throughput": lambda: {
                "throughput": run_throughput(folder, load, streams=part(THROUGHPUT_STREAMS))
            },
            "envoy": lambda: {
                "envoy": run_envoy_alone(
                    folder,
                    load,
                    streams=part(ENVOY_STREAMS),
                    disruptions=part(ENVOY_DISRUPTIONS),
                )
            },
            "peer": lambda: run_peer(
                folder,
                load,
                streams=part(ENVOY_STREAMS),
                disruptions=part(ENVOY_DISRUPTIONS),
            ),
            "vllm": lambda: play_vllm(folder, arguments.vllm_streams),
            "hits": lambda: play_hits(folder, arguments.conversations),
            "behind": lambda: {
                "behind": run_behind_envoy(folder, load, streams=part(THROUGHPUT_STREAMS))
            },
        }
        figures = load.describe() | run_sections(sections, arguments.sections)
    finish(figures, judge_goals(GOALS, figures))


def play_vllm(folder: Path, streams: int) -> dict[str, Any]:
    if not streams:
        return {"vllm_not_run": "--vllm-streams 0"}
    return {"vllm": run_vllm(folder, streams=streams)}


def play_hits(folder: Path, conversations: int) -> dict[str, Any]:
    if not conversations:
        return {"hits_not_run": "--conversations 0"}
    try:
        return {"hits": run_hits(folder, conversations=conversations)}
    except CannotRun as error:
        return {"hits_not_run": str(error)}


if __name__ == "__main__":
    main()
