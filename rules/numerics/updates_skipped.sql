-- The line comes before the row of its own step, so the step skipped is the next one logged.
WITH e AS (SELECT e.segment, e.seq, e.source, e.line, coalesce(t.step, e.step) AS step
    FROM events e ASOF LEFT JOIN train t ON e.segment = t.segment AND e.step < t.step
    WHERE e.kind = 'update_skipped'),
s AS (SELECT segment, min(step) AS step_start, max(step) AS step_end, count(DISTINCT coalesce(step, seq)) AS skips,
    min(source) AS source, min(line) AS line
    FROM e
    GROUP BY segment),
a AS (SELECT s.segment, max(t.step) AS last_step, count(t.step) FILTER (WHERE t.step >= step_start) AS after
    FROM s LEFT JOIN train t USING (segment)
    GROUP BY s.segment)
SELECT step_start, step_end, skips::DOUBLE AS observed, 0.0 AS expected, segment, skips, last_step, source, line,
    CASE WHEN skips >= $hold AND (after = 0 OR skips >= $share * after) THEN 'root' ELSE 'benign' END AS role
FROM s JOIN a USING (segment) ORDER BY step_start
