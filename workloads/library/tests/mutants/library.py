"""The faults of the library: checkpoints, processes that are to end, batch workers."""

from workloads.library.tests.mutants.mutant import Mutant, broken

CHECKPOINT = "workloads/library/holdfast/checkpoint"
BATCH = "workloads/library/holdfast/inference"
RUNTIME = "workloads/library/holdfast/runtime"
CONTRACT = "workloads/library/holdfast/contract"
LIBRARY_TESTS = "workloads/library/tests"

_CHECKPOINT = (
    broken("restore nothing", f"{CHECKPOINT}/restore/__init__.py",
           "    for step in candidates:\n", "    for step in candidates[:0]:\n",
           f"{LIBRARY_TESTS}/checkpoint/test_checkpointer.py::test_a_run_in_two_halves_ends_with_the_bits_of_a_run_in_one"),
    broken("verify nothing", f"{CHECKPOINT}/restore/reading.py",
           "if running.hex() != shard.crc32c:", "if not running.hex():",
           f"{LIBRARY_TESTS}/checkpoint/test_reshard.py::test_dcp_load_refuses_a_flipped_bit"),
    broken("no agreement on the outcome of a restore", f"{CHECKPOINT}/ranks.py",
           "decision: dict[str, Any] = ranks.agree(mine, decide)", "decision: dict[str, Any] = mine",
           f"{LIBRARY_TESTS}/checkpoint/test_agreement.py::test_damage_on_one_rank_is_damage_on_every_rank"),
    broken("damage counts as a good outcome", f"{CHECKPOINT}/ranks.py",
           'for kind in ("input", "stopped", "damaged"):', 'for kind in ("input", "stopped"):',
           f"{LIBRARY_TESTS}/checkpoint/test_agreement.py::test_damage_on_one_rank_is_damage_on_every_rank"),
    broken("begin anew in silence where no checkpoint verifies", f"{CHECKPOINT}/restore/__init__.py",
           "    raise none_verifies(run, skipped)\n",
           "    return Restored(step=0, skipped=skipped, damaged=damaged, seconds=time.monotonic() - began)\n",
           f"{LIBRARY_TESTS}/checkpoint/test_corruption.py::test_if_no_checkpoint_verifies_the_job_does_not_begin_again_in_silence"),
    broken("no fall back past a damaged checkpoint", f"{CHECKPOINT}/restore/__init__.py",
           "    for step in candidates:\n", "    for step in candidates[:1]:\n",
           f"{LIBRARY_TESTS}/checkpoint/test_checkpointer.py::test_a_damaged_newest_checkpoint_is_passed_over_and_later_replaced"),
    broken("a second writer replaces an object", f"{CHECKPOINT}/stores/local.py",
           "        os.link(incoming, target)\n", "        os.replace(incoming, target)\n",
           f"{LIBRARY_TESTS}/checkpoint/test_storage.py::test_a_name_is_taken_once_and_keeps_its_first_content"),
    broken("any signature is a good one", f"{CHECKPOINT}/format/__init__.py",
           "hmac.compare_digest(expected.encode(), signature.encode())", "bool(signature)",
           f"{LIBRARY_TESTS}/checkpoint/test_signing.py::test_a_changed_or_replayed_commit_with_its_digest_made_anew_is_passed_over"),
    broken("retention keeps the oldest", f"{CHECKPOINT}/save/retention.py",
           "key=lambda one: -one.step)", "key=lambda one: one.step)",
           f"{LIBRARY_TESTS}/checkpoint/test_retention.py::test_the_newest_are_kept_and_every_nth"),
    broken("of a step that goes the shards go first", f"{CHECKPOINT}/save/retention.py",
           "    storage.delete(commit)\n    yield commit\n    failpoint", "    failpoint",
           f"{LIBRARY_TESTS}/checkpoint/test_retention.py::test_of_a_step_that_goes_the_commit_goes_first"),
)  # fmt: skip
_PROCESSES = (
    broken("ignore SIGTERM", f"{RUNTIME}/shutdown.py",
           "NOTICES = (signal.SIGTERM, signal.SIGINT)", "NOTICES = (signal.SIGINT,)",
           f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_the_budget_counts_from_the_first_notice"),
    broken("the second signal loses the last save", f"{RUNTIME}/shutdown.py",
           "if signum == signal.SIGTERM and self._clock() - began < self.takes_s:", "if False:",
           f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_a_second_sigterm_within_the_window_changes_nothing_and_a_drain_does_not_count"),
    broken("the window counts from the last notice", f"{RUNTIME}/shutdown.py",
           "return min(ends, default=math.inf) - margin_s", "return max(ends, default=math.inf) - margin_s",
           f"{LIBRARY_TESTS}/runtime/test_shutdown.py::test_the_budget_counts_from_the_first_notice"),
    broken("exit 0 on SIGTERM", "workloads/library/holdfast/contract/exit_codes.py",
           "    if noticed or EXIT_PREEMPTED in found:\n        return EXIT_PREEMPTED",
           "    if noticed or EXIT_PREEMPTED in found:\n        return EXIT_COMPLETE",
           f"{LIBRARY_TESTS}/training/test_config.py::test_the_pod_exits_with_what_its_job_should_do"),
    broken("a bug is retried", "workloads/library/holdfast/contract/exit_codes.py",
           "    for fatal in FATAL_EXIT_CODES:", "    for fatal in ():",
           f"{LIBRARY_TESTS}/training/test_config.py::test_the_pod_exits_with_what_its_job_should_do"),
    broken("a rank stops alone", f"{RUNTIME}/stop.py",
           "            verdict = self._ballot.pass_boundary(self._here)\n        if verdict is BallotResult.WAIT:",
           "            verdict = BallotResult.STOP if self.requested else self._ballot.pass_boundary(self._here)\n        if verdict is BallotResult.WAIT:",
           f"{LIBRARY_TESTS}/runtime/test_stop.py::test_a_notice_on_any_rank_stops_all_at_one_boundary"),
    broken("bad input looks like findings", f"{CONTRACT}/exit_codes.py",
           "EXIT_BAD_INPUT = 2", "EXIT_BAD_INPUT = 1",
           f"{LIBRARY_TESTS}/contract/test_errors.py::test_only_findings_exit_1"),
)  # fmt: skip
_BATCH = (
    broken("ack before commit", f"{BATCH}/worker/writer.py",
           "        began = time.monotonic()\n        stored",
           "        began = time.monotonic()\n        self._ack([claim.item for claim in outcome.values])\n        stored",
           f"{LIBRARY_TESTS}/inference/worker/test_batch_worker.py::test_an_item_leaves_the_queue_only_after_its_result_is_durable"),
    broken("skip the fence", f"{BATCH}/results/postgres.py",
           "WHERE r.fence = excluded.fence AND r.worker = excluded.worker AND r.status = 'held'\nRETURNING r.item",
           "WHERE r.status = 'held'\nRETURNING r.item",
           f"{LIBRARY_TESTS}/inference/worker/test_batch_worker.py::test_a_zombie_cannot_write_after_its_fence_is_void"),
    broken("the lease is never renewed", f"{BATCH}/worker/lease_keeper.py",
           "                    self._queue.extend(held, self._lease_s)\n", "                    pass\n",
           f"{LIBRARY_TESTS}/inference/worker/test_lease_keeper.py::test_what_is_in_hand_is_extended_again_and_again_until_it_is_dropped"),
    broken("an ended lease still acks", f"{BATCH}/queue/postgres.py",
           "AS h(message, lease)\nWHERE q.message = h.message AND q.lease = h.lease\n",
           "AS h(message, lease)\nWHERE q.message = h.message\n",
           f"{LIBRARY_TESTS}/inference/queue/test_queues.py::test_an_ack_of_an_ended_lease_does_nothing"),
    broken("one item is given to two workers", f"{BATCH}/queue/postgres.py",
           "WHERE job = %(job)s AND visible_at <= clock_timestamp()", "WHERE job = %(job)s",
           f"{LIBRARY_TESTS}/inference/queue/test_queues.py::test_one_item_is_held_by_one_worker_only"),
)  # fmt: skip
LIBRARY: tuple[Mutant, ...] = (*_CHECKPOINT, *_PROCESSES, *_BATCH)
