-- Five rows in a row above everything of the ten before, so that one odd batch does not count.
WITH t AS (SELECT segment, step, kl_ref AS x, bad(grad_norm__state) AS poisoned, row_number() OVER w AS k,
    max(kl_ref) OVER b AS hi, min(kl_ref) OVER a AS least
    FROM train
    WHERE fin(kl_ref)
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 10 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, min(k) AS onset
    FROM t
    WHERE k > 5 AND least > $ratio * greatest(hi, 0) AND least > hi + $rise
    GROUP BY segment),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before,
    median(x) FILTER (WHERE k >= onset AND k < onset + 5) AS after, count(*) FILTER (WHERE k >= onset) AS rows_after,
    avg(poisoned::INT) FILTER (WHERE k >= onset) AS poisoned
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset)
SELECT step_start, step_end, after AS observed, before AS expected, segment
FROM s
WHERE rows_after >= 5 AND poisoned < 0.5
ORDER BY step_start
