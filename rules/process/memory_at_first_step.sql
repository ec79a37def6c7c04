SELECT step AS step_start, step AS step_end, n::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank,
    source, line, place,
    text, n AS rows_before
FROM (SELECT e.*, (SELECT count(*) FROM train) - e.rows_after AS n FROM events e WHERE kind = 'out_of_memory')
WHERE n <= $early AND rows_after <= $early ORDER BY seq LIMIT 1
