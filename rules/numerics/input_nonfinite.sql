WITH t AS (SELECT segment, step, layer, nonfinite_act_frac AS x FROM layer WHERE layer IS NOT NULL AND fin(nonfinite_act_frac)),
b AS (SELECT segment, min(step) AS step FROM t WHERE x > 0 GROUP BY segment)
SELECT step AS step_start, step AS step_end, max(x) AS observed, 0.0 AS expected, segment, count(*) AS layers
FROM t JOIN b USING (segment, step)
WHERE NOT EXISTS (FROM train w WHERE w.segment = t.segment AND w.step = t.step AND bad(w.params_norm__state))
GROUP BY segment, step
HAVING min(x) > 0 AND min(x) >= 0.99 * max(x) AND max(x) <= $most AND count(*) >= 2 ORDER BY step_start
