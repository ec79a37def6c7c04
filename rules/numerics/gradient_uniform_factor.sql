WITH g AS (SELECT segment, step, layer, ln(grad_norm) AS x, ln(act_norm) AS act FROM layer
    WHERE layer IS NOT NULL AND fin(grad_norm) AND grad_norm > 0 AND coalesce(act_norm > 0, true)),
w AS (SELECT *, median(x) OVER b AS before, median(x) OVER a AS after,
        quantile_cont(x, 0.15) OVER b AS b_low, quantile_cont(x, 0.85) OVER b AS b_high,
        quantile_cont(x, 0.15) OVER a AS a_low, quantile_cont(x, 0.85) OVER a AS a_high,
        count(*) OVER b AS b_rows, count(*) OVER a AS a_rows, abs(act - median(act) OVER near) AS moved,
        x - median(x) OVER near AS jump
    FROM g WINDOW b AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 8 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN CURRENT ROW AND 7 FOLLOWING),
        near AS (PARTITION BY segment, layer ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING)),
c AS (SELECT *, after - before AS d, CASE WHEN after > before THEN a_low - b_high ELSE b_low - a_high END AS gap
    FROM w WHERE b_rows >= 5 AND a_rows >= 5),
s AS (SELECT segment, step, median(d) AS d, max(d) AS high, min(d) AS low, median(gap) AS gap, max(moved) AS moved,
        median(jump) AS jump, count(*) AS layers
    FROM c GROUP BY segment, step),
best AS (SELECT * FROM s WHERE layers >= 3 AND gap > $gap AND abs(d) > $shift AND high - low <= $spread
        AND jump * sign(d) > $sudden * abs(d) AND coalesce(moved <= $forward, true)
    QUALIFY row_number() OVER (PARTITION BY segment ORDER BY gap DESC) = 1),
ends AS (SELECT segment, max(step) AS last FROM g GROUP BY segment)
SELECT step AS step_start, ends.last AS step_end, exp(d) AS observed, 1.0 AS expected, segment, layers,
    exp(least(low, high)) AS low, exp(greatest(low, high)) AS high
FROM best JOIN ends USING (segment)
ORDER BY step_start
