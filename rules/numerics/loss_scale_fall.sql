WITH t AS (SELECT segment, step, loss_scale AS x, row_number() OVER w AS k,
    log2(loss_scale / lag(loss_scale) OVER w) AS d
    FROM train WHERE fin(loss_scale) AND loss_scale > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
-- settled: the first row after which the scale did not fall for $settled rows, so the search is over
w AS (SELECT *, count(*) OVER nx AS nx_rows, min(x) OVER nx AS nx_min
    FROM t
    WINDOW nx AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 1 FOLLOWING AND $settled FOLLOWING)),
s AS (SELECT segment, min(k) AS settled_k FROM w WHERE nx_rows = $settled AND nx_min >= x GROUP BY segment),
p AS (SELECT w.*, max(x) OVER (PARTITION BY segment) AS peak FROM w JOIN s USING (segment) WHERE w.k >= settled_k),
-- the descent: everything after the last row at the peak
q AS (SELECT p.*, max(k) FILTER (WHERE x = peak) OVER (PARTITION BY segment) AS peak_k FROM p),
f AS (SELECT segment, min(step) AS step_start, max(step) AS step_end, arg_max(x, k) AS observed,
    any_value(peak) AS expected,
        coalesce(sum(-d) FILTER (WHERE d < 0), 0) AS falls, coalesce(sum(d) FILTER (WHERE d > 0), 0) AS rises
            FROM q
            WHERE k > peak_k
            GROUP BY segment)
SELECT step_start, step_end, observed, expected, segment FROM f
WHERE observed < $ordinary AND rises <= $rises * falls AND (expected >= $fall * observed OR observed <= $floor AND expected >= 8 * $floor)
ORDER BY step_start
