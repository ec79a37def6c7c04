SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal
FROM against
WHERE name IN ('kl_ref', 'kl_old') AND rank IS NULL AND direction = 1 AND NOT nonfinite
    AND ending >= $least * abs(good_ending) AND ending - abs(good_ending) >= $floor
ORDER BY step, name LIMIT 1
