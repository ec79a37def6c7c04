SELECT t.step AS step_start, NULL::BIGINT AS step_end, t.ending AS observed, t.good_ending AS expected, t.segment, 'truncated_frac' AS signal
FROM against AS t
WHERE t.name = 'truncated_frac' AND t.rank IS NULL AND t.direction = 1 AND NOT t.nonfinite AND t.ending - t.good_ending >= $more
    AND NOT EXISTS (SELECT 1 FROM against WHERE name = 'response_length' AND rank IS NULL AND direction = 1 AND ending >= $longer * good_ending)
