-- What the exporter asks every few seconds, at a cost that does not grow with the items: each worker counts what it
-- stored, in the transaction that stores it. Nothing may delete rows of holdfast.worker while their job is open.

ALTER TABLE holdfast.worker ADD COLUMN fingerprint text, ADD COLUMN done bigint NOT NULL DEFAULT 0;
UPDATE holdfast.worker w SET fingerprint = f.fingerprint, done = f.done
FROM (SELECT worker, max(fingerprint) AS fingerprint, count(*) AS done FROM holdfast.result
      WHERE status = 'done' GROUP BY worker) AS f
WHERE w.worker = f.worker;
CREATE INDEX result_dead ON holdfast.result (job, fingerprint) WHERE status = 'dead';

-- Read by the exporter: one row for each job, its columns named as the metrics batch_*.
CREATE VIEW holdfast.job_scaling AS
WITH staff AS (
    SELECT job, fingerprint, sum(done) AS done, sum(extract(epoch FROM seen_at - started_at)) AS worker_seconds
    FROM holdfast.worker GROUP BY job, fingerprint
), gone AS (
    SELECT job, fingerprint, count(*) AS dead FROM holdfast.result WHERE status = 'dead' GROUP BY job, fingerprint
), known AS (
    SELECT j.job, j.deadline, j.created_at,
           greatest(0, j.total - coalesce(s.done, 0) - coalesce(g.dead, 0)) AS open,
           coalesce(s.done / nullif(s.worker_seconds, 0), 0) AS rate_of_one
    FROM holdfast.job j
    LEFT JOIN staff s ON s.job = j.job AND s.fingerprint = j.fingerprint
    LEFT JOIN gone g ON g.job = j.job AND g.fingerprint = j.fingerprint
)
SELECT job, open::bigint AS backlog_items,
       -- Since the job was registered: none of its open items is older.
       (CASE WHEN open = 0 THEN 0 ELSE extract(epoch FROM clock_timestamp() - created_at) END)::float8 AS oldest_seconds,
       -- As in job_status: none when drained, one while the pace is unknown, else what the deadline (or an hour) asks.
       (CASE WHEN open = 0 THEN 0
             WHEN rate_of_one = 0 THEN 1
             ELSE least(1000, greatest(1, ceil(open / (rate_of_one * greatest(60,
                  coalesce(extract(epoch FROM deadline - clock_timestamp()), 3600)))))) END)::int AS replicas_wanted
FROM known;

-- Sees how much there is to do, and nothing of what it is.
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_exporter') THEN
        CREATE ROLE holdfast_exporter NOLOGIN;
    END IF;
END $$;
GRANT USAGE ON SCHEMA holdfast TO holdfast_exporter;
GRANT SELECT ON holdfast.job_scaling, holdfast.job_status TO holdfast_exporter;
GRANT SELECT ON holdfast.job_scaling TO holdfast_worker;
