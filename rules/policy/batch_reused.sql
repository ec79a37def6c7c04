-- The onset is the row where the means of five step times before and after it differ most.
WITH t AS (SELECT segment, step, policy_loss AS x, step_time AS s, advantage AS a, bad(grad_norm__state) AS poisoned,
    row_number() OVER w AS k, count(*) OVER (PARTITION BY segment) AS n, avg(step_time) OVER b AS was,
    avg(step_time) OVER f AS becomes, abs(policy_loss - lag(policy_loss) OVER w) AS d
    FROM train
    WHERE fin(policy_loss) AND fin(step_time) AND step_time > 0
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING),
        f AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND 4 FOLLOWING)),
o AS (SELECT segment, arg_max(k, becomes - was) AS onset
    FROM t
    WHERE k > 5 AND k <= n - 4
    GROUP BY segment
    HAVING max(becomes - 0.75 * $slower * was) > 0),
m AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k < onset) AS before, median(x) FILTER (WHERE k >= onset) AS after,
    median(s) FILTER (WHERE k < onset) AS s_before, median(s) FILTER (WHERE k >= onset) AS s_after,
    coalesce(median(a) FILTER (WHERE k >= onset) - median(a) FILTER (WHERE k < onset), 0) AS a_rise,
    1.4826 / sqrt(2) * median(d) FILTER (WHERE k < onset) AS sigma, avg(poisoned::INT)
        FILTER (WHERE k >= onset) AS poisoned
    FROM t JOIN o USING (segment)
    GROUP BY segment, onset),
h AS (SELECT m.segment, avg((x < (before + after) / 2)::INT) FILTER (WHERE k >= onset) AS held,
    avg((x > (before + after) / 2)::INT) FILTER (WHERE k < onset) AS calm,
    avg((s > (s_before + s_after) / 2)::INT) FILTER (WHERE k >= onset) AS s_held,
    avg((s < (s_before + s_after) / 2)::INT) FILTER (WHERE k < onset) AS s_calm
    FROM t JOIN m USING (segment)
    GROUP BY m.segment)
SELECT step_start, step_end, after AS observed, before AS expected, segment, s_after / s_before AS slower
FROM m JOIN h USING (segment)
WHERE s_after > $slower * s_before AND after < 0 AND before - after > $noise * sigma AND poisoned < 0.5
    AND held >= $hold AND calm >= $hold AND s_held >= $hold AND s_calm >= $hold
        AND a_rise < $offset * (before - after)
ORDER BY step_start
