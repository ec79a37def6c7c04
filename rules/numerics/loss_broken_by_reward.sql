WITH t AS (SELECT segment, step, bad(score__state) OR score__state IS NULL AND bad(reward__state) AS reward_bad,
    bad(loss__state) OR bad(policy_loss__state) AS loss_bad
    FROM train
    WHERE coalesce(score__state, reward__state) IS NOT NULL AND coalesce(loss__state, policy_loss__state) IS NOT NULL),
s AS (SELECT segment, min(step) FILTER (WHERE reward_bad AND loss_bad) AS step_start,
    max(step) FILTER (WHERE reward_bad AND loss_bad) AS step_end, min(step) FILTER (WHERE loss_bad) AS broke,
    count(*) FILTER (WHERE reward_bad AND loss_bad) AS "both", count(*) FILTER (WHERE loss_bad AND NOT reward_bad) AS alone
    FROM t
    GROUP BY segment)
SELECT step_start, step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, "both", alone
FROM s
WHERE "both" >= $hold AND "both" >= $together * ("both" + alone) AND broke = step_start
ORDER BY step_start
