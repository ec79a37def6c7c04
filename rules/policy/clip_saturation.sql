WITH t AS (SELECT segment, step, clip_frac AS x, coalesce(score, reward) AS r,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(clip_frac)),
b AS (SELECT segment, count(*) AS rows_seen, min(step) AS step_start, max(step) AS step_end, median(x) AS observed,
    median(r) FILTER (WHERE k <= greatest(5, n / 10)) AS r_early,
    median(r) FILTER (WHERE k > n - greatest(5, n / 10)) AS r_late, max(r) - min(r) AS span
    FROM t
    GROUP BY segment)
SELECT step_start, step_end, observed, 0.0 AS expected, segment, rows_seen
FROM b
WHERE rows_seen >= 10 AND observed > $level AND r_late - r_early <= $gain * span
ORDER BY step_start
