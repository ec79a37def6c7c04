SELECT min(step) AS step_start, max(step) AS step_end, median(truncated_frac) AS observed, 0.0 AS expected, segment,
    count(*) AS rows_seen
FROM train WHERE fin(truncated_frac) AND NOT bad(grad_norm__state)
GROUP BY segment
HAVING avg((truncated_frac >= $full
    AND coalesce(coalesce(score, reward) <= 0 OR zero_std_frac >= $full OR reward_std = 0, false))::INT) >= $share
ORDER BY step_start
