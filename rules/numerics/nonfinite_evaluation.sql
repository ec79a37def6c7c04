WITH t AS (SELECT segment, step, eval_loss__state AS state, bad(eval_loss__state) AS is_bad
    FROM train
    WHERE eval_loss__state IS NOT NULL),
m AS (SELECT *,
    min(is_bad::INT) OVER (PARTITION BY segment
        ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS to_end
    FROM t)
SELECT min(step) AS step_start, max(step) AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, m.segment,
    replace(replace(replace(arg_max(state, step), 'nonfinite', 'null'), 'pos_', ''), 'neg_', '-') AS shown,
    CASE WHEN min(g.first) <= min(step) THEN $follows END AS strength
FROM m LEFT JOIN (SELECT segment, min(step) AS first FROM train
    WHERE bad(grad_norm__state) AND loss <> 0 GROUP BY segment) g
    ON g.segment = m.segment
WHERE to_end = 1 GROUP BY m.segment ORDER BY step_start
