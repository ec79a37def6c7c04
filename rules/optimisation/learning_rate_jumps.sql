WITH t AS (SELECT segment, step, lr, lag(lr) OVER w AS before, min(lr) OVER b AS low, max(lr) OVER b AS high,
        max(lr) OVER (PARTITION BY segment ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS top,
        count(*) OVER b AS rows_before
    FROM train WHERE fin(lr) AND lr__state = 'finite'
    WINDOW w AS (PARTITION BY segment ORDER BY step),
        b AS (PARTITION BY segment ORDER BY step ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING))
SELECT step AS step_start, step AS step_end, lr AS observed, before AS expected, segment, lr / before AS times, rows_before
FROM t WHERE rows_before >= $rows AND before > 0 AND lr >= $rise * before AND lr >= $rise * top AND high - low <= $steady * high
QUALIFY row_number() OVER (PARTITION BY segment ORDER BY step) = 1 ORDER BY step_start
