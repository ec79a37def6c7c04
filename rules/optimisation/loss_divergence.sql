WITH t AS (SELECT segment, step, loss AS raw, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
        abs(loss - lag(loss) OVER w) AS jump, median(loss) OVER (PARTITION BY segment ORDER BY step ROWS 4 PRECEDING) AS smooth
    FROM train WHERE fin(loss) AND loss > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
x AS (SELECT *, CASE WHEN n >= 20 THEN smooth ELSE raw END AS x, median(jump) OVER (PARTITION BY segment) AS typical FROM t),
b AS (SELECT *, min(x) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best,
        first_value(x) OVER (PARTITION BY segment ORDER BY step) AS first FROM x),
-- 1.4826 turns a median absolute deviation into a sigma; sqrt(2) undoes the difference of two rows. Thin logs have no noise level.
f AS (SELECT *, coalesce(x > $rise * best AND (n < 20 OR x - best > $noise * 1.4826 / sqrt(2) * typical AND x - best > $learned * least(greatest(first - best, 0.02 * best), best)), false) AS high FROM b),
m AS (SELECT *, avg(high::INT) OVER tail AS share, max(raw) OVER tail AS peak, min(high::INT) OVER late AS ends_high
    FROM f WINDOW tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
        late AS (PARTITION BY segment ORDER BY step DESC ROWS UNBOUNDED PRECEDING)),
s AS (SELECT segment, any_value(n) AS n, min(step) FILTER (WHERE high AND share >= $share) AS step_start, max(step) AS step_end, arg_max(x, k) AS last, arg_max(best, k) AS best,
        max(raw) FILTER (WHERE high) AS peak, count(*) FILTER (WHERE ends_high = 1) AS high_rows, arg_max(k, raw) FILTER (WHERE high) AS peak_k FROM m GROUP BY segment)
SELECT step_start, step_end, last AS observed, (SELECT min(x) FROM m WHERE m.segment = s.segment AND m.step < s.step_start) AS expected, segment,
    last / (SELECT min(x) FROM m WHERE m.segment = s.segment AND m.step < s.step_start) AS times
FROM s
WHERE step_start IS NOT NULL AND high_rows >= CASE WHEN n >= 20 THEN greatest(3, ceil(0.05 * n)) ELSE 2 END
    AND (n >= 20 OR last >= $thin_rise * (SELECT min(x) FROM m WHERE m.segment = s.segment AND m.step < s.step_start))
    AND (last >= $peak * peak OR n >= 20)
ORDER BY step_start
