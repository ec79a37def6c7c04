WITH t AS (SELECT segment, step, loss_scale AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
        lag(loss_scale) OVER (PARTITION BY segment ORDER BY step) AS before FROM train WHERE fin(loss_scale) AND loss_scale > 0),
-- settled: the first row after which the scale did not fall for $settled rows, so the search is over
w AS (SELECT *, count(*) OVER nx AS nx_rows, min(x) OVER nx AS nx_min, max(x) OVER later AS later_max, arg_max(x, step) OVER later AS end_x
    FROM t WINDOW nx AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 1 FOLLOWING AND $settled FOLLOWING),
        later AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)),
s AS (SELECT segment, min(k) AS settled_k FROM w WHERE nx_rows = $settled AND nx_min >= x GROUP BY segment),
p AS (SELECT w.*, settled_k, max(x) FILTER (WHERE w.k >= settled_k) OVER (PARTITION BY w.segment ORDER BY step ROWS UNBOUNDED PRECEDING) AS peak
    FROM w JOIN s USING (segment)),
fallen AS (SELECT segment, min(step) FILTER (WHERE x < peak) AS step_start, arg_max(x, step) AS observed, max(peak) AS expected, max(step) AS step_end, min(x) AS low
    FROM p WHERE k > settled_k AND x < peak AND later_max < peak GROUP BY segment)
SELECT step_start, step_end, observed, expected, segment FROM fallen
WHERE expected >= $fall * observed OR (observed <= $floor AND expected >= 8 * $floor)
ORDER BY step_start
