SELECT step AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected, segment, name AS signal
FROM against
WHERE rank IS NULL AND layer IS NULL AND step IS NOT NULL AND NOT nonfinite AND (
    (name = 'zero_std_frac' AND ending >= $groups AND ending - good_ending >= $more)
    OR (name IN ('advantage_max', 'reward_std') AND good_ending > 0 AND abs(ending) <= $least * good_ending)
)
ORDER BY step, name LIMIT 1
