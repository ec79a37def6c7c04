SELECT min(step) FILTER (WHERE loss <= $loss AND reward_chosen <= $chosen) AS step_start, max(step) AS step_end,
    median(reward_chosen) AS observed, 0.0 AS expected, segment,
    median(loss) AS loss_level, median(reward_rejected) AS rejected
FROM (SELECT *, row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS back
    FROM train
    WHERE fin(loss) AND fin(reward_chosen) AND fin(reward_rejected))
    WHERE back <= 20
GROUP BY segment HAVING median(loss) <= $loss AND median(reward_chosen) <= $chosen AND count(*) >= 3 ORDER BY step_start
