WITH t AS (SELECT segment, step, grad_norm AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    coalesce(loss_scale > 1, false) AS scaled
    FROM train WHERE fin(grad_norm) AND grad_norm > 0),
w AS (SELECT *, median(x) OVER b AS level, max(x) OVER b AS top
    FROM t WINDOW b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN $window PRECEDING AND 1 PRECEDING)),
j AS (SELECT segment, step AS step_start, k, level FROM w
    WHERE k > $before AND x >= $jump * level AND x >= $clear * top AND x > $level AND NOT scaled
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step) <= 8),
s AS (SELECT j.segment, step_start, max(t.step) AS step_end, any_value(level) AS level, median(t.x) AS late,
        avg((t.x >= 0.5 * $jump * level)::INT) AS share, count(*) AS rows_left
    FROM j JOIN t ON t.segment = j.segment AND t.k >= j.k GROUP BY j.segment, step_start)
SELECT step_start, step_end, late AS observed, level AS expected, segment, late / level AS times FROM s
WHERE share > $share AND rows_left >= $hold AND late > $level
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step_start) = 1
ORDER BY step_start
