WITH t AS (SELECT segment, step, kl_ref, lr
    FROM train
    WHERE fin(kl_ref) AND kl_ref__state = 'finite' AND fin(lr) AND lr > 1e-8)
SELECT min(step) AS step_start, max(step) AS step_end, max(abs(kl_ref)) AS observed, 1e-5 AS expected, segment,
    count(*) AS rows_seen, median(lr) AS rate
FROM t GROUP BY segment HAVING count(*) >= $hold AND max(abs(kl_ref)) <= $still ORDER BY step_start
