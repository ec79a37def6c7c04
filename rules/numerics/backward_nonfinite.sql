-- First step of those from which on bad layers are frequent; the layers hit must be the lowest ones (0..top), or all while most values are finite.
WITH any_bad AS (SELECT segment, step, bool_or(bad(grad_norm__state)) AS is_bad FROM layer
    WHERE grad_norm__state IS NOT NULL AND layer IS NOT NULL GROUP BY segment, step),
m AS (SELECT *, share_left(is_bad, segment, step) AS share, avg(is_bad::INT) OVER (PARTITION BY segment ORDER BY step
        ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS near FROM any_bad),
b AS (SELECT segment, min(step) AS step FROM m WHERE is_bad AND share >= $turned AND near >= $turned GROUP BY segment),
s AS (SELECT segment, step, count(*) AS layers, count(*) FILTER (WHERE bad(grad_norm__state)) AS hit,
        max(layer) FILTER (WHERE bad(grad_norm__state)) AS top, min(layer) AS lowest,
        min(layer) FILTER (WHERE NOT bad(grad_norm__state)) AS first_good, bool_or(bad(act_norm__state)) AS forward_bad
    FROM layer JOIN b USING (segment, step) WHERE grad_norm__state IS NOT NULL AND layer IS NOT NULL GROUP BY segment, step),
r AS (SELECT s.*, t.nonfinite_grad_frac AS share
    FROM s JOIN train t USING (segment, step)
    WHERE NOT forward_bad AND NOT bad(t.loss__state) AND NOT bad(t.policy_loss__state)
        AND coalesce(t.loss <> 0, t.policy_loss IS NOT NULL, false))
SELECT step AS step_start, step AS step_end, hit::DOUBLE AS observed, 0.0 AS expected, segment,
    CASE WHEN hit < layers THEN top END AS layer,
    CASE WHEN hit = layers THEN printf('all %d layers, in %.2g of the values', layers, share)
        ELSE printf('layer %d and all layers below (%d of %d)', top, hit, layers) END AS place
FROM r
WHERE layers >= 2 AND CASE WHEN hit = layers THEN coalesce(share <= $few, false)
    ELSE first_good > top AND (hit > 1 OR coalesce(share <= $isolated, false)) END
ORDER BY step_start
