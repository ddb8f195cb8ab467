"""The faults that the tests must notice, as data. A test that lets one through is mended, not taken off the list."""

from workloads.library.tests.mutants.library import LIBRARY
from workloads.library.tests.mutants.mutant import Mutant
from workloads.library.tests.mutants.threats import THREATS

CONTRACT = "workloads/library/holdfast/contract"
DRILL_TESTS = "workloads/library/tests/drill"
APPLIED_AGAIN = "tests/workloads/manifests/test_applied_again.py"

_PLATFORM = (
    Mutant(
        name="no taint on Spot pools",
        file="infra/environments/capacity.py",
        old="        if self.capacity is Capacity.SPOT:\n            effect =",
        new="        if False:\n            effect =",
        tests=(
            "tests/infra/environments/test_fields.py::test_a_group_of_several_machine_types_is_several_pools_of_one_class",
        ),
    ),
    Mutant(
        name="wrong label of Spot nodes",
        file="workloads/library/holdfast/contract/pools.py",
        old='LABEL_SPOT = "cloud.google.com/gke-spot"',
        new='LABEL_SPOT = "cloud.google.com/spot"',
        tests=("tests/workloads/manifests/test_render.py::test_make_render_leaves_no_diff",),
    ),
    Mutant(
        name="wrong window",
        file=f"{CONTRACT}/lifecycle.py",
        old="return self.total_s - self.critical_s",
        new="return self.total_s",
        tests=("tests/infra/environments/test_fields.py::test_the_extended_window_reaches_spot_pools_only",),
    ),
    Mutant(
        name="evictions are charged to the Job",
        file="workloads/library/holdfast/manifests/training.py",
        old='            client.V1PodFailurePolicyRule(action="Ignore", on_pod_conditions=[DISRUPTED]),\n',
        new="",
        tests=("tests/workloads/manifests/test_render.py::test_make_render_leaves_no_diff",),
    ),
    Mutant(
        name="a rule over the plan never fires",
        file="infra/rules/pools.py",
        old="        if not _tainted(pool, SPOT_TAINT):",
        new="        if False:",
        tests=("tests/infra/rules/test_rules.py::test_one_edit_breaks_exactly_its_rule",),
    ),
    Mutant(
        name="a run by index is taken for its whole job",
        file=f"{CONTRACT}/job_identity.py",
        old='    return job if index is None else f"{job}-{index}"',
        new="    return job",
        tests=(
            "tests/workloads/manifests/test_training.py::test_what_a_rendered_process_writes_of_itself_is_what_the_exporter_reads_of_its_pod",
        ),
    ),
    Mutant(
        name="Kueue takes a job off its nodes that misses a pod",
        file="workloads/operators/settings.py",
        old='"DisableWaitForPodsReady": True,',
        new='"DisableWaitForPodsReady": False,',
        tests=("tests/workloads/operators/test_overlay.py::test_kueue_waits_for_no_pod_of_a_job_that_it_admitted",),
    ),
    Mutant(
        name="samples are applied with the platform",
        file="workloads/manifests/rendering.py",
        old='        "25-database.yaml": platform_jobs.migration,\n',
        new='        "25-database.yaml": platform_jobs.migration,\n        "26-batch.yaml": batch.samples,\n',
        tests=(
            f"{APPLIED_AGAIN}::test_no_work_that_is_over_begins_anew",
            f"{APPLIED_AGAIN}::test_no_field_that_kueue_writes_is_applied",
        ),
    ),
    Mutant(
        name="the migration is cleared away and runs at each apply",
        file="workloads/manifests/platform_jobs.py",
        old="        backoff_limit=6,\n",
        new="        backoff_limit=6,\n        ttl_seconds_after_finished=60,\n",
        tests=(f"{APPLIED_AGAIN}::test_no_work_that_is_over_begins_anew",),
    ),
)
_MONITORING = (
    Mutant(
        name="metric renamed",
        file=f"{CONTRACT}/telemetry.py",
        old='    "last_commit_age_seconds": (',
        new='    "commit_age_seconds": (',
        tests=("workloads/library/tests/exporter/test_jobs.py::test_commit_age_and_its_usual_interval",),
    ),
    Mutant(
        name="an alert never fires",
        file="monitoring/alerting/capacity_alerts.py",
        old='query=f"max by (accelerator) ({series}) > ${most}",',
        new='query=f"max by (accelerator) ({series}) > 1000 * ${most}",',
        tests=("tests/monitoring/alerting/test_alerts.py::test_every_alert_fires_in_time_and_is_silent_otherwise",),
    ),
    Mutant(
        name="a gang is below its size only since its last loss",
        file="workloads/library/holdfast/ledger/gang.py",
        old="        if size.nodes == size.places:\n            break\n        since = size.begin_us",
        new="        return None if size.nodes == size.places else size.begin_us",
        tests=("workloads/library/tests/exporter/test_jobs.py::test_a_gang_below_its_size_ages_from_its_first_loss",),
    ),
    Mutant(
        name="work done again counts as useful",
        file="workloads/library/holdfast/ledger/training.py",
        old="        if last_step > keep:\n            lost",
        new="        if False:\n            lost",
        tests=(
            "workloads/library/tests/ledger/test_job_summary.py::test_a_job_that_was_set_back_stands_where_it_is_now",
        ),
    ),
    Mutant(
        name="lost steps are not counted",
        file="workloads/library/holdfast/ledger/training.py",
        old="    return sum(done.lost(keep) for done in work if done.last_step > keep)",
        new="    return 0",
        tests=(
            "workloads/library/tests/ledger/test_job_summary.py::test_a_job_that_was_set_back_stands_where_it_is_now",
        ),
    ),
)
_SEAMS = (
    Mutant(
        name="nobody writes evictions down",
        file="workloads/library/holdfast/exporter/cluster.py",
        old="        if reason and before and before.node and not before.disrupted:",
        new="        if False:",
        tests=(
            "workloads/library/tests/exporter/test_cluster.py::test_pods_that_the_platform_ends_are_written_down_once_each",
        ),
    ),
    Mutant(
        name="lines of the exporter are read by nobody",
        file="workloads/library/holdfast/exporter/logs.py",
        old='        return str(line.get("job") or NOBODY) if line.get("event") in OF_THE_WATCHER else NOBODY',
        new="        return NOBODY",
        tests=(
            "workloads/library/tests/exporter/test_logs.py::test_waits_evictions_and_moves_that_the_platform_wrote_count_for_the_job_they_name",
        ),
    ),
    Mutant(
        name="a wait for capacity is paid",
        file="workloads/library/holdfast/ledger/job_ledger.py",
        old="UNPAID = frozenset({State.WAITING, State.DEGRADED})",
        new="UNPAID = frozenset[State]()",
        tests=(
            "workloads/library/tests/exporter/test_jobs.py::test_a_wait_for_capacity_lowers_the_share_of_wall_time_and_not_that_of_paid_time",
        ),
    ),
    Mutant(
        name="a gang falls as often as it has pods",
        file="workloads/library/holdfast/exporter/jobs.py",
        old="        if not self.fallen or host in self.fallen:",
        new="        if True:",
        tests=(
            "workloads/library/tests/exporter/test_jobs.py::test_a_gang_that_falls_falls_once_however_many_pods_it_has",
        ),
    ),
    Mutant(
        name="a queue that waits for Google admits nothing",
        file="workloads/library/holdfast/exporter/queues.py",
        old="one.reason in (QUOTA, INADMISSIBLE)",
        new="one.reason in (QUOTA, INADMISSIBLE, CHECK)",
        tests=(
            "workloads/library/tests/exporter/test_queues.py::test_a_job_that_waits_for_googles_answer_has_passed_its_queue",
        ),
    ),
    Mutant(
        name="a budget of a job is broken in a drought",
        file="workloads/library/holdfast/exporter/cluster.py",
        old='        if change == "DELETED" or meta["namespace"] in self.namespaces:',
        new='        if change == "DELETED":',
        tests=("workloads/library/tests/exporter/test_cluster.py::test_a_budget_of_a_job_is_left_out",),
    ),
)
_JOBS = (
    Mutant(
        name="evictions count as crashes",
        file="workloads/library/holdfast/jobs/job_snapshot.py",
        old="    return disruptions.disruption(pod)[0]",
        new='    return ""',
        tests=("workloads/library/tests/jobs/test_losses.py::test_an_eviction_is_no_crash_whatever_the_exit_code",),
    ),
    Mutant(
        name="the cap per hour stops nothing",
        file="workloads/library/holdfast/jobs/submit.py",
        old="made.usd_per_hour > caps.usd_per_hour:",
        new="made.usd_per_hour > 1000 * caps.usd_per_hour:",
        tests=(
            "workloads/library/tests/jobs/test_submit.py::test_a_cap_holds_at_its_very_value_and_refuses_below_the_price",
        ),
    ),
    Mutant(
        name="explain blames a refusal of long ago",
        file="workloads/library/holdfast/jobs/unplaced.py",
        old=" or cluster_snapshot.time_of(event) < made:",
        new=":",
        tests=("workloads/library/tests/jobs/test_causes.py::test_a_refusal_before_the_newest_pod_is_history",),
    ),
    Mutant(
        name="a drill begins before the work is steady",
        file="workloads/library/holdfast/drill/runner.py",
        old="        if not met:\n",
        new="        if False:\n",
        tests=(f"{DRILL_TESTS}/test_runner.py::test_without_a_steady_state_nothing_is_injected",),
    ),
    Mutant(
        name="a drill puts nothing back",
        file="workloads/library/holdfast/drill/runner.py",
        old="                    self._roll_back(target, record)\n",
        new="                    pass\n",
        tests=(f"{DRILL_TESTS}/test_runner.py::test_a_good_drill_hits_its_blast_radius_and_no_more",),
    ),
    Mutant(
        name="an objective that nobody measured held",
        file="workloads/library/holdfast/drill/verdict.py",
        old="            return Verdict.NOT_MEASURED\n",
        new="            return Verdict.HELD\n",
        tests=(f"{DRILL_TESTS}/test_judging.py::test_an_objective_is_judged_by_its_bound",),
    ),
    Mutant(
        name="drills in production",
        file="workloads/library/holdfast/drill/remote.py",
        old="    if owner and not owner.drills:",
        new="    if False:",
        tests=(f"{DRILL_TESTS}/test_remote.py::test_an_environment_that_allows_no_drills_is_not_hit_by_any",),
    ),
)
MUTANTS: tuple[Mutant, ...] = (*LIBRARY, *_PLATFORM, *_MONITORING, *_SEAMS, *_JOBS, *THREATS)
