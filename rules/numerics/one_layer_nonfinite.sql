WITH any_bad AS (SELECT segment, step, bool_or(bad(grad_norm__state)) AS is_bad FROM layer
    WHERE grad_norm__state IS NOT NULL AND layer IS NOT NULL GROUP BY segment, step),
m AS (SELECT *, share_left(is_bad, segment, step) AS share, avg(is_bad::INT) OVER (PARTITION BY segment ORDER BY step
        ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS near FROM any_bad),
b AS (SELECT segment, min(step) AS step FROM m WHERE is_bad AND share >= $turned AND near >= $turned GROUP BY segment),
s AS (SELECT segment, step, count(*) AS layers, count(*) FILTER (WHERE bad(grad_norm__state)) AS hit,
        min(layer) FILTER (WHERE bad(grad_norm__state)) AS layer, min(layer) AS lowest,
        bool_or(bad(act_norm__state)) AS forward_bad
    FROM layer JOIN b USING (segment, step) WHERE grad_norm__state IS NOT NULL AND layer IS NOT NULL GROUP BY segment, step)
SELECT step AS step_start, step AS step_end, hit::DOUBLE AS observed, 0.0 AS expected, segment, layer,
    (SELECT count(*) FROM layer l WHERE l.segment = s.segment AND l.step = s.step AND l.layer < s.layer
        AND fin(l.grad_norm)) AS below
FROM s WHERE NOT forward_bad AND layer > lowest AND hit <= $share * layers
ORDER BY step_start
