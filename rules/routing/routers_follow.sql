-- topk_overlap lost, and act_norm_ratio of what reaches the first router.
SELECT began AS step_start, last AS step_end, loss AS observed, 0.0 AS expected, segment, 'topk_overlap' AS signal
FROM origin
WHERE loss >= $least AND router_excess < $excess
