SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank,
    source, line,
    place, text
FROM events WHERE kind = 'checkpoint_error' ORDER BY seq LIMIT 1
