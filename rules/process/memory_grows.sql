WITH v AS (SELECT segment, step, row AS k, rows AS n, 'memory' AS signal, memory AS x, response_length AS l,
    batch_size AS b
    FROM train
    WHERE fin(memory)
    UNION ALL SELECT segment, step, row, rows, 'host_memory', host_memory, response_length, batch_size
    FROM train
    WHERE fin(host_memory)),
f AS (SELECT segment, signal
    FROM v
    WHERE k > $settle * n
    GROUP BY segment, signal
    HAVING corr(x, k) >= $trend),
s AS (SELECT segment, signal, any_value(n) AS n, min(step) AS step_start, max(step) AS step_end,
    median(x) FILTER (WHERE k <= $settle * n + n / 8) AS early, median(x) FILTER (WHERE k > n - greatest(3,
        n / 8)) AS late,
    corr(x, k) AS trend, median(l) FILTER (WHERE k <= $settle * n + n / 8) AS l_early,
    median(l) FILTER (WHERE k > n - greatest(3, n / 8)) AS l_late, min(b) AS b_low, max(b) AS b_high
    FROM v JOIN f USING (segment, signal)
    WHERE k > $settle * n
    GROUP BY segment, signal)
SELECT step_start, step_end, late AS observed, early AS expected, segment, signal, late / early AS times, trend
FROM s
WHERE n >= 20 AND early > 0 AND late > $grown * early 
    AND coalesce(l_late <= $longer * l_early, true) AND coalesce(b_low = b_high, true)
ORDER BY step_start, signal
