-- Each layer's log norm against the median layer of its step: what all layers share (batch, reward noise, loss scale, a
-- global factor) cancels. A step of it parts the rows before from the rows after.
WITH g AS (SELECT segment, step, layer, ln(grad_norm) AS raw, ln(act_norm) AS act FROM layer
    WHERE layer IS NOT NULL AND fin(grad_norm) AND grad_norm > 0 AND coalesce(act_norm > 0, true)),
whole AS (SELECT segment, step, median(raw) AS middle, count(*) AS layers FROM g GROUP BY segment, step),
most AS (SELECT segment, max(layers) AS layers FROM whole GROUP BY segment HAVING max(layers) >= 3),
r AS (SELECT g.*, raw - middle AS x, m.layers FROM g JOIN whole w USING (segment, step) JOIN most m USING (segment)
    WHERE w.layers = m.layers),
w AS (SELECT *, median(x) OVER b AS before, median(x) OVER a AS after, median(x) OVER near AS near,
        quantile_cont(x, 0.15) OVER b AS b_low, quantile_cont(x, 0.85) OVER b AS b_high,
        quantile_cont(x, 0.15) OVER a AS a_low, quantile_cont(x, 0.85) OVER a AS a_high,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows,
        abs(act - median(act) OVER near) AS act_moved, median(raw) OVER a - median(raw) OVER b AS own
    FROM r WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
        near AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING)),
c AS (SELECT *, after - before AS d,
    CASE WHEN after > before THEN a_low - b_high ELSE b_low - a_high END AS gap FROM w),
hit AS (SELECT *, b_rows >= $rows AND a_rows >= $rows AND gap > $gap AND abs(d) > $shift
        AND (x - near) * sign(d) > $sudden * abs(d) AS off FROM c),
s AS (SELECT segment, step, any_value(layers) AS layers, count(*) FILTER (WHERE off) AS layers_off,
        arg_max(layer, gap) FILTER (WHERE off) AS layer, arg_max(exp(d), gap) FILTER (WHERE off) AS times,
        max(gap) FILTER (WHERE off) AS gap, max(act_moved) AS act_moved, max(exp(abs(own))) AS own,
        min(layer) FILTER (WHERE off) AS first, max(layer) FILTER (WHERE off) AS last
    FROM hit GROUP BY segment, step HAVING bool_or(off)),
best AS (SELECT * FROM s QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
ends AS (SELECT segment, max(step) AS last FROM whole GROUP BY segment),
l AS (SELECT segment, step, abs(ln(loss / median(loss) OVER (PARTITION BY segment ORDER BY step
        ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING))) AS loss_moved FROM train WHERE fin(loss) AND loss > 0)
SELECT step AS step_start, ends.last AS step_end, times AS observed, 1.0 AS expected, segment, layer, times, layers_off, layers,
    CASE WHEN layers_off = 1 THEN printf('layer %d', best.layer) ELSE printf('layers %d to %d', first, best.last) END AS place
FROM best JOIN ends USING (segment) LEFT JOIN l USING (segment, step)
WHERE coalesce(act_moved <= $forward, true) AND coalesce(loss_moved <= $loss, true) AND own <= $most
ORDER BY step_start
