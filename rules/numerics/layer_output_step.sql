-- Without router signals (`known`) every layer may be one of experts.
WITH t AS (SELECT segment, step, layer, ln(act_norm) AS x, CASE WHEN update_ratio > 0 THEN ln(update_ratio) END AS u,
        router_entropy IS NOT NULL OR moe_load_cv IS NOT NULL AS routed
    FROM layer WHERE layer IS NOT NULL AND fin(act_norm) AND act_norm > 0),
w AS (SELECT *, median(x) OVER a - median(x) OVER b AS d, x - lag(x) OVER o AS jump, count(*) OVER a AS a_rows,
        count(*) OVER b AS b_rows, max(x) OVER b - min(x) OVER b AS was, median(u) OVER a - median(u) OVER b AS du,
        greatest(u, lag(u) OVER o) - median(u) OVER b AS pushed, bool_or(routed) OVER (PARTITION BY segment, layer)
            OR NOT bool_or(routed) OVER (PARTITION BY segment) AS experts, bool_or(routed) OVER (PARTITION BY segment, layer) AS known
    FROM t WINDOW o AS (PARTITION BY segment, layer ORDER BY step),
        b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 6 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 5 FOLLOWING)),
r AS (SELECT *, du - median(du) OVER (PARTITION BY segment, step) AS apart,
        was <= $steady AND jump * sign(d) >= $sudden * abs(d) AND abs(d) <= ln($most) AS clear
    FROM w WHERE a_rows >= $rows AND b_rows >= $rows),
f AS (SELECT *, min(CASE WHEN clear AND abs(d) >= $shift THEN layer END) OVER s AS start, min(layer) OVER s AS bottom,
        max(layer) OVER s AS top_layer
    FROM r WINDOW s AS (PARTITION BY segment, step)),
-- Either a step of one sign that starts in a layer, or a rise of the first layer that thins out above it.
c AS (SELECT segment, step, coalesce(any_value(start), any_value(bottom)) AS layer, any_value(start) IS NOT NULL AS starts,
        count(*) AS layers, max(abs(d)) FILTER (WHERE layer < start) AS below,
        abs(sum(sign(d)) FILTER (WHERE layer >= start AND abs(d) >= $carried)) = count(*) FILTER (WHERE layer >= start) AS carried,
        any_value(d) FILTER (WHERE layer = coalesce(start, bottom)) AS d,
        any_value(d) FILTER (WHERE layer = top_layer) AS top,
        bool_or(clear AND d >= $first) FILTER (WHERE layer = bottom) AS rises, corr(d, layer) AS corr, min(d) AS least,
        max(pushed) AS pushed,
        bool_or(experts AND coalesce(abs(apart) >= $experts, known)) FILTER (WHERE layer = coalesce(start, bottom)) AS replaced
    FROM f GROUP BY segment, step)
SELECT step AS step_start, step AS step_end, exp(d) AS observed, 1.0 AS expected, segment, layer, exp(top) AS top,
    'act_norm' AS signal
FROM c
WHERE layers >= 3 AND coalesce(pushed <= ln($update), true) AND NOT replaced
    AND ((starts AND carried AND coalesce(below <= $below, true))
        OR (rises AND corr <= -$order AND least >= -$below AND top <= 0.5 * d))
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY abs(d) DESC, step) = 1 ORDER BY step_start
