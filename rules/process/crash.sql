WITH e AS (SELECT *,
    regexp_matches(text, 'RayTaskError|CalledProcessError|ChildFailedError|SystemExit|KeyboardInterrupt') AS wrapper
    FROM events x
    WHERE kind IN ('exception', 'elastic_failure', 'checkpoint_error')
    AND NOT EXISTS (SELECT 1
        FROM events s
        WHERE s.kind IN ('stopped', 'completed') AND s.segment = x.segment AND s.seq < x.seq))
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, e.segment, rank,
    source, line, coalesce('after step ' || step, 'before the first step') AS place, left(text, 160) AS text,
    CASE WHEN e.segment < (SELECT max(segment) FROM train)
        OR (SELECT count(*)
            FROM train t
            WHERE t.segment = e.segment AND t.step > coalesce(e.step, -1)) >= $after THEN 'benign'
        ELSE 'root' END AS role
FROM e
    WHERE (EXISTS (SELECT 1 FROM train) OR coalesce(step, 0) > 0 OR NOT regexp_matches(text, $settings))
        AND e.text NOT LIKE '%KeyboardInterrupt%'
    ORDER BY role DESC, wrapper, seq LIMIT 1
