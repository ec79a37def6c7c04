-- Of a chain of exceptions the last one named in one block is the most specific; wrappers (Ray, subprocess) say less.
WITH e AS (SELECT *, regexp_matches(text, 'RayTaskError|CalledProcessError|ChildFailedError|SystemExit') AS wrapper
    FROM events WHERE kind IN ('exception', 'checkpoint_error'))
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text
FROM e
WHERE NOT EXISTS (SELECT 1 FROM train) AND coalesce(step, 0) = 0 AND regexp_matches(text, $settings)
ORDER BY wrapper, seq LIMIT 1
