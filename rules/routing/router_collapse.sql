-- The table `balance` holds moe_load_cv, moe_dead_frac, router_entropy around their sharpest change.
SELECT onset AS step_start, last AS step_end, dead_after AS observed, dead_before AS expected, segment, cv_before, cv_after,
    'moe_dead_frac' AS signal
FROM balance
WHERE least(cv_after, cv_end) >= $cv * cv_before
    AND (least(dead_after, dead_end) - dead_before >= $dead OR greatest(entropy_after, entropy_end) <= $entropy * entropy_before)
