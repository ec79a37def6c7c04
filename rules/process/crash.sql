-- Wrappers (Ray, subprocess) say less than the exception they wrap, so they come last.
WITH e AS (SELECT *,
        regexp_matches(text, 'RayTaskError|CalledProcessError|ChildFailedError|SystemExit|KeyboardInterrupt') AS wrapper
    FROM events x
    WHERE kind IN ('exception', 'elastic_failure', 'checkpoint_error')
        AND NOT EXISTS (SELECT 1 FROM events s
            WHERE s.kind IN ('stopped', 'completed') AND s.segment = x.segment AND s.seq < x.seq))
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text, CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM e
WHERE (EXISTS (SELECT 1 FROM train) OR coalesce(step, 0) > 0 OR NOT regexp_matches(text, $settings))
    AND text NOT LIKE '%KeyboardInterrupt%'
ORDER BY role DESC, wrapper, seq LIMIT 1
