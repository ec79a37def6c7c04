WITH t AS (SELECT segment, step, grad_norm, lr,
        update_ratio = 0 AND grad_norm > 0 AND coalesce(lr > $rate, true) AND coalesce(skipped_steps = 0, true) AS lost
    FROM train WHERE fin(update_ratio) AND fin(grad_norm)),
m AS (SELECT *, share_left(lost, segment, step) AS share FROM t),
f AS (SELECT segment, min(step) AS first FROM m WHERE lost AND share >= $share GROUP BY segment)
SELECT first AS step_start, max(step) AS step_end, 0.0 AS observed, NULL::DOUBLE AS expected, segment,
    count(*) FILTER (WHERE lost) AS rows_bad, count(*) AS rows_seen, median(grad_norm) FILTER (WHERE lost) AS norm,
    CASE WHEN median(lr) IS NOT NULL THEN printf(' and a learning rate of %.3g', median(lr)) ELSE '' END AS rate_note
FROM m JOIN f USING (segment) WHERE step >= first
GROUP BY segment, first HAVING count(*) FILTER (WHERE lost) >= $hold
ORDER BY step_start
