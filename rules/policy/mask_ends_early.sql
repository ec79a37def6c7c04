-- The onset is the row where the means of five rows before and after it differ most.
WITH t AS (SELECT segment, step, truncated_frac AS x, response_length AS l, coalesce(score, reward) AS r,
    row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
    avg(truncated_frac) OVER b AS was, avg(truncated_frac) OVER a AS becomes
    FROM train
    WHERE fin(truncated_frac)
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, arg_max(k, abs(becomes - was)) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 3
    GROUP BY segment),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before, median(x) FILTER (WHERE k >= onset) AS after,
    median(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_before,
    median(l) FILTER (WHERE k >= onset) AS l_after,
    median(r) FILTER (WHERE k < onset AND k >= onset - 10) AS earned, median(r) FILTER (WHERE k >= onset) AS earns
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT s.segment, avg(((x > (before + after) / 2) = (after > before))::INT) FILTER (WHERE k >= onset) AS held,
    avg(((x < (before + after) / 2) = (after > before))::INT) FILTER (WHERE k < onset) AS calm
    FROM t JOIN s USING (segment)
    GROUP BY s.segment)
SELECT step_start, step_end, l_after AS observed, l_before AS expected, segment, earned, earns
FROM s JOIN h USING (segment)
WHERE held >= $hold AND calm >= $hold AND after - before >= $rise AND l_after <= $fall * l_before
    AND earns >= $earns * earned AND earned > 0
ORDER BY step_start
