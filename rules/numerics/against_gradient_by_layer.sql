WITH layers AS (
    SELECT layer, twin_step, twin_segment, coalesce(twin_value / nullif(twin_good, 0), 1.0) AS times FROM against
    WHERE signal = 'grad_norm' AND name = 'grad_norm' AND layer IS NOT NULL AND rank IS NULL AND twin
)
SELECT any_value(twin_step) AS step_start, any_value(twin_step) AS step_end, arg_max(times, abs(times - 1)) AS observed, 1.0 AS expected,
    any_value(twin_segment) AS segment, max(layer) FILTER (WHERE abs(times - 1) >= $off) AS layer, 'grad_norm' AS signal,
    count(*) FILTER (WHERE abs(times - 1) >= $off) AS off, count(*) FILTER (WHERE abs(times - 1) <= $clean) AS clean
FROM layers
HAVING count(*) FILTER (WHERE abs(times - 1) >= $off) > 0 AND count(*) FILTER (WHERE abs(times - 1) <= $clean) > 0
    AND min(layer) FILTER (WHERE abs(times - 1) >= $off) < max(layer) FILTER (WHERE abs(times - 1) <= $clean)
