WITH t AS (SELECT segment, step, layer, update_ratio AS u, moment2_norm AS v FROM layer
    WHERE layer IS NOT NULL AND fin(update_ratio) AND update_ratio > 0),
w AS (SELECT *, median(u) OVER b AS before, median(u) OVER a AS after, median(v) OVER b AS moment,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows, lag(u) OVER (PARTITION BY segment, layer ORDER BY step) AS last
    FROM t WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
s AS (SELECT segment, step, median(before / after) AS fall, median(last / u) AS jump, count(*) AS layers,
        corr(ln(before / after), ln(before)) AS corr,
        coalesce(corr(ln(before / after), ln(nullif(moment, 0))), 1) AS by_moment
    FROM w WHERE b_rows >= 4 AND a_rows >= 4 GROUP BY segment, step),
best AS (SELECT * FROM s WHERE layers >= 4 QUALIFY row_number() OVER (PARTITION BY segment ORDER BY jump DESC) = 1)
SELECT step AS step_start, step AS step_end, fall AS observed, 1.0 AS expected, segment, layers, by_moment AS corr
FROM best WHERE fall >= $fall AND by_moment <= $order AND corr > 0
ORDER BY step_start
