SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, source, line,
    coalesce('after step ' || step, 'before the first step') AS place, left(text, 120) AS text
    FROM events
    WHERE kind = 'stopped'
    ORDER BY seq LIMIT 1
