-- Any other ending in the log says more.
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text, count(*) OVER () AS times,
    CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM events
WHERE kind = 'crash_loop' AND NOT EXISTS (SELECT 1 FROM events
    WHERE kind IN ('exception', 'out_of_memory', 'hardware_error', 'node_failure', 'collective_timeout', 'checkpoint_error'))
ORDER BY role DESC, seq LIMIT 1
