WITH t AS (SELECT segment, step, layer, module, moment2_norm AS v, moment1_norm AS m, grad_norm AS g,
        lag(moment2_norm) OVER w AS v_before, lag(moment1_norm) OVER w AS m_before, row_number() OVER w AS k,
        median(grad_norm) OVER (PARTITION BY segment, layer, module ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING) AS g_before
    FROM layer WHERE fin(moment2_norm) AND moment2_norm > 0 WINDOW w AS (PARTITION BY segment, layer, module ORDER BY step)),
s AS (SELECT segment, step, count(*) AS layers, count(*) FILTER (WHERE v_before > $fall * v) AS layers_off,
        median(v_before / v) AS fall, coalesce(median(m_before / nullif(m, 0)), $first) AS first
    FROM t WHERE k > $before AND coalesce(g >= $gradient * g_before, true) GROUP BY segment, step),
hits AS (SELECT * FROM s WHERE layers >= 2 AND fall >= $fall AND layers_off >= $layers * layers AND first >= $first)
SELECT min(step) AS step_start, min(step) AS step_end, arg_min(fall, step) AS observed, 1.0 AS expected, segment,
    arg_min(layers, step) AS layers, arg_min(layers_off, step) AS layers_off, arg_min(first, step) AS first,
    CASE WHEN count(*) > 1 THEN printf(', and %d times more', count(*) - 1) ELSE '' END AS again
FROM hits GROUP BY segment ORDER BY step_start
