"""The batch's queues on Pub/Sub: topics, subscriptions, and dead letters with a subscription that
keeps them.
"""

from infra.environments.schema import Environment
from infra.specs.encryption import agent, key_argument, key_in_force
from infra.specs.identities import account
from infra.specs.network import api
from infra.specs.resource import Resource, deletion_policy, grant
from infra.specs.storage import DAY_S

# A killed worker's items come back after this time. Workers extend their leases.
ACK_DEADLINE_S = 30
# Google's maximum. The items of a batch that waits for capacity must outlive it.
RETENTION_DAYS = 31
# Every preemption counts as a delivery: with a low number, healthy items become dead letters.
MAX_DELIVERY_ATTEMPTS = 100


def resources(environment: Environment) -> list[Resource]:
    topics: list[Resource] = []
    subscriptions: list[Resource] = []
    for purpose in environment.topic_purposes:
        topics.append(_topic(environment, purpose))
        subscriptions.append(_subscription(environment, purpose))
    if not topics:
        return []
    return [*topics, *subscriptions, *_grants(environment)]


def _topic(environment: Environment, purpose: str) -> Resource:
    return Resource(
        kind="google_pubsub_topic",
        id=purpose,
        arguments={
            "name": environment.topic(purpose),
            "message_storage_policy": {"allowed_persistence_regions": [environment.region]},
            "labels": environment.all_labels(),
            "deletion_policy": deletion_policy(not environment.storage.allow_destroy),
            **key_argument(environment, "kms_key_name"),
        },
        after=(*api(environment, "pubsub"), *key_in_force(environment)),
        protected=not environment.storage.allow_destroy,
    )


def _subscription(environment: Environment, purpose: str) -> Resource:
    arguments: dict[str, object] = {
        "name": environment.topic(purpose),
        "topic": environment.topic(purpose),
        "ack_deadline_seconds": ACK_DEADLINE_S,
        "message_retention_duration": f"{RETENTION_DAYS * DAY_S}s",
        # The default deletes a subscription without pulls for 31 days, and the backlog with it.
        "expiration_policy": {"ttl": ""},
        "labels": environment.all_labels(),
        "deletion_policy": deletion_policy(not environment.storage.allow_destroy),
    }
    after = [f"google_pubsub_topic.{purpose}"]
    if purpose != "dead":
        # The minimum also holds back what a draining worker returns, so it stays short.
        arguments["retry_policy"] = {"minimum_backoff": "1s", "maximum_backoff": "60s"}
        arguments["dead_letter_policy"] = {
            "dead_letter_topic": (
                f"projects/{environment.project}/topics/{environment.topic('dead')}"
            ),
            "max_delivery_attempts": MAX_DELIVERY_ATTEMPTS,
        }
        after.append("google_pubsub_topic.dead")
    return Resource(
        kind="google_pubsub_subscription",
        id=purpose,
        arguments=arguments,
        after=tuple(after),
        protected=not environment.storage.allow_destroy,
    )


def _grants(environment: Environment) -> list[Resource]:
    """Return grants: the batch pulls and enqueues; Pub/Sub's own agent moves messages that were
    delivered too often.

    No pod may create or delete subscriptions: that right applies to all of a project
    (infra/decisions/0045).
    """
    grants = [_grant(environment, "dead", "topic", "agent")]
    for lane in environment.lanes:
        grants += [
            _grant(environment, lane, "subscription", "batch"),
            _grant(environment, lane, "topic", "batch"),
            _grant(environment, lane, "subscription", "agent"),
        ]
    return grants


def _grant(
    environment: Environment,
    purpose: str,
    target: str,
    name: str,
) -> Resource:
    roles = {"subscription": "roles/pubsub.subscriber", "topic": "roles/pubsub.publisher"}
    after = [f"google_pubsub_{target}.{purpose}"]
    if name == "batch":
        member = environment.member("batch")
        after.append(account("batch"))
    else:
        member = agent(environment, "pubsub")
    return grant(
        f"pubsub_{target}",
        f"{purpose}-{name}",
        roles[target],
        member,
        tuple(after),
        **{target: environment.topic(purpose)},
    )
