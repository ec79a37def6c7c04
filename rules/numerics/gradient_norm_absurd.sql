SELECT min(step) AS step_start, max(step) AS step_end, median(grad_norm) AS observed, $level AS expected, segment,
    count(*) AS rows_seen, median(coalesce(loss, policy_loss)) AS loss_level
FROM train WHERE fin(grad_norm)
GROUP BY segment
HAVING avg((grad_norm > $level)::INT) >= $share AND coalesce(max(loss_scale), 1) <= 1
    AND median(abs(coalesce(loss, policy_loss))) < 100
ORDER BY step_start
