-- Where the weights broke, a loss above 0 came first. The filter prints 0.0 for a NaN loss, so a gradient that is
-- exactly 0 or an evaluation that is not finite from the first one on must stand beside it.
WITH s AS (SELECT segment, min(step) AS first, max(step) AS last, max(loss) AS top,
    min(step) FILTER (WHERE bad(eval_loss__state)) AS first_eval,
        avg(bad(eval_loss__state)::INT) FILTER (WHERE eval_loss__state IS NOT NULL) AS bad_evals,
            count(*) FILTER (WHERE loss = 0 AND grad_norm = 0) AS empty, count(loss) AS rows_seen
            FROM train
            GROUP BY segment)
SELECT CASE WHEN bad_evals >= $share THEN least(first_eval, first) ELSE first END AS step_start, last AS step_end,
    0.0 AS observed, NULL::DOUBLE AS expected, segment,
    CASE WHEN bad_evals >= $share THEN 'the evaluation loss is not finite from the first evaluation on'
        ELSE 'so is the gradient norm' END AS what
FROM s
    WHERE top <= 0 AND (coalesce(bad_evals >= $share, false) OR empty >= $hold AND empty >= $share * rows_seen)
    ORDER BY step_start
