-- Solved: every answer of the batch gets the best reward of the run, in a run that also saw a lower one.
WITH t AS (SELECT segment, step,
        coalesce(zero_std_frac >= $full, false) AS by_groups,
        coalesce(abs(advantage_max) < 5e-4 AND abs(advantage_min) < 5e-4, false) AS by_advantage,
        coalesce(reward_std = 0 AND reward_std__state = 'finite', false) AS by_spread,
        coalesce(coalesce(reward_max, score_max) > coalesce(reward_min, score_min), false) AS varied,
        coalesce(coalesce(reward_min, score_min) = max(coalesce(reward_max, score_max)) OVER w
            AND coalesce(reward_min, score_min) > min(coalesce(reward_min, score_min)) OVER w, false) AS solved,
        bad(grad_norm__state) AS poisoned, coalesce(grad_norm = 0 AND grad_norm__state = 'finite', false) AS idle
    FROM train
        WHERE coalesce(zero_std_frac__state, advantage_max__state, reward_std__state) IS NOT NULL
        WINDOW w AS (PARTITION BY segment)),
m AS (SELECT *, share_left(by_groups OR by_advantage OR by_spread, segment, step) AS share,
    count(*) OVER (PARTITION BY segment) AS rows_all
    FROM t),
f AS (SELECT segment, min(step) AS first
    FROM m
    WHERE (by_groups OR by_advantage OR by_spread) AND share >= $share
    GROUP BY segment),
s AS (SELECT m.segment, min(step) AS step_start, max(step) AS step_end, count(*) AS rows_seen,
    count(*) FILTER (WHERE by_groups OR by_advantage OR by_spread) AS rows_bad,
        count(*) FILTER (WHERE by_advantage AND varied) AS certain, bool_or(poisoned) AS poisoned,
            any_value(rows_all) AS rows_all, avg(solved::INT) AS solved, count(*) FILTER (WHERE by_groups) AS groups,
            count(*) FILTER (WHERE by_advantage) AS advantages, count(*) FILTER (WHERE idle) AS idle
    FROM m JOIN f USING (segment) WHERE step >= first GROUP BY m.segment)
SELECT step_start, step_end, rows_bad::DOUBLE AS observed, 0.0 AS expected, segment, rows_bad, rows_seen,
    CASE WHEN groups > 0 THEN 'the share of groups with equal rewards is 95 % or more'
         WHEN certain > 0 THEN 'advantages are 0 although rewards vary, so the answers inside each group are alike'
         WHEN advantages > 0 THEN 'every advantage is 0'
             ELSE 'the within-group spread of the reward is exactly 0' END AS what,
    CASE WHEN rows_bad < $hold AND certain = 0 THEN 0.7 ELSE 0.88 END AS strength
FROM s
    WHERE (rows_bad >= $hold OR rows_bad = rows_seen AND rows_seen = rows_all AND (rows_seen >= 2 OR advantages > 0 OR idle = rows_seen))
        AND NOT poisoned AND solved < 0.5
    ORDER BY step_start
