-- Which job a Pub/Sub subscription serves. One at a time: on a shared one every worker takes the other's items too,
-- and each time it gives one back counts as a delivery, until the broker dead-letters it.

CREATE TABLE holdfast.subscription (
    subscription text PRIMARY KEY,
    job          text NOT NULL REFERENCES holdfast.job ON DELETE CASCADE,
    bound_at     timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT, INSERT, UPDATE ON holdfast.subscription TO holdfast_worker;
GRANT SELECT ON holdfast.worker_time TO holdfast_worker;
