-- No rank here: the one that times out waits for another. timeout-culprit names that one.
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment,
    NULL::INTEGER AS rank, source,
    line, place, text, count(*) OVER () AS times,
    CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM events WHERE kind = 'collective_timeout' ORDER BY role DESC, seq LIMIT 1
