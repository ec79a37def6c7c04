WITH t AS (SELECT segment, step, layer, nonfinite_act_frac AS x, lead(nonfinite_act_frac) OVER w AS next,
        max(nonfinite_act_frac) OVER (PARTITION BY segment, step ORDER BY layer ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS below,
        lead(nonfinite_act_frac, 2) OVER w AS over
    FROM layer WHERE layer IS NOT NULL AND fin(nonfinite_act_frac) WINDOW w AS (PARTITION BY segment, step ORDER BY layer)),
b AS (SELECT segment, min(step) AS step FROM t WHERE x > 0 GROUP BY segment)
SELECT step AS step_start, step AS step_end, x AS observed, 0.0 AS expected, segment, layer, next
FROM t JOIN b USING (segment, step)
WHERE x > 0 AND coalesce(below = 0, true) AND x < $spread * next AND next <= coalesce(over, next) ORDER BY step_start
