"""The faults of the library: checkpoints, processes that are to end, batch workers."""

from workloads.library.tests.mutants.mutant import Mutant

CHECKPOINT = "workloads/library/holdfast/checkpoint"
BATCH = "workloads/library/holdfast/inference"
RUNTIME = "workloads/library/holdfast/runtime"
CONTRACT = "workloads/library/holdfast/contract"
LIBRARY_TESTS = "workloads/library/tests"

_CHECKPOINT = (
    Mutant(
        name="restore nothing",
        file=f"{CHECKPOINT}/restore/__init__.py",
        old="    for step in candidates:\n",
        new="    for step in candidates[:0]:\n",
        tests=(
            f"{LIBRARY_TESTS}/checkpoint/test_checkpointer.py::test_a_run_in_two_halves_ends_with_the_bits_of_a_run_in_one",
        ),
    ),
    Mutant(
        name="verify nothing",
        file=f"{CHECKPOINT}/restore/reading.py",
        old="if running.hex() != shard.crc32c:",
        new="if not running.hex():",
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_reshard.py::test_dcp_load_refuses_a_flipped_bit",),
    ),
    Mutant(
        name="no agreement on the outcome of a restore",
        file=f"{CHECKPOINT}/ranks.py",
        old="decision: dict[str, Any] = ranks.agree(mine, decide)",
        new="decision: dict[str, Any] = mine",
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_agreement.py::test_damage_on_one_rank_is_damage_on_every_rank",),
    ),
    Mutant(
        name="damage counts as a good outcome",
        file=f"{CHECKPOINT}/ranks.py",
        old='for kind in ("input", "stopped", "damaged"):',
        new='for kind in ("input", "stopped"):',
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_agreement.py::test_damage_on_one_rank_is_damage_on_every_rank",),
    ),
    Mutant(
        name="begin anew in silence where no checkpoint verifies",
        file=f"{CHECKPOINT}/restore/__init__.py",
        old="    raise none_verifies(run, skipped)\n",
        new="    return Restored(step=0, skipped=skipped, damaged=damaged, seconds=time.monotonic() - began)\n",
        tests=(
            f"{LIBRARY_TESTS}/checkpoint/test_corruption.py::test_if_no_checkpoint_verifies_the_job_does_not_begin_again_in_silence",
        ),
    ),
    Mutant(
        name="no fall back past a damaged checkpoint",
        file=f"{CHECKPOINT}/restore/__init__.py",
        old="    for step in candidates:\n",
        new="    for step in candidates[:1]:\n",
        tests=(
            f"{LIBRARY_TESTS}/checkpoint/test_checkpointer.py::test_a_damaged_newest_checkpoint_is_passed_over_and_later_replaced",
        ),
    ),
    Mutant(
        name="a second writer replaces an object",
        file=f"{CHECKPOINT}/stores/local.py",
        old="        os.link(incoming, target)\n",
        new="        os.replace(incoming, target)\n",
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_storage.py::test_a_name_is_taken_once_and_keeps_its_first_content",),
    ),
    Mutant(
        name="any signature is a good one",
        file=f"{CHECKPOINT}/format/__init__.py",
        old="hmac.compare_digest(expected.encode(), signature.encode())",
        new="bool(signature)",
        tests=(
            f"{LIBRARY_TESTS}/checkpoint/test_signing.py::test_a_changed_or_replayed_commit_with_its_digest_made_anew_is_passed_over",
        ),
    ),
    Mutant(
        name="retention keeps the oldest",
        file=f"{CHECKPOINT}/save/retention.py",
        old="key=lambda one: -one.step)",
        new="key=lambda one: one.step)",
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_retention.py::test_the_newest_are_kept_and_every_nth",),
    ),
    Mutant(
        name="of a step that goes the shards go first",
        file=f"{CHECKPOINT}/save/retention.py",
        old="    storage.delete(commit)\n    yield commit\n    failpoint",
        new="    failpoint",
        tests=(f"{LIBRARY_TESTS}/checkpoint/test_retention.py::test_of_a_step_that_goes_the_commit_goes_first",),
    ),
)
_PROCESSES = (
    Mutant(
        name="ignore SIGTERM",
        file=f"{RUNTIME}/shutdown.py",
        old="NOTICES = (signal.SIGTERM, signal.SIGINT)",
        new="NOTICES = (signal.SIGINT,)",
        tests=(f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_the_budget_counts_from_the_first_notice",),
    ),
    Mutant(
        name="the second signal loses the last save",
        file=f"{RUNTIME}/shutdown.py",
        old="if signum == signal.SIGTERM and self._clock() - began < self.takes_s:",
        new="if False:",
        tests=(
            f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_a_second_sigterm_within_the_window_changes_nothing_and_a_drain_does_not_count",
        ),
    ),
    Mutant(
        name="the window counts from the last notice",
        file=f"{RUNTIME}/shutdown.py",
        old="return min(ends, default=math.inf) - margin_s",
        new="return max(ends, default=math.inf) - margin_s",
        tests=(f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_the_budget_counts_from_the_first_notice",),
    ),
    Mutant(
        name="exit 0 on SIGTERM",
        file="workloads/library/holdfast/contract/exit_codes.py",
        old="    if noticed or EXIT_PREEMPTED in found:\n        return EXIT_PREEMPTED",
        new="    if noticed or EXIT_PREEMPTED in found:\n        return EXIT_COMPLETE",
        tests=(f"{LIBRARY_TESTS}/training/test_config.py::test_the_pod_exits_with_what_its_job_should_do",),
    ),
    Mutant(
        name="a bug is retried",
        file="workloads/library/holdfast/contract/exit_codes.py",
        old="    for fatal in FATAL_EXIT_CODES:",
        new="    for fatal in ():",
        tests=(f"{LIBRARY_TESTS}/training/test_config.py::test_the_pod_exits_with_what_its_job_should_do",),
    ),
    Mutant(
        name="a rank stops alone",
        file=f"{RUNTIME}/stop.py",
        old="            verdict = self._ballot.pass_boundary(self._here)\n        if verdict is Verdict.WAIT:",
        new="            verdict = Verdict.STOP if self.requested else self._ballot.pass_boundary(self._here)\n        if verdict is Verdict.WAIT:",
        tests=(f"{LIBRARY_TESTS}/runtime/test_stop.py::test_a_notice_on_any_rank_stops_all_at_one_boundary",),
    ),
    Mutant(
        name="bad input looks like findings",
        file=f"{CONTRACT}/exit_codes.py",
        old="EXIT_BAD_INPUT = 2",
        new="EXIT_BAD_INPUT = 1",
        tests=(f"{LIBRARY_TESTS}/contract/test_errors.py::test_only_findings_exit_1",),
    ),
)
_BATCH = (
    Mutant(
        name="ack before commit",
        file=f"{BATCH}/worker/writer.py",
        old="        began = time.monotonic()\n        stored",
        new="        began = time.monotonic()\n        self._ack([claim.item for claim in outcome.values])\n        stored",
        tests=(
            f"{LIBRARY_TESTS}/inference/worker/test_batch_worker.py::test_an_item_leaves_the_queue_only_after_its_result_is_durable",
        ),
    ),
    Mutant(
        name="skip the fence",
        file=f"{BATCH}/results/postgres.py",
        old="WHERE r.fence = excluded.fence AND r.worker = excluded.worker AND r.status = 'held'\nRETURNING r.item",
        new="WHERE r.status = 'held'\nRETURNING r.item",
        tests=(
            f"{LIBRARY_TESTS}/inference/worker/test_batch_worker.py::test_a_zombie_cannot_write_after_its_fence_is_void",
        ),
    ),
    Mutant(
        name="the lease is never renewed",
        file=f"{BATCH}/worker/lease_keeper.py",
        old="                    self._queue.extend(held, self._lease_s)\n",
        new="                    pass\n",
        tests=(
            f"{LIBRARY_TESTS}/inference/worker/test_lease_keeper.py::test_what_is_in_hand_is_extended_again_and_again_until_it_is_dropped",
        ),
    ),
    Mutant(
        name="an ended lease still acks",
        file=f"{BATCH}/queue/postgres.py",
        old="AS h(message, lease)\nWHERE q.message = h.message AND q.lease = h.lease\n",
        new="AS h(message, lease)\nWHERE q.message = h.message\n",
        tests=(f"{LIBRARY_TESTS}/inference/queue/test_queues.py::test_an_ack_of_an_ended_lease_does_nothing",),
    ),
    Mutant(
        name="one item is given to two workers",
        file=f"{BATCH}/queue/postgres.py",
        old="WHERE job = %(job)s AND visible_at <= clock_timestamp()",
        new="WHERE job = %(job)s",
        tests=(f"{LIBRARY_TESTS}/inference/queue/test_queues.py::test_one_item_is_held_by_one_worker_only",),
    ),
)
LIBRARY: tuple[Mutant, ...] = (*_CHECKPOINT, *_PROCESSES, *_BATCH)
