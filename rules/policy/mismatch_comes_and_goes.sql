SELECT onset AS step_start, last AS step_end, bursts AS observed, idle AS expected, segment, signal
FROM gap
WHERE main AND bursts >= $bursts AND idle >= $idle AND coalesce(tail, 2) < $tail AND coalesce(lopsided, 1) >= $lopsided
   AND signal IN ('mismatch_logp_abs', 'mismatch_prob_diff', 'mismatch_mult_prob_error', 'mismatch_k3', 'mismatch_kl')
