SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source, line, left(text, 160) AS text
FROM events e WHERE kind = 'killed' AND NOT EXISTS (SELECT 1 FROM events s WHERE s.kind IN ('stopped', 'completed') AND s.seq < e.seq) ORDER BY seq LIMIT 1
