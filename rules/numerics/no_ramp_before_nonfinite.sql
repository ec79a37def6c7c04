-- The turn: first row of the final bad stretch, with a loss that is still finite (one that turns first is a fault of the
-- forward pass, its input, or the loss). The rows before must be finite, flat, and (in RL) healthy in policy.
WITH t AS (
    SELECT segment, step, grad_norm AS x, coalesce(loss, 0) AS l,
        bad(grad_norm__state) OR bad(loss__state) OR bad(policy_loss__state) AS is_bad, bad(loss__state)
            OR bad(policy_loss__state) OR bad(entropy__state) AS loss_bad,
        coalesce(truncated_frac > 0.95 OR abs(kl_ref) > 10 OR abs(kl_old) > 1, false) AS policy_sick
    FROM train WHERE grad_norm__state IS NOT NULL OR loss__state IS NOT NULL OR policy_loss__state IS NOT NULL),
m AS (SELECT *, share_left(is_bad, segment, step) AS share, avg(is_bad::INT) OVER (PARTITION BY segment ORDER BY step
    ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS near FROM t),
turn AS (SELECT segment, min(step) AS turn FROM m WHERE is_bad AND share >= 0.5 AND near >= 0.5 GROUP BY segment),
prior AS (SELECT m.*, turn, row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS back
    FROM m JOIN turn USING (segment)
    WHERE step < turn AND fin(x)),
s AS (SELECT segment, any_value(turn) AS turn, count(*) AS seen, median(x) AS mid,
    max(x) FILTER (WHERE back <= $window) AS top, arg_min(x, back) AS last,
        bool_or(policy_sick) AS sick, median(l) AS loss_mid, arg_min(l, back) AS loss_last,
            median(l) FILTER (WHERE back > $window) AS loss_early
    FROM prior GROUP BY segment),
-- In RL, many ranks send gradients: where no scaler skipped the update and the next forward pass is lost too, one may have.
spread AS (SELECT segment, bool_or(loss_bad OR policy_sick) AS spread FROM (
    SELECT m.segment, loss_bad, policy_sick, row_number() OVER (PARTITION BY m.segment ORDER BY step) AS nth
    FROM m JOIN turn USING (segment) WHERE step > turn) WHERE nth <= $next GROUP BY segment),
rl AS (SELECT segment, count(entropy) + count(kl_ref) + count(reward) > 0 AS rl FROM train GROUP BY segment)
SELECT turn AS step_start, turn AS step_end, last AS observed, mid AS expected, s.segment, seen,
    CASE WHEN spread AND rl THEN $unsure END AS strength
FROM s JOIN m ON m.segment = s.segment AND m.step = s.turn JOIN rl ON rl.segment = s.segment
    LEFT JOIN spread ON spread.segment = s.segment
WHERE NOT loss_bad AND (l <> 0 OR loss_mid = 0) AND seen >= $before AND NOT sick AND top <= $ramp * mid AND last <= $ramp * mid
    AND (loss_early IS NULL OR loss_early <= 0 OR loss_last <= 2 * loss_early)
ORDER BY step_start
