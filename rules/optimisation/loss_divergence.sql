-- Logs of 20 rows and more: a smoothed loss against its best so far and the row-to-row noise. Thinner logs have no
-- noise level, so the rise must stand out against the largest change between neighbours before it.
WITH t AS (SELECT segment, step, loss AS raw, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
        abs(loss - lag(loss) OVER w) AS jump,
            median(loss) OVER (PARTITION BY segment ORDER BY step ROWS 4 PRECEDING) AS smooth,
        avg(loss) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)
            - median(loss) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING) AS rise,
        median(loss) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING) AS level
    FROM train WHERE fin(loss) AND loss > 0 WINDOW w AS (PARTITION BY segment ORDER BY step)),
-- 1.4826 turns a median absolute deviation into a sigma; sqrt(2) undoes the difference of two rows
x AS (SELECT *, CASE WHEN n >= 20 THEN smooth ELSE raw END AS x,
    1.4826 / sqrt(2) * median(jump) OVER (PARTITION BY segment) AS sigma
    FROM t),
b AS (SELECT *, min(x) OVER before AS best, max(jump) OVER before AS restless,
    first_value(x) OVER (PARTITION BY segment ORDER BY step) AS first
    FROM x WINDOW before AS (PARTITION BY segment ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)),
f AS (SELECT *,
    coalesce(x > $rise * best
        AND (n < 20 OR x - best > $noise * sigma
            AND x - best > $learned * least(greatest(first - best, 0.02 * best), best)),
        false) AS high
    FROM b),
m AS (SELECT *, avg(high::INT) OVER tail AS share, min(high::INT) OVER late AS ends_high
    FROM f WINDOW tail AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING),
        late AS (PARTITION BY segment ORDER BY step DESC ROWS UNBOUNDED PRECEDING)),
s AS (SELECT segment, any_value(n) AS n, min(step) FILTER (WHERE high AND share >= $share) AS step_start,
    min(k) FILTER (WHERE high AND share >= $share) AS k_start,
    max(step) AS step_end, arg_max(x, k) AS last,
        max(raw) FILTER (WHERE high) AS peak, count(*) FILTER (WHERE ends_high = 1) AS high_rows
            FROM m
            GROUP BY segment),
r AS (SELECT s.*, min(m.x) FILTER (WHERE m.step < step_start) AS best,
        coalesce(max(m.jump) FILTER (WHERE m.step < step_start), 0) AS restless,
        count(*) FILTER (WHERE m.step < step_start) AS rows_before,
        max(m.rise) FILTER (WHERE m.k BETWEEN k_start - 4 AND k_start + 1) AS rise,
        min(m.smooth) FILTER (WHERE m.k > k_start + 4) AS low,
        arg_max(m.level, m.rise) FILTER (WHERE m.k BETWEEN k_start - 4 AND k_start + 1) AS level
    FROM s JOIN m USING (segment) WHERE step_start IS NOT NULL GROUP BY ALL)
SELECT step_start, step_end, last AS observed, best AS expected, segment, last / best AS times,
    CASE WHEN n < 20 AND rows_before < 2 THEN 0.6 WHEN n < 20 THEN 0.8 END AS strength
FROM r
WHERE CASE WHEN n >= 20 THEN high_rows >= greatest(3, ceil(0.05 * n))
        AND NOT coalesce(rise >= $sudden * (last - best) AND last <= $beyond * level AND last <= $beyond * low, false)
    ELSE high_rows >= 2 AND last >= $thin_rise * best AND last >= $peak * peak AND last - best >= $quiet * restless END
ORDER BY step_start
