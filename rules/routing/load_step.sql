WITH s AS (SELECT segment, step, avg(ln(moe_max_vio)) AS x, count(*) AS layers FROM layer
    WHERE layer IS NOT NULL AND fin(moe_max_vio) AND moe_max_vio > 0 GROUP BY segment, step),
m AS (SELECT segment, max(layers) AS layers FROM s GROUP BY segment),
r AS (SELECT s.*, loss, grad_norm, bad(loss__state) OR bad(grad_norm__state) AS broken
    FROM s JOIN m USING (segment, layers) LEFT JOIN train USING (segment, step)),
w AS (SELECT *, median(x) OVER b AS before, median(x) OVER a AS after, quantile_cont(x, 0.85) OVER b AS high,
        quantile_cont(x, 0.15) OVER a AS low, median(x) OVER rest AS stays, count(*) OVER a AS a_rows, count(*) OVER b AS b_rows,
        x - median(x) OVER near AS jump, bool_or(broken) OVER a AS broke,
        median(loss) OVER a / nullif(median(loss) OVER b, 0) AS loss_ratio,
        median(grad_norm) OVER a / nullif(median(grad_norm) OVER b, 0) AS gradient_ratio
    FROM r WINDOW b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
        near AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
        rest AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
e AS (SELECT segment, max(step) AS last FROM s GROUP BY segment)
SELECT step AS step_start, last AS step_end, exp(after) AS observed, exp(before) AS expected, segment, 'moe_max_vio' AS signal,
    layers
FROM w JOIN e USING (segment)
WHERE a_rows >= $rows AND b_rows >= $rows AND after - before BETWEEN $shift AND $most AND low - high >= $gap
    AND jump >= $sudden * (after - before) AND stays - before >= $shift AND NOT coalesce(broke, false)
    AND coalesce(loss_ratio BETWEEN 1 / $loss AND $loss, true)
    AND coalesce(gradient_ratio BETWEEN 1 / $gradient AND $gradient, true)
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY low - high DESC, step) = 1 ORDER BY step_start
