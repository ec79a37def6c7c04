-- act_norm_ratio says where, topk_overlap that the routers below agree.
SELECT began AS step_start, last AS step_end, start AS observed, 0.0 AS expected, segment, starts_at AS layer,
   'act_norm_ratio' AS signal
FROM origin
WHERE start >= $least AND (routers > 0 OR starts_at >= first_layer + $second)
