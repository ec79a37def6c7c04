SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text, count(*) OVER () AS times,
    CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM events WHERE kind = 'collective_mismatch' ORDER BY role DESC, seq LIMIT 1
