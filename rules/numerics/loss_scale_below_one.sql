WITH t AS (SELECT segment, step, loss_scale AS x, lag(loss_scale) OVER (PARTITION BY segment ORDER BY step) AS before
    FROM train
    WHERE fin(loss_scale) AND loss_scale > 0)
SELECT min(step) FILTER (WHERE x < $one) AS step_start, max(step) AS step_end, arg_max(x, step) AS observed,
    arg_min(x, step) FILTER (WHERE x < $one) AS expected, segment
FROM t GROUP BY segment
HAVING arg_max(x, step) < $one AND min(x) FILTER (WHERE x < $one) * $fall <= max(x)
    AND coalesce(bool_and(x <= before), true)
ORDER BY step_start
