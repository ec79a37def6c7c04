WITH t AS (SELECT segment, step, grad_norm = 0 AND grad_norm__state = 'finite' AS zero,
    coalesce(loss, policy_loss) AS l, coalesce(reward_std > 0, false) AS signal_exists,
        coalesce(zero_std_frac >= 0.99 OR (advantage_max = 0 AND advantage_min = 0) OR reward_std = 0
            OR skipped_steps > 0 OR lr = 0
            OR loss = 0 AND (reward_margin IS NOT NULL OR coalesce(max(loss) OVER w, 0) < $ordinary), false) AS excused
    FROM train WHERE fin(grad_norm) WINDOW w AS (PARTITION BY segment)),
m AS (SELECT *, share_left(zero, segment, step) AS share FROM t),
f AS (SELECT segment, min(step) AS first FROM m WHERE zero AND share >= $share GROUP BY segment)
SELECT min(step) AS step_start, max(step) AS step_end, 0.0 AS observed, NULL::DOUBLE AS expected, segment,
    count(*) FILTER (WHERE zero) AS rows_bad
FROM m JOIN f USING (segment) WHERE step >= first
GROUP BY segment
HAVING (count(*) FILTER (WHERE zero) >= $hold OR bool_and(zero AND signal_exists)) AND avg(excused::INT) < 0.5
    AND coalesce(max(l) - min(l) <= $still * greatest(abs(median(l)), 1e-9) OR median(abs(l)) < 1e-3, true)
ORDER BY step_start
