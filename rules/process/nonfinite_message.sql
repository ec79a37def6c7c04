-- Followed by $after ordinary rows the message was handled; one that was not comes first.
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source,
    line, coalesce('after step ' || step, 'before the first step') AS place, left(text, 160) AS text,
    CASE
        WHEN (SELECT count(*)
            FROM train t
            WHERE t.segment = e.segment AND t.step > coalesce(e.step, -1)) >= $after THEN 'benign'
        ELSE 'root' END AS role
FROM events e WHERE kind IN ('nonfinite_text', 'rerun_unexpected') ORDER BY role DESC, seq LIMIT 1
