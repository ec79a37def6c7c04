SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, coalesce('after step ' || step, 'before the first step') AS place, count(*) OVER () AS times,
    left(text, 160) AS text
FROM events WHERE kind = 'hardware_error' ORDER BY seq LIMIT 1
