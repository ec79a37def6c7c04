SELECT min(step) AS step_start, max(step) AS step_end, min(loss) AS observed, NULL::DOUBLE AS expected, segment,
    count(*) AS rows_seen
FROM train WHERE fin(loss)
GROUP BY segment HAVING count(*) >= 8 AND min(loss) = max(loss) AND min(loss) > $level AND count(*) FILTER (WHERE bad(grad_norm__state)) = 0
ORDER BY step_start
