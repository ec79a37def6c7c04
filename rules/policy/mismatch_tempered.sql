-- mismatch_prob_diff_std over mismatch_prob_diff, with a mismatch_pearson near 1.
SELECT began AS step_start, last AS step_end, tail AS observed, 1.5 AS expected, segment, 'mismatch_prob_diff_std' AS signal
FROM gap
WHERE main AND tail < $tail AND coalesce(pearson, 1) > $pearson
