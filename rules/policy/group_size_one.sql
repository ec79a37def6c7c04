SELECT min(step) AS step_start, max(step) AS step_end,
    avg((abs(advantage_max - score_max) <= $tolerance
        AND abs(advantage_min - score_min) <= $tolerance)::INT) AS observed,
    0.0 AS expected, segment, count(*) AS rows_seen
FROM train WHERE fin(advantage_max) AND fin(score_max) AND fin(advantage_min) AND fin(score_min)
GROUP BY segment
HAVING count(*) >= 3 AND observed >= $share AND max(score_max) > min(score_min) AND count(DISTINCT score_max) >= 3
    AND count(critic_value) = 0
ORDER BY step_start
