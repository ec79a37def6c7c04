-- Two contrasts of a step's log norms that cancel what all layers share: the slope over depth (as a ratio of the first
-- to the last layer), and the layer farthest from the median layer. Each is held against its own rows before.
WITH g AS (SELECT segment, step, layer, ln(grad_norm) AS raw, ln(act_norm) AS act FROM layer
    WHERE layer IS NOT NULL AND fin(grad_norm) AND grad_norm > 0 AND coalesce(act_norm > 0, true)),
whole AS (SELECT segment, step, median(raw) AS middle, count(*) AS layers,
        -regr_slope(raw, layer) * (max(layer) - min(layer)) AS tilt
    FROM g GROUP BY segment, step),
most AS (SELECT segment, max(layers) AS layers FROM whole GROUP BY segment HAVING max(layers) >= 3),
kept AS (SELECT w.* FROM whole w JOIN most m USING (segment) WHERE w.layers = m.layers),
x AS (SELECT segment, step, NULL AS layer, tilt AS x FROM kept
    UNION ALL SELECT g.segment, g.step, g.layer, g.raw - k.middle FROM g JOIN kept k USING (segment, step)),
w AS (SELECT *, median(x) OVER b AS before, median(x) OVER a AS after, median(x) OVER near AS near,
        quantile_cont(x, 0.15) OVER b AS b_low, quantile_cont(x, 0.85) OVER b AS b_high,
        quantile_cont(x, 0.15) OVER a AS a_low, quantile_cont(x, 0.85) OVER a AS a_high,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows
    FROM x WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
        near AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING)),
c AS (SELECT *, after - before AS d, CASE WHEN after > before THEN a_low - b_high ELSE b_low - a_high END AS gap
    FROM w WHERE b_rows >= 6 AND a_rows >= 6),
best AS (SELECT * FROM c
    WHERE gap > $gap * CASE WHEN layer IS NULL THEN 1 ELSE 2 END AND abs(d) > $shift AND (x - near) * sign(d) > $sudden * abs(d)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
f AS (SELECT segment, step, act - median(act) OVER (PARTITION BY segment, layer ORDER BY step
        ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING) AS moved FROM g),
m AS (SELECT segment, step, max(abs(moved)) AS moved FROM f GROUP BY segment, step),
ends AS (SELECT segment, max(step) AS last FROM whole GROUP BY segment)
SELECT b.step AS step_start, ends.last AS step_end, exp(d) AS observed, 1.0 AS expected, segment, layer,
    CASE WHEN layer IS NULL THEN printf('the ratio of the first layer''s gradient norm to the last one''s is %.3gx what it was', exp(d))
        ELSE printf('layer %d''s gradient norm is %.3gx what it was against the median layer', layer, exp(d)) END AS how
FROM best b JOIN m USING (segment, step) JOIN ends USING (segment)
WHERE coalesce(moved <= $forward, true)
ORDER BY step_start
