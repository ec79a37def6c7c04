-- A message that training went on after was handled; one that was not comes first.
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, place, text, CASE WHEN rows_after >= $after THEN 'benign' ELSE 'root' END AS role
FROM events WHERE kind = 'nonfinite_gradient_text' OR kind = 'rerun_unexpected' AND text LIKE '%local grad norm%' ORDER BY role DESC, seq LIMIT 1
