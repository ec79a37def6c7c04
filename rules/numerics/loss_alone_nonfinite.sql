WITH t AS (SELECT segment, step, bad(policy_loss__state) OR bad(loss__state) AS is_bad, fin(entropy) AS entropy_fine,
        bad(entropy__state) AS entropy_bad, nonfinite_act_frac AS act, bad(params_norm__state) AS weights_bad,
        row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train WHERE policy_loss__state IS NOT NULL OR loss__state IS NOT NULL),
f AS (SELECT * FROM t WHERE is_bad QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step) = 1)
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment,
    concat_ws(' and ', CASE WHEN entropy_fine THEN 'the entropy is' END,
        CASE WHEN act = 0 THEN 'all activations are' END) || ' finite' AS shown
FROM f WHERE k > $before AND (entropy_fine OR coalesce(act = 0, false)) AND NOT entropy_bad AND coalesce(act = 0, true)
ORDER BY step_start
