SELECT step AS step_start, step AS step_end, value AS observed,
    (SELECT median(step_time) FROM train WHERE fin(step_time)) AS expected, segment, source, line,
        value / 60 AS minutes,
    coalesce((SELECT median(step_time) FROM train WHERE fin(step_time)), 0) AS step_seconds
FROM events e
    WHERE kind = 'silence'
        AND value >= greatest($least, $steps * coalesce((SELECT median(step_time) FROM train WHERE fin(step_time)), 0))
    AND NOT EXISTS (SELECT 1
        FROM events x
        WHERE x.segment = e.segment
            AND x.kind IN ('completed', 'stopped', 'exception', 'elastic_failure', 'segfault', 'out_of_memory',
                'hardware_error', 'killed', 'collective_timeout', 'device_error'))
ORDER BY seq LIMIT 1
