WITH layers AS (
    SELECT layer, twin_step, twin_segment, coalesce(twin_value / nullif(twin_good, 0), 1.0) AS times FROM against
    WHERE signal = 'grad_norm' AND name = 'grad_norm' AND layer IS NOT NULL AND rank IS NULL AND twin
)
SELECT any_value(twin_step) AS step_start, any_value(twin_step) AS step_end, median(times) AS observed, 1.0 AS expected,
    any_value(twin_segment) AS segment, 'grad_norm' AS signal, count(*) AS layers
FROM layers
HAVING count(*) > 1 AND min(times) > 0 AND abs(ln(median(times))) >= ln($least) AND max(times) - min(times) <= $alike * median(times)
