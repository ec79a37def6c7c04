WITH t AS (SELECT segment, step, layer, nonfinite_act_frac AS x, bad(grad_norm__state) AS bad_gradient FROM layer
    WHERE layer IS NOT NULL AND fin(nonfinite_act_frac)),
b AS (SELECT segment, min(step) FILTER (WHERE x > 0) AS step, min(step) AS start,
    array_agg(step) FILTER (WHERE bad_gradient) AS bad_steps FROM t GROUP BY segment)
SELECT step AS step_start, step AS step_end, arg_min(x, layer) FILTER (WHERE x > 0) AS observed, 0.0 AS expected, segment,
    min(layer) FILTER (WHERE x > 0) AS layer
FROM t JOIN b USING (segment, step) WHERE step > start AND NOT coalesce(list_contains(bad_steps, step - 1) OR list_contains(bad_steps, step - 2), false)
GROUP BY segment, step
HAVING arg_min(x, layer) FILTER (WHERE x > 0) >= $most ORDER BY step_start
