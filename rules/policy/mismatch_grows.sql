SELECT onset AS step_start, last AS step_end, growth AS observed, 1.0 AS expected, segment, signal
FROM gap
WHERE main AND onset IS NOT NULL AND rows_before >= 5 AND rows_after >= 8 AND after >= $opened * before AND coalesce(idle, 0) < $idle
   AND growth >= CASE WHEN signal IN ('mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_mult_prob_error') THEN $growth
       WHEN signal IN ('mismatch_k3', 'mismatch_kl') THEN $square END
