-- It begins where most rows from there on are above the early level: a jump inside is dated by its row, not by the first of the log.
WITH t AS (SELECT segment, step, loss AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k,
    rank() OVER (PARTITION BY segment ORDER BY loss) AS r, count(*) OVER (PARTITION BY segment) AS n
    FROM train WHERE fin(loss) AND loss > 0),
s AS (SELECT segment, any_value(n) AS n, max(step) AS step_end,
    median(x) FILTER (WHERE k <= n / 3) AS early, median(x) FILTER (WHERE k > n - n / 3) AS late, corr(k, r) AS rho
    FROM t
    GROUP BY segment),
a AS (SELECT segment, step, x > $rise * early AS above, share_left(x > $rise * early, segment, step) AS share
    FROM t JOIN s USING (segment)),
o AS (SELECT segment, min(step) AS step_start FROM a WHERE above AND share >= 0.5 GROUP BY segment)
SELECT step_start, step_end, late AS observed, early AS expected, segment, n AS rows_seen, rho
FROM s JOIN o USING (segment) WHERE n >= 10 AND late > $rise * early AND rho >= $rank ORDER BY step_start
