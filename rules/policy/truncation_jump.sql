-- Broken weights never stop either: with gradients that are not finite the fault is theirs.
-- Answers that reach the limit and earn more by it are learnt, not cut off: with a reward logged, it must have fallen.
-- The onset is the row where the means of five rows before and after it differ most.
WITH t AS (SELECT segment, step, truncated_frac AS x, response_length_max AS top, coalesce(score, reward) AS r,
    bad(grad_norm__state) AS poisoned, row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n,
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
s AS (SELECT segment, onset, avg(poisoned::INT) FILTER (WHERE k >= onset) AS poisoned,
    min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before, median(x) FILTER (WHERE k >= onset) AS after,
    median(top) FILTER (WHERE k < onset AND k >= onset - 10) AS top_before,
    median(top) FILTER (WHERE k >= onset) AS top_after,
    median(r) FILTER (WHERE k < onset AND k >= onset - 10) AS r_before, median(r) FILTER (WHERE k >= onset) AS r_after
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT s.segment, avg(((x > (before + after) / 2) = (after > before))::INT) FILTER (WHERE k >= onset) AS held,
    avg(((x < (before + after) / 2) = (after > before))::INT) FILTER (WHERE k < onset) AS calm
    FROM t JOIN s USING (segment)
    GROUP BY s.segment)
SELECT step_start, step_end, after AS observed, before AS expected, segment,
    CASE WHEN top_before IS NULL THEN '' ELSE printf('; the longest response has %.0f tokens, before it %.0f',
        top_after, top_before) END
        AS length_note
FROM s JOIN h USING (segment)
WHERE poisoned < 0.5 AND held >= $hold AND calm >= $hold AND after - before >= $rise
    AND coalesce(r_after < r_before, true)
ORDER BY step_start
