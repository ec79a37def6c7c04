-- Both bounds at once: a better answer than ever before breaks the upper one alone.
WITH t AS (SELECT segment, step, coalesce(score_max, reward_max) AS up, coalesce(score_min, reward_min) AS down,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train
    WHERE fin(coalesce(score_max, reward_max))),
b AS (SELECT segment, median(up) FILTER (WHERE k <= 5) AS top, median(down) FILTER (WHERE k <= 5) AS bottom
    FROM t
    GROUP BY segment),
f AS (SELECT t.*, top, bottom,
    coalesce(up > top + $tolerance * (top - bottom) AND down < bottom - $tolerance * (top - bottom), false) AS broken
    FROM t JOIN b USING (segment)
    WHERE top > bottom),
o AS (SELECT segment, min(k) FILTER (WHERE broken) AS onset FROM f GROUP BY segment)
SELECT min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(up) FILTER (WHERE k >= onset) AS observed, any_value(top) AS expected, segment, any_value(top) AS top,
    any_value(bottom) AS bottom, median(down) FILTER (WHERE k >= onset) AS low
FROM f JOIN o USING (segment)
GROUP BY segment, onset
HAVING onset > 5 AND count(*) FILTER (WHERE k >= onset) >= 4
    AND avg((up = top)::INT) FILTER (WHERE k < onset) >= $touched
    AND avg(broken::INT) FILTER (WHERE k >= onset) >= $hold
ORDER BY step_start
