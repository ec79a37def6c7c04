-- The table `balance` holds moe_load_cv, moe_dead_frac, router_entropy around their sharpest change.
SELECT onset AS step_start, last AS step_end, dead_after AS observed, dead_before AS expected, segment, entropy_before,
    entropy_after, 'moe_dead_frac' AS signal
FROM balance
WHERE entropy_after <= $entropy * entropy_before
    AND ((least(dead_after, dead_end) - dead_before >= $dead AND entropy_end <= $entropy * entropy_before)
        OR least(cv_after, cv_end) >= $uneven * cv_before)
    AND NOT (least(cv_after, cv_end) >= $cv * cv_before AND (least(dead_after, dead_end) - dead_before >= $collapsed
        OR greatest(entropy_after, entropy_end) <= $sure * entropy_before))
