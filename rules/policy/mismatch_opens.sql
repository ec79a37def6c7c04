WITH g AS (SELECT *, CASE WHEN signal = 'mismatch_logp_abs' THEN $growth
           WHEN signal IN ('mismatch_prob_diff', 'mismatch_mult_prob_error') THEN $growth_prob
           WHEN signal IN ('mismatch_k3', 'mismatch_kl') THEN $growth_square END AS least
   FROM gap WHERE main)
SELECT onset AS step_start, last AS step_end, CASE WHEN after >= least * before THEN after ELSE peak END AS observed,
   before AS expected, segment, signal, CASE WHEN after < 2 * least * before AND bursts < $bursts THEN 0.7 END AS strength
FROM g
WHERE onset IS NOT NULL AND rows_before >= 5 AND rows_after >= 5
   AND ((after >= least * before AND above >= $above AND after >= $floor) OR (bursts >= $bursts AND peak >= $peak))
ORDER BY step_start
