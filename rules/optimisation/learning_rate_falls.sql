WITH t AS (SELECT segment, step, lr, lag(lr) OVER w AS before, min(lr) OVER b AS low, max(lr) OVER b AS high,
        count(*) OVER b AS rows_before, max(lr) OVER rest AS left_top, count(*) OVER rest AS rows_left
    FROM train WHERE fin(lr) AND lr__state = 'finite'
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING),
        rest AS (PARTITION BY segment ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING))
SELECT step AS step_start, (SELECT max(step) FROM t e WHERE e.segment = t.segment) AS step_end, lr AS observed,
    before AS expected, segment, rows_before, rows_left
FROM t WHERE rows_before >= $rows AND rows_left >= $rows AND before > 0 AND lr * $fall <= before
    AND left_top * $fall <= before AND high - low <= $steady * high
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step) = 1 ORDER BY step_start
