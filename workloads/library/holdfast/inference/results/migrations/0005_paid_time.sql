-- What a worker costs begins when its process does, before its model is loaded; and one that lives is paid for until
-- now, not until its last sign of life. Pace, and so the replicas wanted, counts from the loaded model.

ALTER TABLE holdfast.worker ADD COLUMN load_seconds double precision NOT NULL DEFAULT 0;

CREATE VIEW holdfast.worker_time AS
SELECT worker, job, fingerprint, done, started_at, ended, load_seconds, alive,
       extract(epoch FROM CASE WHEN ended IS NULL AND alive THEN clock_timestamp() ELSE seen_at END - started_at)
           AS worked_seconds
FROM (SELECT *, seen_at > clock_timestamp() - interval '30 s' AS alive FROM holdfast.worker) AS w;

CREATE OR REPLACE VIEW holdfast.job_status AS
WITH counted AS (
    SELECT r.job, r.fingerprint,
           count(*) FILTER (WHERE status = 'done') AS done,
           count(*) FILTER (WHERE status = 'held') AS held,
           count(*) FILTER (WHERE status = 'dead') AS failed,
           count(*) FILTER (WHERE claims > 1) AS retried,
           coalesce(sum(failures), 0) AS failures,
           count(*) FILTER (WHERE status = 'done' AND updated_at > clock_timestamp() - interval '60 s') AS recent
    FROM holdfast.result r GROUP BY r.job, r.fingerprint
), staff AS (
    SELECT w.job,
           count(*) FILTER (WHERE ended IS NULL AND alive) AS workers,
           count(*) FILTER (WHERE ended = 'preempted') AS preempted,
           count(*) FILTER (WHERE ended IS NULL AND NOT alive) AS killed,
           sum(worked_seconds + load_seconds) AS worker_seconds,
           sum(worked_seconds) AS worked_seconds,
           extract(epoch FROM least(max(clock_timestamp() - started_at), interval '60 s')) AS measured_seconds
    FROM holdfast.worker_time w GROUP BY w.job
), known AS (
    SELECT j.job, j.fingerprint, j.total, j.deadline, j.created_at,
           coalesce(c.done, 0) AS done, coalesce(c.held, 0) AS held, coalesce(c.failed, 0) AS failed,
           coalesce(c.retried, 0) AS retried, coalesce(c.failures, 0) AS failures,
           coalesce(s.workers, 0) AS workers, coalesce(s.preempted, 0) AS preempted, coalesce(s.killed, 0) AS killed,
           coalesce(s.worker_seconds, 0) AS worker_seconds,
           greatest(0, j.total - coalesce(c.done, 0) - coalesce(c.failed, 0)) AS open,
           coalesce(c.recent / nullif(s.measured_seconds, 0), 0) AS rate,
           coalesce(c.done / nullif(s.worked_seconds, 0), 0) AS rate_of_one
    FROM holdfast.job j
    LEFT JOIN counted c ON c.job = j.job AND c.fingerprint = j.fingerprint
    LEFT JOIN staff s ON s.job = j.job
)
SELECT job, fingerprint, total, done, held, failed, greatest(0, open - held) AS waiting, retried,
       failures::bigint AS failures, workers, preempted, killed,
       rate::float8 AS rate,
       (CASE WHEN open = 0 THEN 0 ELSE open / nullif(rate, 0) END)::float8 AS eta_seconds,
       worker_seconds::float8 AS worker_seconds,
       (CASE WHEN open = 0 THEN 0 ELSE extract(epoch FROM clock_timestamp() - created_at) END)::float8 AS oldest_seconds,
       -- None when drained; one while the pace of a worker is unknown; else what the deadline asks for
       -- (or an hour, where there is none).
       (CASE WHEN open = 0 THEN 0
             WHEN rate_of_one = 0 THEN 1
             ELSE least(1000, greatest(1, ceil(open / (rate_of_one * greatest(60,
                  coalesce(extract(epoch FROM deadline - clock_timestamp()), 3600)))))) END)::int AS replicas_wanted
FROM known;

CREATE OR REPLACE VIEW holdfast.job_scaling AS
WITH staff AS (
    SELECT job, fingerprint, sum(done) AS done, sum(worked_seconds) AS worker_seconds
    FROM holdfast.worker_time GROUP BY job, fingerprint
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
