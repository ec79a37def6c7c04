SELECT l.step AS step_start, NULL::BIGINT AS step_end, l.ending AS observed, l.good_ending AS expected, l.segment, 'response_length' AS signal
FROM against AS l
WHERE l.name = 'response_length' AND l.rank IS NULL AND l.direction = 1 AND NOT l.nonfinite AND l.ending >= $longer * l.good_ending
    AND EXISTS (SELECT 1 FROM against WHERE rank IS NULL AND (
        (name IN ('reward', 'score') AND direction = -1) OR (name = 'truncated_frac' AND direction = 1 AND ending - good_ending >= $more)))
