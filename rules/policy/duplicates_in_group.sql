-- Zero advantages beside extremes that differ say the same: the rewards vary, but not inside a group.
WITH t AS (SELECT segment, step, coalesce(score, reward) AS x,
    coalesce(zero_std_frac >= $full, reward_std = 0,
        abs(advantage_max) < 5e-4 AND coalesce(score_max, reward_max) > coalesce(score_min, reward_min)) AS alike,
    row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train
    WHERE fin(coalesce(score, reward)) AND coalesce(zero_std_frac, reward_std, advantage_max) IS NOT NULL),
m AS (SELECT *, share_left(coalesce(alike, false), segment, step) AS share FROM t),
o AS (SELECT segment, min(k) FILTER (WHERE alike AND share >= $share) AS onset FROM m GROUP BY segment)
SELECT min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k >= onset) AS observed, median(x) FILTER (WHERE k < onset) AS expected, segment,
    min(x) FILTER (WHERE k >= onset) AS low, max(x) FILTER (WHERE k >= onset) AS high
FROM m JOIN o USING (segment)
GROUP BY segment, onset
HAVING onset > 4 AND count(*) FILTER (WHERE k >= onset) >= 4
    AND coalesce(avg(alike::INT) FILTER (WHERE k < onset), 0) <= $before
    AND quantile_cont(x, 0.9) FILTER (WHERE k >= onset) - quantile_cont(x, 0.1) FILTER (WHERE k >= onset)
        > $varies * max(abs(x))
    AND expected BETWEEN low AND high
ORDER BY step_start
