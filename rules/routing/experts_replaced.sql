-- A relative update is rate / weight, so a layer whose weights grow at once falls against the other layers, and its output grows.
WITH t AS (SELECT segment, step, layer, CASE WHEN update_ratio > 0 THEN ln(update_ratio) END AS u,
        CASE WHEN act_norm > 0 THEN ln(act_norm) END AS x, router_entropy AS entropy,
        router_entropy IS NOT NULL OR moe_load_cv IS NOT NULL AS routed
    FROM layer WHERE layer IS NOT NULL),
w AS (SELECT *, median(x) OVER a - median(x) OVER b AS dx, median(u) OVER a - median(u) OVER b AS du,
        median(entropy) OVER a / nullif(median(entropy) OVER b, 0) AS router, x - lag(x) OVER o AS jump,
        count(x) OVER a AS a_rows, count(x) OVER b AS b_rows, bool_or(routed) OVER (PARTITION BY segment, layer) AS experts
    FROM t WINDOW o AS (PARTITION BY segment, layer ORDER BY step),
        b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 6 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 5 FOLLOWING)),
m AS (SELECT segment, step, median(du) AS common FROM w GROUP BY segment, step HAVING count(du) >= 3),
r AS (SELECT w.*, du - common AS apart FROM w JOIN m USING (segment, step) WHERE a_rows >= $rows AND b_rows >= $rows),
c AS (SELECT *, count(*) FILTER (WHERE abs(apart) > $others) OVER s AS moved, max(abs(dx)) OVER under AS below
    FROM r WINDOW s AS (PARTITION BY segment, step),
        under AS (PARTITION BY segment, step ORDER BY layer ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
SELECT step AS step_start, step AS step_end, exp(dx) AS observed, 1.0 AS expected, segment, layer, exp(apart) AS update,
    'act_norm' AS signal
FROM c
WHERE experts AND apart <= -$drop AND moved = 1 AND dx >= $output AND jump >= $sudden * dx AND coalesce(below <= $below, true)
    AND coalesce(abs(router - 1) <= $router, true)
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY jump DESC, step) = 1 ORDER BY step_start
