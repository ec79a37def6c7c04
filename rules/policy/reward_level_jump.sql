-- The onset is the row where the means of five rows before and after it differ most. A run that makes such changes all
-- the time (a curriculum, a value held over rows, a fast learner) is no fault: the change must be alone of its size.
WITH t AS (SELECT segment, step, coalesce(score, reward) AS x, entropy AS e, response_length AS l,
    row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n, avg(coalesce(score, reward)) OVER b AS was, avg(coalesce(score,
        reward)) OVER a AS becomes,
    abs(coalesce(score, reward) - lag(coalesce(score, reward)) OVER w) AS d,
    abs(avg(coalesce(score, reward)) OVER a3 - avg(coalesce(score, reward)) OVER b3) AS change
    FROM train
    WHERE fin(coalesce(score, reward))
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING),
        b3 AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
        a3 AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)),
o AS (SELECT segment, arg_max(k, abs(becomes - was)) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 4
    GROUP BY segment
    HAVING max(abs(becomes - was)) > 0.5 * $noise * 1.4826 / sqrt(2) * median(d)),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before,
    max(x) FILTER (WHERE k < onset AND k >= onset - 10) AS hi, min(x) FILTER (WHERE k < onset
        AND k >= onset - 10) AS lo,
    median(x) FILTER (WHERE k >= onset AND k < onset + 3) AS first, median(x) FILTER (WHERE k > n - 4) AS late,
    1.4826 / sqrt(2) * median(d) FILTER (WHERE k < onset) AS sigma,
    max(change) FILTER (WHERE abs(k - onset) > 4 AND k > 3 AND k <= n - 2) AS elsewhere,
    avg(e) FILTER (WHERE k >= onset AND k < onset + 2) AS e_at,
    avg(l) FILTER (WHERE k >= onset AND k < onset + 2) AS l_at,
    min(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_lo,
    max(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_hi,
    min(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_lo,
    max(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_hi
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT s.segment, avg((x > hi + (hi - lo))::INT) AS held FROM t JOIN s USING (segment)
    WHERE k >= onset GROUP BY s.segment)
SELECT step_start, step_end, first AS observed, before AS expected, segment
FROM s JOIN h USING (segment)
WHERE held >= $hold AND first - before > $noise * sigma AND hi - lo > 0
    AND first - before > $alone * coalesce(elsewhere, 0)
    AND late - before < $growth * (first - before)
    AND coalesce(e_at BETWEEN e_lo - $room * (e_hi - e_lo) AND e_hi + $room * (e_hi - e_lo), true)
    AND coalesce(l_at BETWEEN (1 - $length) * l_lo AND (1 + $length) * l_hi, true)
ORDER BY step_start
