WITH moved AS (  -- forward signals that differ where the runs first do: other weights or inputs
    SELECT count(*) AS signals
    FROM against
    WHERE (name IN ('entropy', 'reward', 'score', 'response_length', 'accuracy', 'kl_ref') OR signal = 'act_norm')
        AND abs(twin_value - twin_good) > $same * greatest(abs(twin_value), abs(twin_good))
),
jump AS (
    SELECT twin_step AS step, twin_segment AS segment, layer, twin_value AS value, twin_good AS good,
        twin_value / twin_good AS times, 'at once, with the same forward pass' AS how
    FROM against, moved
    WHERE signal = 'grad_norm' AND name = 'grad_norm' AND rank IS NULL AND twin_good > 0 AND moved.signals = 0
        AND twin_value / twin_good >= $jump
    ORDER BY times DESC LIMIT 1
),
lasting AS (
    SELECT step, segment, layer, ending AS value, good_ending AS good, ending / good_ending AS times, 'for good' AS how
    FROM against, moved
    WHERE name = 'grad_norm' AND layer IS NULL AND module IS NULL AND rank IS NULL
        AND direction = 1 AND NOT nonfinite AND good_ending > 0 AND ending / good_ending >= $lasting
        AND NOT (moved.signals = 0 AND twin_good > 0 AND coalesce(twin_value / twin_good, 1.0) >= $least)
        AND NOT (NOT twin AND good > 0 AND ratio < $jump AND ratio < $grown * value / good)
),
found AS (SELECT * FROM jump UNION ALL SELECT * FROM lasting)
SELECT step AS step_start, step AS step_end, value AS observed, good AS expected, segment, layer, 'grad_norm' AS signal, times, how
FROM found ORDER BY step LIMIT 1
