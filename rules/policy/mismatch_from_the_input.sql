-- act_norm_ratio of the first layer against that of the last.
SELECT o.began AS step_start, o.last AS step_end, first_shift AS observed, last_shift AS expected, segment, first_layer AS layer,
   'act_norm_ratio' AS signal
FROM origin o JOIN gap g USING (segment)
WHERE main AND layers >= 3 AND abs(last_shift) <= $fades * abs(first_shift) AND tail >= $tail
   AND (abs(first_shift) >= $first OR (abs(first_shift) >= $little AND one_sided >= $one_sided))
   AND starts_at IS NULL AND coalesce(loss_first, 1) >= $agree
