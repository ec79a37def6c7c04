WITH t AS (SELECT segment, step, row_number() OVER (PARTITION BY segment ORDER BY step) AS k, grad_norm AS x,
    abs(grad_norm - $value) <= $tolerance AS hit
    FROM train WHERE fin(grad_norm)),
island AS (SELECT *, k - row_number() OVER (PARTITION BY segment ORDER BY step) AS island FROM t WHERE hit)
SELECT min(step) AS step_start, max(step) AS step_end, $value AS observed, NULL::DOUBLE AS expected, segment,
    count(*) AS rows
FROM island
    GROUP BY segment, island
    HAVING count(*) >= $hold OR count(*) >= 2 AND max(abs(x - $value)) <= $exact
    ORDER BY step_start LIMIT 1
