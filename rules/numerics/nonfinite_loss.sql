-- Weak where the gradient turned in the row before, beside a loss that was still finite: then the loss follows.
-- Bad is: a loss that was written as not finite; or, where no loss is logged, every forward metric that is.
WITH t AS (
    SELECT segment, step, row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS back,
        row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
        coalesce(lag(bad(grad_norm__state) AND coalesce(loss, policy_loss) <> 0) OVER (PARTITION BY segment ORDER BY step), false)
            AS gradient_first,
        CASE WHEN bad(loss__state) THEN 'loss' WHEN bad(policy_loss__state) THEN 'policy_loss'
             WHEN bad(objective__state) THEN 'objective'
             WHEN bad(critic_value_loss__state) THEN 'critic_value_loss'
             WHEN loss__state IS NULL AND policy_loss__state IS NULL OR bad(grad_norm__state) THEN
                 CASE WHEN bad(kl_ref__state) THEN 'kl_ref' WHEN bad(entropy__state) THEN 'entropy' END END AS signal,
        coalesce(CASE WHEN bad(loss__state) THEN loss__state END, CASE
            WHEN bad(policy_loss__state) THEN policy_loss__state WHEN bad(objective__state) THEN objective__state END,
            CASE WHEN bad(critic_value_loss__state) THEN critic_value_loss__state END,
            CASE WHEN bad(kl_ref__state) THEN kl_ref__state END, entropy__state) AS state
    FROM train
    WHERE coalesce(loss__state, policy_loss__state, critic_value_loss__state, kl_ref__state,
        entropy__state) IS NOT NULL),
marked AS (SELECT *, signal IS NOT NULL AS is_bad,
        avg((signal IS NOT NULL)::INT) OVER tail AS share, count(*) OVER tail AS left_rows,
            sum((signal IS NOT NULL)::INT) OVER tail AS bad_rows,
        bool_or(signal IS NOT NULL AND back <= 2) OVER (PARTITION BY segment) AS ends_bad,
            bool_or(signal IS NOT NULL AND back = 1) OVER (PARTITION BY segment) AS last_bad
    FROM t WINDOW tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
turned AS (SELECT segment, min(step) AS step_start
    FROM marked
    WHERE is_bad AND ends_bad AND share >= $share AND (last_bad OR bad_rows >= $hold)
    GROUP BY segment),
root AS (
    SELECT min(m.step) AS step_start, max(m.step) FILTER (WHERE is_bad) AS step_end, NULL::DOUBLE AS observed,
        NULL::DOUBLE AS expected,
        m.segment, arg_min(signal, m.step) FILTER (WHERE is_bad) AS signal, count(*) FILTER (WHERE is_bad) AS bad,
            count(*) AS "left",
        CASE arg_min(state, m.step) FILTER (WHERE is_bad) WHEN 'nonfinite' THEN 'not finite' WHEN 'pos_inf' THEN 'inf'
            WHEN 'neg_inf' THEN '-inf' ELSE arg_min(state, m.step) FILTER (WHERE is_bad) END AS shown,
        CASE WHEN min(k) > 1 THEN 'finite before' ELSE 'from the first row on' END AS before, 'root' AS role,
        CASE WHEN arg_min(gradient_first, m.step) FILTER (WHERE is_bad) THEN $follows END AS strength
    FROM marked m JOIN turned USING (segment) WHERE m.step >= turned.step_start GROUP BY m.segment),
passing AS (
    SELECT min(step), max(step), NULL, NULL, segment, min(signal), count(*), any_value(left_rows), min(state), '',
        'benign', NULL
    FROM marked LEFT JOIN turned USING (segment)
        WHERE is_bad AND (step_start IS NULL OR step < step_start)
        GROUP BY segment)
SELECT * FROM root UNION ALL SELECT * FROM passing ORDER BY 1
