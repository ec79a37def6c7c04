WITH t AS (SELECT segment, step, layer, act_absmax AS x, median(act_absmax) OVER w AS before, count(act_absmax) OVER w AS seen,
        max(update_ratio) OVER w AS moved
    FROM layer WHERE layer IS NOT NULL AND fin(act_absmax) AND act_absmax > 0
    WINDOW w AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING))
SELECT step AS step_start, step AS step_end, x AS observed, before AS expected, segment, layer FROM t
WHERE seen >= 2 AND x >= $jump * before AND coalesce(moved <= $update, true)
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step, layer) = 1 ORDER BY step_start
