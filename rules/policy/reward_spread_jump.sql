-- The onset is the row where the means of five rows before and after it differ most.
WITH t AS (SELECT segment, step, reward_std AS x, entropy AS e, response_length AS l, row_number() OVER w AS k,
    count(*) OVER (PARTITION BY segment) AS n, avg(reward_std) OVER b AS was, avg(reward_std) OVER a AS becomes,
    abs(reward_std - lag(reward_std) OVER w) AS d
    FROM train
    WHERE fin(reward_std)
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        a AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, arg_max(k, abs(becomes - was)) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 4
    GROUP BY segment
    HAVING max(becomes - 0.75 * $ratio * was) > 0),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset AND k >= onset - 10) AS before, median(x) FILTER (WHERE k >= onset) AS after,
    max(becomes - was) FILTER (WHERE k = onset) AS jump, 1.4826 / sqrt(2) * median(d) FILTER (WHERE k < onset) AS sigma,
    avg(e) FILTER (WHERE k >= onset AND k < onset + 2) AS e_at,
    avg(l) FILTER (WHERE k >= onset AND k < onset + 2) AS l_at,
    min(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_lo,
    max(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_hi,
    min(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_lo,
    max(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_hi
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT s.segment, avg(((x > (before + after) / 2) = (after > before))::INT) FILTER (WHERE k >= onset) AS held,
    avg(((x < (before + after) / 2) = (after > before))::INT) FILTER (WHERE k < onset) AS calm
    FROM t JOIN s USING (segment)
    GROUP BY s.segment)
SELECT step_start, step_end, after AS observed, before AS expected, segment
FROM s JOIN h USING (segment)
WHERE held >= $hold AND calm >= $hold AND before > 0 AND after > $ratio * before
    AND after - before > $noise * sigma AND jump >= $at_once * (after - before)
    AND coalesce(e_at BETWEEN e_lo - $room * (e_hi - e_lo) AND e_hi + $room * (e_hi - e_lo), true)
    AND coalesce(l_at BETWEEN (1 - $length) * l_lo AND (1 + $length) * l_hi, true)
ORDER BY step_start
