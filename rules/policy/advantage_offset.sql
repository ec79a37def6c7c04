-- The onset is the row where the means of five rows before and after it differ most.
WITH t AS (SELECT segment, step, advantage AS x, advantage_max AS up, advantage_min AS down, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n, avg(advantage) OVER b AS was, avg(advantage) OVER a AS becomes
    FROM train
    WHERE fin(advantage)
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, arg_max(k, abs(becomes - was)) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 4
    GROUP BY segment),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset) AS before, median(x) FILTER (WHERE k >= onset) AS after,
    median(up) FILTER (WHERE k >= onset) AS high, median(down) FILTER (WHERE k >= onset) AS low
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT s.segment, avg(((x > (before + after) / 2) = (after > before))::INT) FILTER (WHERE k >= onset) AS held,
    avg(((x < (before + after) / 2) = (after > before))::INT) FILTER (WHERE k < onset) AS calm,
    1.4826 * median(abs(x - before)) FILTER (WHERE k < onset) AS sigma
    FROM t JOIN s USING (segment)
    GROUP BY s.segment)
SELECT step_start, step_end, after AS observed, before AS expected, segment, low, high
FROM s JOIN h USING (segment)
WHERE held >= $hold AND calm >= $hold AND abs(after) > $share * (high - low) AND abs(after) > abs(before)
    AND abs(after - before) > $noise * sigma
ORDER BY step_start
