-- `k` counts the rows with a loss; a loss printed as exactly 0 throughout may be a filter's word for NaN, so one above 0 must be there.
WITH t AS (SELECT segment, step, loss, grad_norm, row_number() OVER w AS k, first_value(loss) OVER w AS began,
        first_value(grad_norm) OVER w AS norm, last_value(step) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS last,
        count(reward_margin) OVER (PARTITION BY segment) + count(reward_chosen) OVER (PARTITION BY segment)
            + count(reward) OVER (PARTITION BY segment) + count(policy_loss) OVER (PARTITION BY segment) AS others
    FROM train WHERE fin(loss) WINDOW w AS (PARTITION BY segment ORDER BY step)),
f AS (SELECT segment, min(step) AS first, min(k) AS k FROM t WHERE loss < $nothing GROUP BY segment),
s AS (SELECT t.segment, any_value(first) AS first, any_value(f.k) AS k, any_value(last) AS last, any_value(began) AS began,
        any_value(norm) AS norm, max(loss) AS top, max(grad_norm) AS norm_top, count(*) AS rows_seen, any_value(others) AS others,
        arg_min(loss, step) AS fell
    FROM t JOIN f USING (segment) WHERE step >= first GROUP BY t.segment)
SELECT first AS step_start, last AS step_end, fell AS observed, began AS expected, segment,
    CASE WHEN norm IS NULL OR norm_top IS NULL THEN ''
        ELSE printf(', the gradient norm from %.3g to %.3g', norm, norm_top) END AS gradient
FROM s
WHERE began >= $ordinary AND k BETWEEN 2 AND $early AND rows_seen >= $hold AND top < $nothing AND top > 0 AND others = 0
    AND coalesce(norm_top <= $gone * norm, true)
ORDER BY step_start
