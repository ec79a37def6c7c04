WITH t AS (SELECT segment, step, row, skipped_steps > 0
    AND (loss__state IS NULL OR loss__state IN ('masked', 'absent') OR bad(loss__state)) AS skipped
    FROM train WHERE fin(skipped_steps)),
m AS (SELECT *,
    min(skipped::INT) OVER (PARTITION BY segment
        ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS to_end
    FROM t)
SELECT min(step) AS step_start, max(step) AS step_end, 1.0 AS observed, 0.0 AS expected, segment, count(*) AS rows_bad
FROM m WHERE to_end = 1 GROUP BY segment HAVING count(*) >= $hold AND min(row) > $warm ORDER BY step_start
