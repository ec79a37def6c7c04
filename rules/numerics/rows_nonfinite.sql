WITH t AS (SELECT segment, step, layer, nonfinite_act_frac AS x FROM layer WHERE layer IS NOT NULL AND fin(nonfinite_act_frac)),
b AS (SELECT segment, min(step) AS step FROM t WHERE x > 0 GROUP BY segment),
s AS (SELECT segment, step, min(layer) AS lowest, min(layer) FILTER (WHERE x > 0) AS layer, max(layer) AS highest,
        arg_min(x, layer) FILTER (WHERE x > 0) AS share, max(x) AS top, count(*) AS layers
    FROM t JOIN b USING (segment, step) GROUP BY segment, step)
SELECT step AS step_start, step AS step_end, share AS observed, 0.0 AS expected, segment, layer
FROM s WHERE layer > lowest AND layer < highest AND share >= $same * top AND top <= $most ORDER BY step_start
