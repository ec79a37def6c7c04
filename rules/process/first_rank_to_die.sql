SELECT step AS step_start, step AS step_end, value AS observed, 0.0 AS expected, segment, rank, source, line,
    place, text,
    CASE WHEN value IS NULL THEN '' ELSE printf(' with exit code %d', value::INTEGER) END AS code_note
FROM events
WHERE kind IN ('elastic_failure', 'rank_exit') AND rank IS NOT NULL
ORDER BY kind, seq LIMIT 1
