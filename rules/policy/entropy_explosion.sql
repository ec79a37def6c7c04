-- The onset is where the entropy leaves its early level for good, not where it passes the bound: half of the rows
-- from there on, which is to say their median, have made a quarter of the whole rise (from the level it had fallen
-- to by then). The reward is compared with the rows before it.
WITH t AS (SELECT segment, step, entropy AS x, coalesce(score, reward) AS r,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k, count(*) OVER (PARTITION BY segment) AS n
    FROM train
    WHERE fin(entropy)),
b AS (SELECT segment, any_value(n) AS n, median(x) FILTER (WHERE k <= greatest(5, n / 10)) AS early,
    median(x) FILTER (WHERE k > n - greatest(5, n / 20)) AS late, quantile_cont(x, 0.1) AS floor,
        median(r) FILTER (WHERE k > n - greatest(5, n / 10)) AS r_late, max(r) - min(r) AS r_span
            FROM t
            GROUP BY segment
            HAVING late > $ratio * early AND late - early > $rise),
h AS (SELECT t.*, x > floor + $left * (late - floor) AND k > greatest(5, t.n / 10) AS beyond
    FROM t JOIN b USING (segment)),
m AS (SELECT *, share_left(beyond, segment, step) AS share FROM h),
o AS (SELECT segment, min(k) FILTER (WHERE beyond AND share >= 0.5) AS onset FROM m GROUP BY segment),
r AS (SELECT segment, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(r) FILTER (WHERE k < onset AND k >= onset - 10) AS r_before
    FROM m JOIN o USING (segment)
    GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, late / early AS times
FROM b JOIN r USING (segment)
    WHERE n >= 20 AND late > $ratio * early AND late - early > $rise
        AND coalesce(r_late - r_before <= $gain * r_span, true)
    ORDER BY step_start
