-- Broken weights answer alike too: with gradients that are not finite the fault is theirs.
WITH t AS (SELECT segment, step, coalesce(score, reward) AS x, entropy AS e, response_length AS l,
    coalesce(reward_std = 0, zero_std_frac >= $full,
        coalesce(score_max, reward_max) = coalesce(score_min, reward_min)) AS flat,
    bad(grad_norm__state) AS poisoned, row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train
    WHERE fin(coalesce(score, reward))
        AND coalesce(reward_std, zero_std_frac, coalesce(score_max, reward_max)) IS NOT NULL),
m AS (SELECT *, share_left(coalesce(flat, false), segment, step) AS share FROM t),
o AS (SELECT segment, min(k) FILTER (WHERE flat AND share >= $share) AS onset FROM m GROUP BY segment),
s AS (SELECT segment, onset, min(step) FILTER (WHERE k = onset) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k >= onset) AS held,
    max(x) FILTER (WHERE k >= onset) - min(x) FILTER (WHERE k >= onset) AS wander,
    median(x) FILTER (WHERE k < onset AND k >= onset - 5) AS before, greatest(max(abs(x)), 1e-9) AS scale,
    count(*) FILTER (WHERE k >= onset) AS after,
    coalesce(avg(poisoned::INT) FILTER (WHERE k >= onset), 0) AS poisoned,
    coalesce(avg(flat::INT) FILTER (WHERE k < onset), 0) AS flat_before,
    avg(e) FILTER (WHERE k >= onset AND k < onset + 2) AS e_at,
    avg(l) FILTER (WHERE k >= onset AND k < onset + 2) AS l_at,
    min(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_lo,
    max(e) FILTER (WHERE k < onset AND k >= onset - 10) AS e_hi,
    min(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_lo,
    max(l) FILTER (WHERE k < onset AND k >= onset - 10) AS l_hi
    FROM m JOIN o USING (segment)
    GROUP BY segment, onset)
SELECT step_start, step_end, held AS observed, before AS expected, segment,
    CASE WHEN held < before THEN 'rejects everything' ELSE 'accepts everything' END AS what
FROM s
WHERE onset > 4 AND after >= 4 AND poisoned < 0.5 AND flat_before <= 1 - $share AND wander <= $same * scale
    AND abs(held - before) >= $jump * scale
    AND coalesce(e_at BETWEEN e_lo - $room * (e_hi - e_lo) AND e_hi + $room * (e_hi - e_lo), true)
    AND coalesce(l_at BETWEEN (1 - $length) * l_lo AND (1 + $length) * l_hi, true)
ORDER BY step_start
