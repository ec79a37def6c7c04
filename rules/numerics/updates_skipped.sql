-- The line comes before the row of its own step, so the step skipped is the next one logged.
WITH e AS (SELECT segment, seq, source, line, coalesce((SELECT min(t.step) FROM train t WHERE t.segment = events.segment AND t.step > events.step), step) AS step
    FROM events WHERE kind = 'update_skipped'),
s AS (SELECT segment, min(step) AS step_start, max(step) AS step_end, count(DISTINCT coalesce(step, seq)) AS skips, min(source) AS source, min(line) AS line FROM e GROUP BY segment),
l AS (SELECT segment, max(step) AS last_step, max(row) AS rows FROM train GROUP BY segment),
a AS (SELECT s.*, last_step, (SELECT count(*) FROM train t WHERE t.segment = s.segment AND t.step >= s.step_start) AS after FROM s LEFT JOIN l USING (segment))
SELECT step_start, step_end, skips::DOUBLE AS observed, 0.0 AS expected, segment, skips, last_step, source, line,
    CASE WHEN skips >= $hold AND (after = 0 OR skips >= $share * after) THEN 'root' ELSE 'benign' END AS role
FROM a ORDER BY step_start
