SELECT coalesce(step, twin_step) AS step_start, NULL::BIGINT AS step_end, ending AS observed, good_ending AS expected,
    coalesce(segment, twin_segment) AS segment, 'zero_grad_frac' AS signal
FROM against
WHERE name = 'zero_grad_frac' AND rank IS NULL AND layer IS NULL AND direction = 1 AND NOT nonfinite
    AND ending - good_ending >= $more AND ending < $whole
    AND NOT EXISTS (SELECT 1 FROM against WHERE name = 'grad_norm' AND layer IS NULL AND (direction = 1 OR nonfinite))
