SELECT min(step) AS step_start, max(step) AS step_end, 0.0 AS observed, NULL::DOUBLE AS expected, segment,
    count(*) FILTER (WHERE lr = 0) AS rows_bad, count(*) AS rows_seen
FROM train
    WHERE fin(lr)
    GROUP BY segment
    HAVING avg((lr = 0 AND lr__state = 'finite')::INT) >= $share
        AND count(*) FILTER (WHERE bad(grad_norm__state)) < 0.5 * count(*)
    ORDER BY step_start
