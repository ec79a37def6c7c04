WITH t AS (SELECT segment, step, layer, ln(update_ratio) AS x FROM layer
    WHERE layer IS NOT NULL AND fin(update_ratio) AND update_ratio > 0),
w AS (SELECT *, median(x) OVER a - median(x) OVER b AS d, count(*) OVER a AS a_rows, count(*) OVER b AS b_rows,
        x - lag(x) OVER (PARTITION BY segment, layer ORDER BY step) AS jump
    FROM t WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
s AS (SELECT segment, step, max(d) - min(d) AS spread, max(d) AS top, abs(corr(d, layer)) AS corr, count(*) AS layers,
        abs(regr_slope(jump, layer)) / nullif(abs(regr_slope(d, layer)), 0) AS sudden, min(layer) AS first, max(layer) AS last,
        exp(arg_min(d, layer)) AS low, exp(arg_max(d, layer)) AS high
    FROM w WHERE a_rows >= $rows AND b_rows >= $rows GROUP BY segment, step)
SELECT step AS step_start, step AS step_end, exp(spread) AS observed, 1.0 AS expected, segment, first, last, low, high, corr,
    last AS layer
FROM s WHERE layers >= 3 AND spread >= $tilt AND corr >= $order AND sudden >= $sudden AND top > -0.5
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY spread DESC) = 1 ORDER BY step_start
