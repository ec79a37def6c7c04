WITH t AS (SELECT segment, step, reward_max, reward_min, bad(policy_loss__state) OR bad(kl_ref__state)
    OR bad(grad_norm__state) AS is_bad
    FROM train
    WHERE fin(reward_max) AND fin(reward_min)),
m AS (SELECT *, share_left(is_bad, segment, step) AS share FROM t),
turn AS (SELECT segment, min(step) AS step FROM m WHERE is_bad AND share >= 0.5 GROUP BY segment)
SELECT m.step AS step_start, m.step AS step_end, reward_max AS observed, NULL::DOUBLE AS expected, m.segment
FROM m JOIN turn USING (segment, step) WHERE reward_max - reward_min <= $flat ORDER BY m.step
