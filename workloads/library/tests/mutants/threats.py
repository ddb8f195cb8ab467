"""The controls of the threat model, each taken away: threat by threat, from a pickle in a checkpoint to a hung handler.

Threats 2 and 15 have more in the catalogue: any signature is a good one, ignore SIGTERM, the window counts from the
last notice.
"""

from workloads.library.tests.mutants.mutant import Mutant, broken

LIBRARY = "workloads/library/holdfast"
LIBRARY_TESTS = "workloads/library/tests"
SOURCES = "tests/test_setup.py::test_no_source_of_ours_can_run_code_from_data"
SOUND = "tests/infra/rules/test_rules.py::test_the_sound_facts_break_no_rule"
EDITS = "tests/infra/rules/test_rules.py::test_one_edit_breaks_exactly_its_rule"
HOSTILE = f"{LIBRARY_TESTS}/inference/test_hostile.py"
NETWORK = "tests/workloads/manifests/test_network.py"
DESCRIPTIONS = f"{LIBRARY_TESTS}/checkpoint/test_descriptions.py"


def _taken(threat: int, what: str, file: str, old: str, new: str, test: str) -> Mutant:
    # No colon: the name becomes a folder on PYTHONPATH.
    return broken(f"threat {threat}, {what}", file, old, new, test)


THREATS: tuple[Mutant, ...] = (
    _taken(1, "a model may run its own code", f"{LIBRARY}/inference/predictor/hugging_face.py",
           '"trust_remote_code": False}', '"trust_remote_code": True}', SOURCES),
    _taken(1, "weights may be a pickle", f"{LIBRARY}/inference/predictor/hugging_face.py",
           "use_safetensors=True", "use_safetensors=False", SOURCES),
    _taken(1, "torch.load runs what it finds", f"{LIBRARY}/drill/naive.py",
           "weights_only=True", "weights_only=False", SOURCES),
    _taken(2, "a commit is not compared with its digest", f"{LIBRARY}/checkpoint/format/decoding.py",
           "if hex_digest(body) != digest.decode():", "if not digest:",
           f"{DESCRIPTIONS}::test_no_flipped_bit_of_a_commit_is_read"),
    _taken(2, "a manifest is not compared with its commit", f"{LIBRARY}/checkpoint/format/decoding.py",
           "if digest_of(data) != commit.manifests[rank]:", "if not data:",
           f"{DESCRIPTIONS}::test_no_flipped_bit_of_a_manifest_is_read"),
    _taken(3, "nodes hand out their own token", "infra/specs/pools.py",
           '"workload_metadata_config": {"mode": "GKE_METADATA"}', '"workload_metadata_config": {"mode": "GCE_METADATA"}', SOUND),
    _taken(3, "auto-provisioned nodes hand out theirs", "infra/specs/cluster.py",
           '"workload_metadata_config": {"mode": "GKE_METADATA"}', '"workload_metadata_config": {"mode": "GCE_METADATA"}', SOUND),
    _taken(4, "training administers its bucket", "infra/specs/runs.py",
           '"roles/storage.objectUser", member, own)', '"roles/storage.admin", member, own)', SOUND),
    _taken(4, "a run writes every run's checkpoints", "infra/specs/bucket_grants.py",
           'arguments["condition"] = condition', "pass",
           "tests/infra/test_runs_apart.py::test_each_rendered_job_does_what_it_must_with_its_own_run_and_nothing_with_another"),
    _taken(4, "servers read every run's checkpoints", "infra/specs/identities.py",
           '{"checkpoints": LIST_ROLE}', '{"checkpoints": "roles/storage.objectViewer"}',
           "tests/infra/test_runs_apart.py::test_each_rendered_pod_that_loads_reads_its_run_and_no_other"),
    _taken(4, "no role is too broad", "infra/rules/identity.py",
           'BROAD_STORAGE_ROLES = ("roles/storage.admin", "roles/storage.objectAdmin",', "BROAD_STORAGE_ROLES = (", EDITS),
    _taken(5, "a message may have any size", f"{LIBRARY}/inference/items.py",
           "if len(data) > MAX_MESSAGE_BYTES:", "if not data:",
           f"{HOSTILE}::test_nesting_and_size_are_bounded_before_anything_is_parsed"),
    _taken(6, "an id holds what PostgreSQL cannot", f"{LIBRARY}/inference/items.py",
           'if any(unicodedata.category(c) in ("Cc", "Cs") for c in name):', "if not name:",
           f"{HOSTILE}::test_no_id_that_postgresql_cannot_hold_passes"),
    _taken(7, "a name leaves its prefix", f"{LIBRARY}/checkpoint/stores/storage.py",
           'if not _NAME.fullmatch(name) or ".." in name or len(name) > 900:', "if len(name) > 900:",
           f"{LIBRARY_TESTS}/checkpoint/test_storage.py::test_no_name_leaves_its_prefix"),
    _taken(8, "pods call the whole internet", "workloads/manifests/tenancy.py",
           'egress_rule(["443/TCP"], [block(GOOGLE_APIS_CIDR)])', 'egress_rule(["443/TCP"], [block("0.0.0.0/0")])',
           "tests/workloads/manifests/test_render.py"),
    _taken(9, "secrets of the environment reach dead letters", f"{LIBRARY}/inference/errors.py",
           'text = text.replace(value, "***")', "pass", f"{HOSTILE}::test_the_value_of_a_secret_variable_is_not_shown"),
    _taken(9, "passwords and tokens reach dead letters", f"{LIBRARY}/inference/errors.py",
           'text = _SECRET.sub(lambda m: f"{next(filter(None, m.groups()))}***", text)', "pass",
           f"{HOSTILE}::test_errors_are_shown_without_secrets_and_content"),
    _taken(10, "auto-provisioning has no cap that anybody meant", "infra/specs/cluster.py",
           '"minimum": 0, "maximum": maximum}', '"minimum": 0, "maximum": 10**9}', SOUND),
    _taken(11, "an alert that is switched off passes", "infra/rules/alerts.py",
           'if policy.get("enabled") is False:', "if False:", EDITS),
    _taken(12, "images are taken by tag", "workloads/library/holdfast/manifests/render_context.py",
           "@sha256:{self.platform.images.get(role, '0' * 64)}", ":latest", "tests/workloads/manifests/test_render.py"),
    _taken(12, "any image runs", "infra/specs/images.py",
           '"evaluation_mode": "ALWAYS_DENY"', '"evaluation_mode": "ALWAYS_ALLOW"', SOUND),
    _taken(12, "the environment is installed without hashes", ".ci/bootstrap.py",
           '"--require-hashes", ', "", "tests/test_setup.py::test_what_is_installed_is_compared_with_its_hash"),
    _taken(13, "any pod of training reaches any other", f"{LIBRARY}/manifests/policies.py",
           "return {\"podSelector\": {\"matchLabels\": labels}}",
           "return {\"podSelector\": {}}",
           "tests/workloads/manifests/test_render.py"),
    _taken(13, "who has no key reaches the store of a gang", f"{LIBRARY}/training/gate.py",
           "if not hmac.compare_digest(proof, expected):", "if not expected:",
           f"{LIBRARY_TESTS}/training/test_nodes.py::test_an_agent_without_the_key_of_the_run_is_not_joined"),
    _taken(13, "who has no key asks to come into an elastic gang", f"{LIBRARY}/training/elastic/control.py",
           "if not (genuine and control.is_new(nonce)):", "if not control.is_new(nonce):",
           f"{LIBRARY_TESTS}/training/elastic/test_parts.py::test_a_stranger_without_the_key_of_the_run_is_refused"),
    _taken(13, "a question is answered twice", f"{LIBRARY}/training/elastic/control.py",
           "            if nonce in self._nonces:", "            if not nonce:",
           f"{LIBRARY_TESTS}/training/elastic/test_parts.py::test_only_members_of_an_epoch_are_heard_and_each_question_once"),
    _taken(13, "who is no member of an epoch ends it", f"{LIBRARY}/training/elastic/control.py",
           "if known and asks in known.members:", "if asks:",
           f"{LIBRARY_TESTS}/training/elastic/test_parts.py::test_only_members_of_an_epoch_are_heard_and_each_question_once"),
    _taken(13, "a peer's state may have any size", f"{LIBRARY}/training/elastic/transfer.py",
           "if total > most_bytes:", "if total < 0:",
           f"{LIBRARY_TESTS}/training/elastic/test_parts.py::test_a_state_that_no_member_would_give_takes_no_memory"),
    _taken(14, "the cluster can be destroyed by a slip", "infra/specs/cluster.py",
           '"deletion_protection": environment.cluster.deletion_protection,', '"deletion_protection": False,', SOUND),
    _taken(15, "half a checkpoint is committed", f"{LIBRARY}/checkpoint/format/soundness.py",
           "        if found is None:\n            raise Damaged(f\"{name} is missing\")\n", "        if found is None:\n            continue\n",
           f"{DESCRIPTIONS}::test_a_shard_that_is_not_stored_is_damage"),
)  # fmt: skip
