-- The table `balance` holds moe_load_cv, moe_dead_frac, router_entropy around their sharpest change.
SELECT onset AS step_start, last AS step_end, entropy_after AS observed, entropy_before AS expected, segment,
    'router_entropy' AS signal
FROM balance
WHERE at_once >= $at_once AND entropy_after <= $entropy * entropy_before AND coalesce(lr_growth, 1) < $lr
