-- The table `swing` is made from grad_norm and act_norm.
-- A step of a layer's norm against the median layer parts the rows before from the rows after.
WITH hit AS (SELECT *, rows_before >= $rows AND rows_after >= $rows AND gap > $gap AND abs(shift) > $shift
        AND jump * sign(shift) > $sudden * abs(shift) AS off
    FROM swing WHERE layer IS NOT NULL AND layers IS NOT NULL),
s AS (SELECT segment, step, any_value(last) AS ends, any_value(layers) AS layers, count(*) FILTER (WHERE off) AS layers_off,
        arg_max(layer, gap) FILTER (WHERE off) AS layer, arg_max(exp(shift), gap) FILTER (WHERE off) AS times,
        max(gap) FILTER (WHERE off) AS gap, max(moved) AS act_moved, max(exp(abs(own))) AS own,
        min(layer) FILTER (WHERE off) AS first, max(layer) FILTER (WHERE off) AS last
    FROM hit GROUP BY segment, step HAVING bool_or(off)),
best AS (SELECT * FROM s QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
l AS (SELECT segment, step, abs(ln(loss / median(loss) OVER (PARTITION BY segment ORDER BY step
        ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING))) AS loss_moved FROM train WHERE fin(loss) AND loss > 0)
SELECT step AS step_start, ends AS step_end, times AS observed, 1.0 AS expected, segment, layer, times, layers_off, layers,
    CASE WHEN layers_off = 1 THEN printf('layer %d', layer) ELSE printf('layers %d to %d', first, last) END AS place
FROM best LEFT JOIN l USING (segment, step)
WHERE coalesce(act_moved <= $forward, true) AND coalesce(loss_moved <= $loss, true) AND own <= $most
ORDER BY step_start
