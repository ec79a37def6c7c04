WITH t AS (SELECT segment, step, loss, lag(loss) OVER (PARTITION BY segment ORDER BY step) AS before,
        max(loss) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS top_left,
        count(grad_norm__state) OVER (PARTITION BY segment) + count(reward_margin) OVER (PARTITION BY segment)
            + count(reward_chosen) OVER (PARTITION BY segment) AS others,
        max(step) OVER (PARTITION BY segment) AS last
    FROM train WHERE fin(loss))
SELECT min(step) AS step_start, any_value(last) AS step_end, 0.0 AS observed, arg_min(before, step) AS expected, segment
FROM t WHERE loss = 0 AND before >= $level AND top_left = 0 AND others = 0 GROUP BY segment ORDER BY step_start
