-- Jobs, their items, the queue and the results.
-- item and result are apart: an item is what was asked, a result is what one configuration made of it.

CREATE TABLE holdfast.job (
    job          text PRIMARY KEY,
    fingerprint  text,              -- configuration of the first worker; others must have the same
    configuration jsonb,            -- what the fingerprint was made of, for people
    total        bigint NOT NULL DEFAULT 0,
    deadline     timestamptz,
    created_at   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE holdfast.item (
    job        text NOT NULL REFERENCES holdfast.job ON DELETE CASCADE,
    item       text NOT NULL,
    digest     text NOT NULL,       -- sha256 of the body: the same id with another body is refused
    body       bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, item)
);

-- Registered and not yet taken by the queue: what an interrupted enqueue left to do.
CREATE TABLE holdfast.outbox (
    job  text NOT NULL,
    item text NOT NULL,
    PRIMARY KEY (job, item),
    FOREIGN KEY (job, item) REFERENCES holdfast.item ON DELETE CASCADE
);

-- One row for each message; an ack deletes it. Narrow, because every lease rewrites it.
CREATE TABLE holdfast.queue (
    message    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job        text NOT NULL,
    item       text NOT NULL,
    visible_at timestamptz NOT NULL DEFAULT now(),
    lease      bigint NOT NULL DEFAULT 0,       -- new with each delivery; an ack with an old one does nothing
    deliveries integer NOT NULL DEFAULT 0
);
CREATE INDEX queue_next ON holdfast.queue (job, visible_at, message);
CREATE SEQUENCE holdfast.lease_number;

CREATE SEQUENCE holdfast.fence_number;
CREATE TABLE holdfast.result (
    job         text NOT NULL,
    item        text NOT NULL,
    fingerprint text NOT NULL,
    status      text NOT NULL CHECK (status IN ('held', 'waiting', 'done', 'dead')),
    fence       bigint NOT NULL,    -- of the newest holder; only that one may write
    worker      text NOT NULL,
    claims      integer NOT NULL DEFAULT 1,
    failures    integer NOT NULL DEFAULT 0,     -- of processing only; evictions never count
    error_class text,
    error       text,
    value       jsonb,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job, item, fingerprint)
) WITH (fillfactor = 80);           -- room for the update in place that follows each claim

CREATE TABLE holdfast.worker (
    worker     text PRIMARY KEY,
    job        text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    ended      text                 -- complete, preempted, failed; null and not seen: killed
);
CREATE INDEX worker_job ON holdfast.worker (job);

-- What a worker may do: read and write rows. No CREATE, DROP, TRUNCATE.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_worker') THEN
        CREATE ROLE holdfast_worker NOLOGIN;
    END IF;
END $$;
GRANT USAGE ON SCHEMA holdfast TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE ON holdfast.job, holdfast.item, holdfast.result, holdfast.worker TO holdfast_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.queue, holdfast.outbox TO holdfast_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO holdfast_worker;
GRANT SELECT ON holdfast.schema_version TO holdfast_worker;
