WITH t AS (SELECT segment, label, min(step) AS step_start, max(step) AS step_end, count(*) AS rows_seen,
    max(abs(value)) AS top,
    median(value) AS paid, max(value) - min(value) AS varies
    FROM component
    WHERE signal = 'reward_component' AND axis = 'train' AND fin(value)
    GROUP BY segment, label)
SELECT t.step_start, t.step_end, 0.0 AS observed, NULL::DOUBLE AS expected, segment, t.label, o.label AS other,
    o.paid,
    t.rows_seen
FROM t JOIN t o USING (segment)
WHERE regexp_matches(lower(t.label), 'accura|correct|answer|exact|pass|verif|solution') AND t.top = 0
    AND NOT regexp_matches(lower(t.label), 'std|format|int_|_int|digit|tag|xml') AND t.rows_seen >= $rows
    AND NOT regexp_matches(lower(o.label), 'std') AND o.varies > 0
    AND NOT EXISTS (SELECT 1 FROM t x
        WHERE x.segment = t.segment AND x.top > 0
            AND regexp_matches(lower(x.label), 'accura|correct|exact|pass|verif|solution'))
ORDER BY t.step_start, t.label, o.paid DESC
LIMIT 1
