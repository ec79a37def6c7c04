WITH t AS (SELECT segment, step, 'mismatch_is_mean' AS signal, mismatch_is_mean AS x,
       mismatch_is_mean NOT BETWEEN $low AND $high AS off FROM train WHERE fin(mismatch_is_mean)
   UNION ALL SELECT segment, step, 'mismatch_ess_raw', mismatch_ess_raw, mismatch_ess_raw < $ess
       FROM train WHERE fin(mismatch_ess_raw)),
m AS (SELECT *, share_left(off, (segment, signal), step) AS share FROM t)
SELECT min(step) FILTER (WHERE off AND share >= $share) AS step_start, max(step) AS step_end,
   median(x) FILTER (WHERE off AND share >= $share) AS observed, 1.0 AS expected, segment, signal
FROM m GROUP BY segment, signal
HAVING step_start IS NOT NULL AND count(*) FILTER (WHERE off) >= 3
ORDER BY step_start
