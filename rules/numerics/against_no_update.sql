WITH silent AS (
    SELECT count(*) AS signals FROM against
    WHERE (name = 'grad_norm' AND nonfinite) OR (name = 'zero_std_frac' AND ending >= $groups) OR (name = 'advantage_max' AND abs(ending) <= $least * good_ending)
)
SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal
FROM against, silent
WHERE name IN ('grad_norm', 'update_ratio', 'lr') AND layer IS NULL AND module IS NULL AND rank IS NULL AND direction = -1 AND NOT nonfinite AND silent.signals = 0
    AND good_ending > 0 AND abs(ending) <= $least * good_ending
ORDER BY step, name LIMIT 1
