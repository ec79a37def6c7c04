SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal, before
FROM against
WHERE name IN ('reward', 'score') AND rank IS NULL AND layer IS NULL AND direction = -1 AND NOT nonfinite AND before > 0
    AND ending <= $fall * before AND good_ending > ending
ORDER BY step, name LIMIT 1
