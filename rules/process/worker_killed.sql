-- After a stop request the launcher kills what is left.
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text, CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM events e
WHERE kind = 'killed' AND NOT EXISTS (SELECT 1 FROM events s
    WHERE s.kind IN ('stopped', 'completed') AND s.segment = e.segment AND s.seq < e.seq)
ORDER BY role DESC, seq LIMIT 1
