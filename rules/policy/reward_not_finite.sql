-- Where loss or gradient broke in an earlier row the model is broken, and its answers and rewards are only the echo.
-- Where the loss breaks in the same rows, that is the failure, and the reward its cause.
WITH t AS (SELECT segment, step, bad(score__state) OR score__state IS NULL AND bad(reward__state) AS is_bad,
    coalesce(score__state, reward__state) AS state,
    bad(grad_norm__state) OR bad(loss__state) OR bad(policy_loss__state) AS broken,
    bad(loss__state) OR bad(policy_loss__state) AS loss_bad
    FROM train
    WHERE coalesce(score__state, reward__state) IS NOT NULL),
s AS (SELECT segment, min(step) FILTER (WHERE is_bad) AS step_start, max(step) FILTER (WHERE is_bad) AS step_end,
    count(*) FILTER (WHERE is_bad) AS rows_bad, count(*) AS rows_seen, arg_min(state, step)
        FILTER (WHERE is_bad) AS state,
    count(*) FILTER (WHERE is_bad AND loss_bad) AS lost, min(step) FILTER (WHERE broken) AS broke
    FROM t
    GROUP BY segment)
SELECT step_start, step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rows_bad, rows_seen,
    replace(replace(replace(state, 'nonfinite', 'null'), 'pos_', ''), 'neg_', '-') AS shown
FROM s
WHERE rows_bad >= $hold AND lost < $hold AND coalesce(step_start <= broke, true)
ORDER BY step_start
