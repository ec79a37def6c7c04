WITH t AS (
    SELECT segment, step, bad(grad_norm__state) AS is_bad, grad_norm__state AS state, loss, loss__state,
        coalesce(loss <> 0 OR loss IS NULL AND policy_loss IS NOT NULL, false) AND NOT bad(policy_loss__state) AS loss_fine,
        count(*) OVER (PARTITION BY segment) AS n,
        row_number() OVER (PARTITION BY segment ORDER BY step DESC) AS back,
        sum(bad(grad_norm__state)::INT) OVER (PARTITION BY segment) AS bad_total,
        coalesce(loss_scale > 1 OR skipped_steps > 0, false) AS scaled
    FROM train WHERE grad_norm__state IS NOT NULL),
marked AS (SELECT *, avg(is_bad::INT) OVER tail AS share, sum(is_bad::INT) OVER tail AS bad_rows,
    count(*) OVER tail AS left_rows, avg(is_bad::INT) OVER (PARTITION BY segment ORDER BY step
        ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS near,
        bool_or(is_bad AND back = 1 OR is_bad AND back = 2 AND bad_total >= 3) OVER (PARTITION BY segment) AS ends_bad
    FROM t WINDOW tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
turned AS (SELECT segment, min(step) AS step_start FROM marked
    WHERE is_bad AND ends_bad AND share >= $share AND near >= $share AND (bad_rows >= $scaled_hold OR NOT scaled)
        AND (bad_rows >= $last OR NOT loss_fine OR n < $thin) GROUP BY segment),
root AS (
    SELECT min(m.step) AS step_start, max(m.step) FILTER (WHERE is_bad) AS step_end, NULL::DOUBLE AS observed,
        NULL::DOUBLE AS expected, m.segment,
        count(*) FILTER (WHERE is_bad) AS bad, count(*) AS "left",
        CASE arg_min(state, m.step) WHEN 'masked' THEN '-1.0 (the mask for NaN or Inf)'
            WHEN 'nonfinite' THEN 'null (not finite)' WHEN 'pos_inf' THEN 'inf' WHEN 'neg_inf' THEN '-inf'
            ELSE arg_min(state, m.step) END AS shown,
        CASE WHEN arg_min(loss__state, m.step) = 'absent' THEN ', and the loss is missing from those lines'
             WHEN max(loss) FILTER (WHERE is_bad) = 0
                 AND min(loss) FILTER (WHERE is_bad) = 0 THEN ', and the loss prints as 0 (NaN filter)'
                 ELSE '' END AS loss_note,
        'root' AS role
    FROM marked m JOIN turned USING (segment) WHERE m.step >= turned.step_start GROUP BY m.segment),
passing AS (
    SELECT min(step), max(step), NULL, NULL, segment, count(*), any_value(left_rows), min(state), '', 'benign'
    FROM marked LEFT JOIN turned USING (segment)
        WHERE is_bad AND (step_start IS NULL OR step < step_start)
        GROUP BY segment)
SELECT * FROM root UNION ALL SELECT * FROM passing ORDER BY 1
