-- mismatch_kl over mismatch_logp_abs, and mismatch_prob_diff_std over mismatch_prob_diff.
SELECT began AS step_start, last AS step_end, one_sided AS observed, 0.1 AS expected, segment, 'mismatch_kl' AS signal
FROM gap
WHERE main AND one_sided >= $one_sided AND tail >= $tail AND late < $most
