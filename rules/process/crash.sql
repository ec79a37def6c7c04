WITH e AS (SELECT *, regexp_matches(text, 'RayTaskError|CalledProcessError|ChildFailedError|SystemExit|KeyboardInterrupt') AS wrapper FROM events x WHERE kind IN ('exception', 'elastic_failure', 'checkpoint_error')
    AND NOT EXISTS (SELECT 1 FROM events s WHERE s.kind IN ('stopped', 'completed') AND s.seq < x.seq)),
last AS (SELECT segment, max(step) AS last_step FROM train GROUP BY segment)
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, e.segment, rank, source, line, left(text, 160) AS text,
    CASE WHEN e.segment < (SELECT max(segment) FROM train) OR e.step < last_step THEN 'benign' ELSE 'root' END AS role
FROM e JOIN last USING (segment) WHERE e.text NOT LIKE '%KeyboardInterrupt%' ORDER BY role DESC, wrapper, seq LIMIT 1
