WITH t AS (SELECT segment, step, loss, coalesce(loss__state = 'absent', false) AND grad_norm__state IS NULL
    AND coalesce(skipped_steps, 0) = 0 AS gone
    FROM train WHERE loss__state IS NOT NULL),
m AS (SELECT *,
    min(gone::INT) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS to_end
    FROM t),
s AS (SELECT segment, min(step) FILTER (WHERE to_end = 1) AS step_start, max(step) AS step_end, min(loss) AS lowest,
    count(loss) AS seen, arg_max(loss, step) FILTER (WHERE fin(loss)) AS last
    FROM m
    GROUP BY segment)
SELECT step_start, step_end, NULL::DOUBLE AS observed, last AS expected, segment FROM s
WHERE step_start IS NOT NULL AND seen >= $before AND lowest > $level ORDER BY step_start
