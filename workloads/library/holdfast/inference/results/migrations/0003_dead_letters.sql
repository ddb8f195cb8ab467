-- What will not be tried again, written in the transaction that gives it up. Holds no content: an id, a
-- digest and the class of the error. With Pub/Sub each row is also published to the dead-letter topic.

CREATE TABLE holdfast.dead_letter (
    letter      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job         text NOT NULL,
    item        text,               -- null: the message was no item
    fingerprint text NOT NULL,
    digest      text NOT NULL,      -- sha256 of the body, or of the raw message
    reason      text NOT NULL,
    failures    integer NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    forwarded   boolean NOT NULL DEFAULT false
);
CREATE INDEX dead_letter_job ON holdfast.dead_letter (job, item);
CREATE INDEX dead_letter_unsent ON holdfast.dead_letter (job) WHERE NOT forwarded;

GRANT SELECT, INSERT, UPDATE ON holdfast.dead_letter TO holdfast_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA holdfast TO holdfast_worker;
