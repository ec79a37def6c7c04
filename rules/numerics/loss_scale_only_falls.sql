WITH t AS (SELECT segment, step, loss_scale AS x, lag(loss_scale) OVER (PARTITION BY segment ORDER BY step) AS before,
    fin(loss) AS has_loss
    FROM train
    WHERE fin(loss_scale) AND loss_scale > 0)
SELECT min(step) AS step_start, max(step) AS step_end, min(x) AS observed, max(x) AS expected, segment,
    count(*) AS rows_seen
FROM t GROUP BY segment
HAVING coalesce(bool_and(x < before), true) AND log2(max(x) / min(x)) >= $halvings AND min(x) < $level
    AND NOT bool_or(has_loss)
ORDER BY step_start
