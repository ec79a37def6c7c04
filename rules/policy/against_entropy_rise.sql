SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, 'entropy' AS signal
FROM against
WHERE name = 'entropy' AND rank IS NULL AND layer IS NULL AND direction = 1 AND NOT nonfinite AND ending > before
    AND good_ending > 0 AND ending >= $least * good_ending
    AND EXISTS (SELECT 1 FROM against WHERE name IN ('reward', 'score'))
