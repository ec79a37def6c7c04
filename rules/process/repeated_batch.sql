-- A constant loss is a fault of its own; rounded ones have few digits and are left out by the state and the
-- distinct values.
WITH t AS (SELECT segment, step, loss AS x, row_number() OVER (PARTITION BY segment ORDER BY step) AS k
    FROM train
    WHERE fin(loss) AND loss__state = 'finite'),
p AS (SELECT unnest(range(2, $period::BIGINT + 1)) AS period),
c AS (SELECT t.segment, p.period, count(*) AS n, count(*) FILTER (WHERE t.x = u.x) AS same,
    count(DISTINCT t.x) AS kinds,
    min(t.step) AS step_start, max(t.step) AS step_end, any_value(t.x) AS x
    FROM p JOIN t ON t.k > p.period JOIN t u ON u.segment = t.segment AND u.k = t.k - p.period
    GROUP BY t.segment, p.period)
SELECT step_start, step_end, same::DOUBLE AS observed, 0.0 AS expected, segment, period, same AS rows_same,
    n AS rows_seen
FROM c
WHERE n >= $rows AND same >= $same * n AND kinds >= 2
    AND (SELECT max(abs(x * 1000 - round(x * 1000))) FROM t WHERE t.segment = c.segment) > 1e-4
ORDER BY segment, period LIMIT 1
