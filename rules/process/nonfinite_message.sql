-- Followed by three ordinary rows the message was handled.
WITH f AS (SELECT min(seq) AS seq FROM events WHERE kind IN ('nonfinite_text', 'rerun_unexpected'))
SELECT step AS step_start, step AS step_end, NULL::DOUBLE AS observed, NULL::DOUBLE AS expected, segment, rank, source, line, left(text, 160) AS text,
    CASE WHEN (SELECT count(*) FROM train t WHERE t.segment = e.segment AND t.step > e.step) >= 3 THEN 'benign' ELSE 'root' END AS role
FROM events e JOIN f USING (seq)
